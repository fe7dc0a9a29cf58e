// SPDX-License-Identifier: Apache-2.0
// The regular expressions tokenizer.json uses in Split and Replace: Perl-like, leftmost, backtracking, over code
// points. Literals, classes, \p{…}, \s \d \w, groups, alternation, greedy, lazy and possessive repeats, look-ahead,
// look-behind of one code point, (?i:…), anchors. No captures, back-references or scripts: a pattern that uses them is
// refused.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace brim::text {

struct RegexMatch {
  size_t begin, end;
};

class Regex {
 public:
  // The error says what is not understood and where in the pattern.
  static Result<Regex> compile(std::string_view pattern);

  // The leftmost match in valid UTF-8 that starts at or after `from`. Throws Error(bad_model) when a pattern backtracks
  // without end.
  std::optional<RegexMatch> search(std::string_view text, size_t from) const;

  struct Program;

 private:
  explicit Regex(std::shared_ptr<const Program> program) : program_(std::move(program)) {}
  std::shared_ptr<const Program> program_;
};

}  // namespace brim::text
