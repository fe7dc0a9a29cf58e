// SPDX-License-Identifier: Apache-2.0
#include "io/labels.h"

#include <algorithm>

#include "base/error.h"

namespace brim {
namespace {

bool is_word(std::string_view text, std::string_view lower) {
  return std::equal(text.begin(), text.end(), lower.begin(), lower.end(), [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b; });
}

}  // namespace

std::vector<std::string> split_names(std::string_view text, char separator) {
  std::vector<std::string> parts;
  size_t at = 0;
  while (at <= text.size()) {
    const size_t end = std::min(text.find(separator, at), text.size());
    if (end > at) parts.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

bool read_mark(std::string_view value, const std::string& where, std::string_view column) {
  if (value == "1" || is_word(value, "true")) return true;
  if (value == "0" || is_word(value, "false")) return false;
  fail(ErrorCode::bad_data, "{}: column {} is '{}', wanted 0 or 1 (or true, false)", where, column, value);
}

}  // namespace brim
