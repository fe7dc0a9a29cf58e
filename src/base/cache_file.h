// SPDX-License-Identifier: Apache-2.0
// Small files that save work and may be missing: measurements, tuned algorithms.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

namespace brim {

// Writes the file whole or not at all, making its folder first. The bytes go to a file of a name of its own beside it,
// so several processes may do so at once; the last one wins. Returns why it could not be done; empty: it was.
std::string write_cache_file(const std::filesystem::path& path, std::string_view text);

}  // namespace brim
