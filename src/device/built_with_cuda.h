// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace brim::device {

bool built_with_cuda();               // whether this build has a CUDA backend, regardless of GPUs
std::string cuda_compiler_version();  // "12.4.131"; empty without a CUDA backend

}  // namespace brim::device
