// SPDX-License-Identifier: Apache-2.0
// Small optional files that save work: measurements, tuned algorithms.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

namespace brim {

// Writes the file atomically and creates its folder if needed. The bytes go to a temporary file with a unique name in
// the same folder, so several processes can write at once; the last one wins. Returns the reason for a failure, or an
// empty string.
std::string write_cache_file(const std::filesystem::path& path, std::string_view text);

}  // namespace brim
