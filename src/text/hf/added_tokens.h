// SPDX-License-Identifier: Apache-2.0
// Tokens that are looked for in the text itself before the model sees it ("[MASK]", "<mask>", a user's own words). Some
// are matched in the text as given, some in the normalized text.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/pipeline.h"

namespace brim::text {

// One of the two kinds. Finds the leftmost longest token, again and again.
class AddedTokenMatcher {
 public:
  // A stretch of the text: an added token (id >= 0), or what lies between two (id -1).
  struct Stretch {
    int32_t id;
    size_t begin, end;
  };

  // `contents` has what to look for, which for normalized tokens is not their own content.
  void build(const std::vector<AddedToken>& tokens, const std::vector<std::string>& contents);
  bool empty() const { return tokens_.empty(); }

  // False if no byte of `text` can start a token: the common case, answered fast.
  bool may_match(std::string_view text) const;
  // Cuts `text` into stretches that cover it in order. An empty text has none.
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
