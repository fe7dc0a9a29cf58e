// SPDX-License-Identifier: Apache-2.0
#include "train/content_hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace brim::train {
namespace {

uint64_t fold(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

void ContentHash::mix(uint64_t word) {
  lanes_[0] = fold(lanes_[0] ^ word, 0x9E3779B97F4A7C15ULL) + 0xA0761D6478BD642FULL;
  lanes_[1] = fold(lanes_[1] + word, 0xD6E8FEB86659FD93ULL) ^ 0xE7037ED1A0B428DBULL;
}

void ContentHash::add(const void* data, size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  uint64_t word;
  for (; bytes >= 8; at += 8, bytes -= 8) {
    std::memcpy(&word, at, 8);
    mix(word);
  }
  if (bytes == 0) return;
  word = 0;
  std::memcpy(&word, at, bytes);
  mix(word ^ (static_cast<uint64_t>(bytes) << 56));
}

void ContentHash::add(std::string_view text) {
  mix(text.size());
  add(text.data(), text.size());
}

void ContentHash::add_file(const std::filesystem::path& path) {
  const MappedFile file(path, ErrorCode::bad_data);
  mix(file.size());
  add_pieces(file.data(), file.size(), &file);
}

void ContentHash::add_pieces(const void* data, size_t bytes, const MappedFile* mapped) {
  constexpr size_t kPiece = size_t{1} << 20;  // a multiple of the word size, so the hash does not depend on it
  const auto* at = static_cast<const char*>(data);
  for (size_t done = 0; done < bytes; done += kPiece) {
    add(at + done, std::min(kPiece, bytes - done));
    if (mapped != nullptr) mapped->release();
  }
}

std::string ContentHash::hex() const { return fmt::format("{:016x}{:016x}", lanes_[0], lanes_[1]); }

}  // namespace brim::train
