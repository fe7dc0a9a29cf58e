// SPDX-License-Identifier: Apache-2.0
#include "base/escape.h"

#include <fmt/format.h>

#include "base/utf8.h"

namespace brim {
namespace {

bool is_control(char32_t c) {
  if (c < 0x20) return c != '\n' && c != '\t';
  return (c >= 0x7F && c <= 0x9F) || c == 0x061C || c == 0x200E || c == 0x200F || (c >= 0x202A && c <= 0x202E) ||
         (c >= 0x2066 && c <= 0x2069);
}

}  // namespace

std::string escape_controls(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    for (const size_t end = at + valid_utf8_prefix(text.substr(at)); at < end;) {
      const CodePoint c = decode_valid(text, at);
      if (!is_control(c.value))
        out.append(text, at, static_cast<size_t>(c.bytes));
      else
        out += c.value < 0x80 ? fmt::format("\\x{:02x}", static_cast<uint32_t>(c.value))
                              : fmt::format("\\u{:04x}", static_cast<uint32_t>(c.value));
      at += static_cast<size_t>(c.bytes);
    }
    if (at < text.size())
      out += fmt::format("\\x{:02x}", static_cast<unsigned>(static_cast<unsigned char>(text[at++])));
  }
  return out;
}

}  // namespace brim
