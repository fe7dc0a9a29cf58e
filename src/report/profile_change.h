// SPDX-License-Identifier: Apache-2.0
// Compares two profiles of the same models and reports differences beyond noise. Does not measure.
#pragma once
#include <filesystem>
#include <string>

namespace brim::report {

// Reads a profile's JSON as written by brim profile. Throws bad_data if invalid.
std::string read_profile(const std::filesystem::path& file);
// A table for the terminal, one row per value present in both. Both are JSON of profiles; `name` is that of the first.
std::string profile_change(const std::string& before, const std::string& after, const std::string& name);

}  // namespace brim::report
