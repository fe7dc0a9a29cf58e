// SPDX-License-Identifier: Apache-2.0
// Searches for special bytes eight at a time in portable C++ (little-endian words; no SIMD). Use glibc's memchr for a
// single byte; fields and strings end at one of several.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>

namespace brim::io::scan {

static_assert(std::endian::native == std::endian::little, "the lowest set bit must be the first byte");

constexpr uint64_t kOnes = 0x0101010101010101ULL;
constexpr uint64_t kHighs = 0x8080808080808080ULL;

constexpr uint64_t broadcast(char c) { return kOnes * static_cast<unsigned char>(c); }
inline uint64_t load(const char* p) {
  uint64_t word;
  std::memcpy(&word, p, 8);
  return word;
}
// Sets the high bit of zero bytes. Bits above the first zero byte may be wrong; the lowest one is always right.
constexpr uint64_t zero_bytes(uint64_t x) { return (x - kOnes) & ~x & kHighs; }
inline const char* first(const char* p, uint64_t hits) { return p + (std::countr_zero(hits) >> 3); }

// First byte in [p, end) equal to a or b, or end.
inline const char* find_either(const char* p, const char* end, char a, char b) {
  const uint64_t all_a = broadcast(a), all_b = broadcast(b);
  for (; end - p >= 8; p += 8) {
    const uint64_t word = load(p);
    const uint64_t hits = zero_bytes(word ^ all_a) | zero_bytes(word ^ all_b);
    if (hits != 0) return first(p, hits);
  }
  while (p < end && *p != a && *p != b) ++p;
  return p;
}

// First byte in [p, end) that makes a csv field need quotes: the delimiter, a quote, LF or CR; or end.
inline const char* find_csv_special(const char* p, const char* end, char delimiter) {
  constexpr uint64_t kQuotes = broadcast('"'), kFeeds = broadcast('\n'), kReturns = broadcast('\r');
  const uint64_t delimiters = broadcast(delimiter);
  for (; end - p >= 8; p += 8) {
    const uint64_t word = load(p);
    const uint64_t hits = zero_bytes(word ^ delimiters) | zero_bytes(word ^ kQuotes) | zero_bytes(word ^ kFeeds) |
                          zero_bytes(word ^ kReturns);
    if (hits != 0) return first(p, hits);
  }
  while (p < end && *p != delimiter && *p != '"' && *p != '\n' && *p != '\r') ++p;
  return p;
}

// First byte in [p, end) that must be escaped in a JSON string: quote, backslash, or a control byte; or end.
inline const char* find_json_special(const char* p, const char* end) {
  constexpr uint64_t kQuotes = broadcast('"'), kSlashes = broadcast('\\');
  for (; end - p >= 8; p += 8) {
    const uint64_t word = load(p);
    // Bytewise word < 0x20: the subtraction borrows only from such a byte, and bytes above 0x7F are masked out.
    const uint64_t controls = (word - kOnes * 0x20) & ~word & kHighs;
    const uint64_t hits = zero_bytes(word ^ kQuotes) | zero_bytes(word ^ kSlashes) | controls;
    if (hits != 0) return first(p, hits);
  }
  while (p < end && *p != '"' && *p != '\\' && static_cast<unsigned char>(*p) >= 0x20) ++p;
  return p;
}

inline int64_t count_newlines(const char* p, const char* end) {
  int64_t n = 0;
  for (; p < end; ++p) n += *p == '\n';  // the compiler vectorises this
  return n;
}

}  // namespace brim::io::scan
