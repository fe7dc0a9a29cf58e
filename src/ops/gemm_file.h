// SPDX-License-Identifier: Apache-2.0
// The cache file with a device's GEMM choices, and the built-in choices. Included by gemm_tuner.cc and its test only;
// builds without CUDA do not contain it.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ops/gemm_tuner.h"

namespace brim::ops {

std::string gemm_file_text(const std::string& library, const std::vector<GemmChoice>& choices);
// nullopt for another library or a newer format; files without a version are version 1. Throws for anything else.
std::optional<std::vector<GemmChoice>> read_gemm_file(const std::string& text, const std::string& library);
// Choices measured in advance for this GPU and library version, so that a first run is as fast as a tuned one.
std::vector<GemmChoice> known_gemm_choices(std::string_view library);

}  // namespace brim::ops
