// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace brim::io {

std::array<uint8_t, 32> sha256(std::string_view bytes);  // FIPS 180-4
std::string sha256_hex(std::string_view bytes);

}  // namespace brim::io
