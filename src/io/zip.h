// SPDX-License-Identifier: Apache-2.0
// Reads the directory of a zip archive as written by torch: members are stored, not compressed, so that each is a
// view of the mapped file. Supports ZIP64; rejects compression, encryption, several disks and overlapping members.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace brim::io {

struct ZipMember {
  std::string_view name;             // points into the file
  std::span<const std::byte> bytes;  // points into the file
  uint32_t crc = 0;
};

bool looks_like_zip(std::span<const std::byte> file);

// `where` names the file in errors, which are Error(bad_model).
std::vector<ZipMember> parse_zip(std::span<const std::byte> file, const std::string& where);

// Reads the whole member, so use it for small ones.
void check_crc(const ZipMember& member, const std::string& where);

}  // namespace brim::io
