// SPDX-License-Identifier: Apache-2.0
// Compiled form of a regex: character sets and the instructions that use them. A repeat of a single class is one
// instruction, so `\p{L}+` takes one stack frame.
#pragma once
#include <bitset>
#include <limits>
#include <utility>

#include "text/hf/regex.h"
#include "text/unicode/unicode.h"

namespace brim::text {

struct Regex::Program {
  static constexpr uint32_t kUnbounded = std::numeric_limits<uint32_t>::max();

  enum class Mode : uint8_t { greedy, lazy, possessive };
  enum class Look : uint8_t { ahead, not_ahead, behind, not_behind };
  enum class Anchor : uint8_t { text_begin, text_end, text_end_newline, line_begin, line_end, word, not_word };

  struct CharSet {
    bool negated = false, fold_case = false;
    uint32_t categories = 0;
    uint16_t flags = 0;             // any of these
    std::vector<uint16_t> without;  // or lacking one of these
    std::vector<std::pair<char32_t, char32_t>> ranges;
    std::vector<CharSet> nested;
    std::bitset<128> ascii;  // results for ASCII, filled by finish()

    bool plain_contains(char32_t c) const {
      const uint16_t p = unicode::properties(c);
      bool found = (categories >> (p & 31) & 1) != 0 || (p & flags) != 0;
      for (const uint16_t w : without) found = found || (p & w) == 0;
      for (const auto& [low, high] : ranges) found = found || (c >= low && c <= high);
      for (const CharSet& n : nested) found = found || n.contains(c);
      return found;
    }
    bool evaluate(char32_t c) const {
      bool found = plain_contains(c);
      if (!found && fold_case) {
        const char32_t f = fold(c);
        found = plain_contains(f) || (f >= 'a' && f <= 'z' && plain_contains(f - 32));
      }
      return found != negated;
    }
    void finish() {
      if (fold_case) {
        for (size_t i = 0, n = ranges.size(); i < n; ++i) {
          if (ranges[i].first == ranges[i].second) ranges.emplace_back(fold(ranges[i].first), fold(ranges[i].first));
        }
      }
      for (char32_t c = 0; c < 128; ++c) ascii[c] = evaluate(c);
    }
    bool contains(char32_t c) const { return c < 128 ? ascii[c] : evaluate(c); }

   private:
    static char32_t fold(char32_t c) {
      if (c == 0x17F) return 's';  // ſ
      char32_t lower[2];
      return unicode::to_lower(c, lower) == 1 ? lower[0] : c;
    }
  };

  struct Instruction {
    enum class Op : uint8_t { set, split, jump, loop, mark, progress, look, atomic, anchor, match } op;
    Mode mode = Mode::greedy;
    Look look = Look::ahead;
    Anchor anchor = Anchor::text_begin;
    uint32_t a = 0,
             b = 0;  // set: a. split: a first, then b. look, atomic: continue at a. mark, progress: slot a
    uint32_t min = 0, max = 0;
  };

  std::vector<CharSet> sets;
  std::vector<Instruction> code;
  uint32_t slots = 0;
};

}  // namespace brim::text
