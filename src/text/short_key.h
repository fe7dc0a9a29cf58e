// SPDX-License-Identifier: Apache-2.0
// Short byte strings in two registers: up to 15 bytes and their length. Most words fit, so a lookup is one hash, one
// load and one compare, without a loop over bytes.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace brim::text {

static_assert(std::endian::native == std::endian::little, "words are packed in little-endian registers");

// 128-bit product of two words folded to 64 bits: good mixing for one multiplication.
inline uint64_t fold_multiply(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t load8(const char* p) {
  uint64_t word;
  std::memcpy(&word, p, 8);
  return word;
}

struct ShortKey {
  static constexpr size_t kLongest = 15;
  uint64_t low = 0, high = 0;  // bytes 0-7; bytes 8-14 with the length in the top byte
  bool operator==(const ShortKey&) const = default;

  uint64_t hash() const { return fold_multiply(low ^ 0x9E3779B97F4A7C15ULL, high ^ 0xD6E8FEB86659FD93ULL); }

  // Key of the low `length` bytes of a 16-byte window.
  static ShortKey from_window(uint64_t first, uint64_t second, size_t length) {
    const uint64_t top = static_cast<uint64_t>(length) << 56;
    if (length < 8) return {first & ((uint64_t{1} << (8 * length)) - 1), top};
    return {first, (second & ((uint64_t{1} << (8 * (length - 8))) - 1)) | top};
  }
  // 16 bytes from `text` must be readable, regardless of `length`.
  static ShortKey from_padded(const char* text, size_t length) {
    return from_window(load8(text), load8(text + 8), length);
  }
  static ShortKey from(std::string_view text) {
    char window[16] = {};
    std::memcpy(window, text.data(), text.size());
    return from_padded(window, text.size());
  }
};

inline uint64_t hash_bytes(std::string_view text) {
  uint64_t h = fold_multiply(text.size() + 0x9E3779B97F4A7C15ULL, 0xD6E8FEB86659FD93ULL);
  while (text.size() > 8) {
    h = fold_multiply(h ^ load8(text.data()), 0xA0761D6478BD642FULL);
    text.remove_prefix(8);
  }
  uint64_t last = 0;
  std::memcpy(&last, text.data(), text.size());
  return fold_multiply(h ^ last, 0xE7037ED1A0B428DBULL);
}

}  // namespace brim::text
