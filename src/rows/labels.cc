// SPDX-License-Identifier: Apache-2.0
#include "rows/labels.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "io/quote_text.h"

namespace brim::rows {
namespace {

bool is_word(std::string_view text, std::string_view lower) {
  return std::equal(text.begin(), text.end(), lower.begin(), lower.end(),
                    [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b; });
}

std::string lower_case(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
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
  fail(ErrorCode::bad_data, "{}: column {}: expected 0, 1, true or false, found '{}'", where, column, value);
}

double read_number(std::string_view value, const std::string& where) {
  const std::string text(value);
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (text.empty() || end != text.c_str() + text.size() || !std::isfinite(number))
    fail(ErrorCode::bad_data, "{}: label {} is not a number; a model with one output requires numbers", where,
         io::quote_text(text));
  return number;
}

std::optional<int32_t> find_label(const std::vector<std::string>& labels, std::string_view text) {
  for (size_t i = 0; i < labels.size(); ++i)
    if (labels[i] == text) return static_cast<int32_t>(i);
  for (size_t i = 0; i < labels.size(); ++i)
    if (lower_case(labels[i]) == lower_case(text)) return static_cast<int32_t>(i);
  std::string_view digits = text;
  if (digits.starts_with("LABEL_")) digits.remove_prefix(6);
  int32_t number = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error == std::errc() && end == digits.data() + digits.size() && number >= 0 &&
      number < static_cast<int32_t>(labels.size()))
    return number;
  return std::nullopt;
}

}  // namespace brim::rows
