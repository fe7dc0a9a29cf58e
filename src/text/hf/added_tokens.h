// SPDX-License-Identifier: Apache-2.0
// Tokens that are matched in the text before the model runs ("[MASK]", "<mask>", user-defined words). Some are matched
// in the original text, others in the normalized text.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/pipeline.h"

namespace brim::text {

// Matcher for one of the two kinds. Finds the leftmost longest token repeatedly.
class AddedTokenMatcher {
 public:
  // A range of the text: an added token (id >= 0), or the text between two of them (id -1).
  struct Stretch {
    int32_t id;
    size_t begin, end;
  };

  // `contents` holds the strings to match; for normalized tokens they differ from the token's content.
  void build(const std::vector<AddedToken>& tokens, const std::vector<std::string>& contents);
  bool empty() const { return tokens_.empty(); }

  // Fast check for the common case: false if no byte of `text` can start a token.
  bool may_match(std::string_view text) const;
  // Splits `text` into consecutive ranges that cover it. An empty text has none.
  void split(std::string_view text, std::vector<Stretch>& out) const;

 private:
  struct Entry {
    std::string content;
    AddedToken token;
  };
  const Entry* longest_at(std::string_view text, size_t at) const;
  std::vector<Entry> tokens_;       // by first byte, longest first
  std::vector<uint32_t> by_first_;  // 257 bounds into tokens_
  std::string first_bytes_;         // distinct first bytes
  bool starts_[256] = {};
};

}  // namespace brim::text
