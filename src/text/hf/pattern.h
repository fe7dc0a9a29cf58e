// SPDX-License-Identifier: Apache-2.0
// The "pattern" of Split and Replace in tokenizer.json: {"String": …} or {"Regex": …}.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "text/hf/regex.h"

namespace brim::text {

class JsonValue;

class Pattern {
 public:
  explicit Pattern(std::string literal) : literal_(std::move(literal)) {}
  explicit Pattern(Regex regex, std::string source) : literal_(std::move(source)), regex_(std::move(regex)) {}

  // Calls found(begin, end) for each match, left to right, not overlapping.
  void for_each_match(std::string_view text, const std::function<void(size_t, size_t)>& found) const;
  bool is_regex() const { return regex_.has_value(); }
  const std::string& source() const { return literal_; }

 private:
  std::string literal_;  // or the source of the regular expression
  std::optional<Regex> regex_;
};

Pattern read_pattern(const JsonValue& json);

}  // namespace brim::text
