// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace brim::device {

bool built_with_cuda();  // whether this build has a CUDA backend, regardless of GPUs

}  // namespace brim::device
