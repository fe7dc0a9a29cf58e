// SPDX-License-Identifier: Apache-2.0
#include "io/quote_text.h"

#include <fmt/format.h>

#include "base/utf8.h"

namespace brim::io {

std::string quote_text(std::string_view text, size_t max_bytes) {
  const bool cut = text.size() > max_bytes;
  std::string out = "'";
  for (const char c : replace_invalid_utf8(text.substr(0, max_bytes))) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F)
      out += fmt::format("\\x{:02x}", byte);
    else
      out += c;
  }
  out += cut ? "…'" : "'";
  return out;
}

}  // namespace brim::io
