// SPDX-License-Identifier: Apache-2.0
// The file that keeps a device's GEMM choices. Included by gemm_tuner.cc and its test only.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "ops/gemm_tuner.h"

namespace brim::ops {

std::string gemm_file_text(const std::string& library, const std::vector<GemmChoice>& choices);
// None where the file is of another library or a later layout. One without a version is of the first. Throws where it
// is no such file.
std::optional<std::vector<GemmChoice>> read_gemm_file(const std::string& text, const std::string& library);

}  // namespace brim::ops
