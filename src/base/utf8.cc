// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <cstring>

namespace brim {
namespace {

// Length of the well-formed sequence at p (1..4), or minus the length of the maximal ill-formed subpart.
int sequence_at(const unsigned char* p, size_t left) {
  const unsigned char c = p[0];
  if (c < 0x80) return 1;
  if (c < 0xC2 || c > 0xF4) return -1;
  const int need = c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and values past U+10FFFF.
  unsigned char low = 0x80, high = 0xBF;
  if (c == 0xE0) low = 0xA0;
  if (c == 0xED) high = 0x9F;
  if (c == 0xF0) low = 0x90;
  if (c == 0xF4) high = 0x8F;
  for (int i = 1; i < need; ++i) {
    if (static_cast<size_t>(i) >= left || p[i] < low || p[i] > high) return -i;
    low = 0x80;
    high = 0xBF;
  }
  return need;
}

// Number of leading ASCII bytes, counted eight at a time.
size_t ascii_run(const unsigned char* p, size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    uint64_t word;
    std::memcpy(&word, p + i, 8);
    if (word & 0x8080808080808080ULL) break;
  }
  while (i < n && p[i] < 0x80) ++i;
  return i;
}

// Offset of the first ill-formed byte, or n.
size_t valid_prefix(const unsigned char* p, size_t n) {
  size_t i = 0;
  while (i < n) {
    i += ascii_run(p + i, n - i);
    if (i >= n) break;
    const int length = sequence_at(p + i, n - i);
    if (length < 0) return i;
    i += length;
  }
  return n;
}

}  // namespace

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

size_t valid_utf8_prefix(std::string_view text) {
  return valid_prefix(reinterpret_cast<const unsigned char*>(text.data()), text.size());
}

bool is_valid_utf8(std::string_view text) { return valid_utf8_prefix(text) == text.size(); }

std::string replace_invalid_utf8(std::string_view text) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  const size_t n = text.size();
  std::string out;
  out.reserve(n + 8);
  size_t i = 0;
  while (i < n) {
    const size_t good = valid_prefix(p + i, n - i);
    out.append(text.substr(i, good));
    i += good;
    if (i >= n) break;
    out += "\xEF\xBF\xBD";
    i += -sequence_at(p + i, n - i);
  }
  return out;
}

size_t count_code_points(std::string_view text) {
  size_t n = 0;
  for (const char c : text) n += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return n;
}

}  // namespace brim
