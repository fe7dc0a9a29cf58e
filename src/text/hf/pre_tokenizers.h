// SPDX-License-Identifier: Apache-2.0
// The two pre-tokenizers that the fast paths recognize. The others are private to their factory (components.h).
#pragma once
#include "text/pipeline.h"

namespace brim::text {

// Splits at white space, which is dropped, and around each punctuation character.
class BertPreTokenizer : public PreTokenizer {
 public:
  void apply(PreTokenized& text) const override;
};

// GPT-2: splits into words (if use_regex) and maps each byte to its code point.
class ByteLevelPreTokenizer : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(bool add_prefix_space, bool use_regex)
      : add_prefix_space_(add_prefix_space), use_regex_(use_regex) {}
  void apply(PreTokenized& text) const override;
  bool add_prefix_space() const { return add_prefix_space_; }
  bool use_regex() const { return use_regex_; }

 private:
  bool add_prefix_space_, use_regex_;
};

}  // namespace brim::text
