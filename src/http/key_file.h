// SPDX-License-Identifier: Apache-2.0
// Permission checks of files with keys.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace brim::http {

enum class KeyFile : uint8_t { hashes, secret };

// Throws a usage error if every user can write the file. Logs a warning if other users can read a secret.
void check_key_file(std::string_view setting, const std::string& path, KeyFile kind);

}  // namespace brim::http
