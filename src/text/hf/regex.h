// SPDX-License-Identifier: Apache-2.0
// Regular expressions for Split and Replace in tokenizer.json: Perl-like, leftmost, backtracking, over code points.
// Supports literals, classes, \p{…}, \s \d \w, groups, alternation, greedy, lazy and possessive repeats, look-ahead,
// look-behind over one code point, (?i:…) and anchors.
// Captures, back-references and scripts are rejected.
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
  // The error names the unsupported construct and its position in the pattern.
  static Result<Regex> compile(std::string_view pattern);

  // The leftmost match in valid UTF-8 that starts at or after `from`. Throws Error(bad_model) if the pattern exceeds
  // the backtracking limit.
  std::optional<RegexMatch> search(std::string_view text, size_t from) const;

  struct Program;

 private:
  explicit Regex(std::shared_ptr<const Program> program) : program_(std::move(program)) {}
  std::shared_ptr<const Program> program_;
};

}  // namespace brim::text
