// SPDX-License-Identifier: Apache-2.0
// From token scores to entities: sub-words join their word, whose tokens decide its tag as `Aggregation` says, and
// neighbouring words of one type become one entity (B- starts anew), as Hugging Face's strategies of these names do;
// without one (none) tokens stay by themselves.
// What a word is depends on the tokenizer's kind alone, never on the text: WordPiece marks continuations (##), so a
// token without the mark begins a word, as in Hugging Face's pipelines. Other tokenizers mark spaces: there white space
// separates words, and as CoNLL files write them, punctuation at a word's edges and Chinese characters are words of
// their own.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"

namespace brim::engine {

// One tag of a tag set: "B-PER" (or S-, U-) is begin of PER, "I-PER" (or E-, L-) goes on with it, "O" and labels
// without prefix keep their name as the type.
struct TagParts {
  bool outside, begin;
  std::string_view type;
};
TagParts split_tag(std::string_view tag);

struct EncodedWord {
  size_t token;        // its first
  int32_t begin, end;  // code points of the text, without white space around
  size_t last;         // its last token
};
// Special tokens and tokens that hold white space alone belong to no word. `text` is valid UTF-8.
std::vector<EncodedWord> encoded_words(std::string_view text, const text::Encoding& encoding,
                                       const std::string& tokenizer_kind);

// `scores` is [tokens, K] for the tokens of `encoding` (special ones included; theirs are ignored).
std::vector<Entity> group_entities(std::string_view text, const text::Encoding& encoding,
                                   const std::string& tokenizer_kind, const float* scores,
                                   const std::vector<std::string>& labels,
                                   Aggregation aggregation = Aggregation::first);

}  // namespace brim::engine
