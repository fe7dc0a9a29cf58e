// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace brim::device {

bool built_with_cuda();  // this build has a CUDA backend; says nothing of cards

}  // namespace brim::device
