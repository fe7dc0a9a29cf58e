// SPDX-License-Identifier: Apache-2.0
// Before and after: what two profiles of the same models differ in, and whether that is more than noise.
#pragma once
#include <filesystem>
#include <string>

namespace brim::report {

// A profile's JSON, as brim profile wrote it. Throws bad_data where the file is none.
std::string read_profile(const std::filesystem::path& file);
// A table for the terminal, one row for each thing that both have. Both are profiles' JSON; `name`: the first one's.
std::string profile_change(const std::string& before, const std::string& after, const std::string& name);

}  // namespace brim::report
