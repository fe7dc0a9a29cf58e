// SPDX-License-Identifier: Apache-2.0
#include "text/word_splitter.h"

#include <array>

#include "base/utf8.h"
#include "text/unicode/unicode.h"

namespace brim::text {
namespace {

// Python's \w and \s for str: isalnum() or "_", and isspace(), which includes U+001C to U+001F.
bool is_python_word(char32_t c) {
  if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  const unicode::Category category = unicode::category(c);
  return unicode::is_letter(category) || unicode::is_number(category);
}
bool is_python_space(char32_t c) { return (c >= 0x1C && c <= 0x1F) || unicode::is_white_space(c); }

}  // namespace

void split_words(std::string_view text, std::vector<SplitWord>& words) {
  words.clear();
  bool open = false;    // the last word may grow: it ends here, or before one hyphen
  bool joined = false;  // a hyphen follows it
  int32_t index = 0;
  for (size_t at = 0; at < text.size(); ++index) {
    const CodePoint c = decode_valid(text, at);
    const size_t begin = at;
    at += static_cast<size_t>(c.bytes);
    if (is_python_word(c.value)) {
      if (open && joined) words.pop_back();  // the hyphen belongs to the word
      if (open) {
        words.back().end = at;
        words.back().last = index + 1;
      } else {
        words.push_back({begin, at, index, index + 1});
      }
      open = true;
      joined = false;
    } else if (is_python_space(c.value)) {
      open = joined = false;
    } else {
      words.push_back({begin, at, index, index + 1});
      joined = open && !joined && c.value == '-';
      open = joined;
    }
  }
}

}  // namespace brim::text
