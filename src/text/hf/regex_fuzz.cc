// SPDX-License-Identifier: Apache-2.0
// Fuzz target: pattern, newline, text. A match must lie inside the text, on code point boundaries.
#include <cstdlib>

#include "base/utf8.h"
#include "text/hf/regex.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t line = input.find('\n');
  if (line == std::string_view::npos || size > 200) return 0;  // longer inputs only backtrack longer
  const auto regex = brim::text::Regex::compile(input.substr(0, line));
  if (!regex) return 0;
  const std::string text = brim::replace_invalid_utf8(input.substr(line + 1)).substr(0, 24);
  if (!brim::is_valid_utf8(text)) return 0;
  try {
    if (const auto match = regex->search(text, 0)) {
      if (match->begin > match->end || match->end > text.size()) std::abort();
      if (!brim::is_valid_utf8(text.substr(match->begin, match->end - match->begin))) std::abort();
    }
  } catch (const brim::Error& error) {
    if (error.code() != brim::ErrorCode::bad_model) std::abort();
  }
  return 0;
}
