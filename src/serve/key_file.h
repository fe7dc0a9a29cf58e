// SPDX-License-Identifier: Apache-2.0
// Permissions of files that decide who may use the server.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace brim::serve {

enum class KeyFile : uint8_t { hashes, secret };

// Fails with a usage error if every user can write the file. Warns if others than its owner can read a secret.
void check_key_file(std::string_view setting, const std::string& path, KeyFile kind);

}  // namespace brim::serve
