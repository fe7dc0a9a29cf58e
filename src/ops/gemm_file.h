// SPDX-License-Identifier: Apache-2.0
// The file that keeps a device's GEMM choices, and those the program ships. Included by gemm_tuner.cc and its test.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ops/gemm_tuner.h"

namespace brim::ops {

std::string gemm_file_text(const std::string& library, const std::vector<GemmChoice>& choices);
// None where the file is of another library or a later layout. One without a version is of the first. Throws where it
// is no such file.
std::optional<std::vector<GemmChoice>> read_gemm_file(const std::string& text, const std::string& library);
// Measured beforehand on this card with this version of the library, so that a first run is as fast as a tuned one.
std::vector<GemmChoice> known_gemm_choices(std::string_view library);

}  // namespace brim::ops
