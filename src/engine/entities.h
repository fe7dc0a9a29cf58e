// SPDX-License-Identifier: Apache-2.0
// Groups token scores into entities: sub-words are joined to words, `Aggregation` selects the tag of a word from its
// tokens, and neighbouring words of one type form an entity (B- starts a new one), like the Hugging Face strategies of
// the same names; with `none` tokens are not grouped. Word boundaries depend on the kind of tokenizer only, never on
// the text: WordPiece marks continuations (##), so a token without the mark begins a word, as in Hugging Face
// pipelines. Other tokenizers mark spaces: white space separates words, and punctuation at a word's edges and Chinese
// characters are separate words, as in CoNLL files. Does not compute scores.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"

namespace brim::engine {

// One tag of a tag set: "B-PER" (or S-, U-) begins PER, "I-PER" (or E-, L-) continues it; "O" and labels without a
// prefix use their name as the type.
struct TagParts {
  bool outside, begin;
  std::string_view type;
};
TagParts split_tag(std::string_view tag);

struct EncodedWord {
  size_t token;        // first token
  int32_t begin, end;  // code points of the text, without surrounding white space
  size_t last;         // last token
};
// Special tokens and tokens that contain only white space belong to no word. `text` is valid UTF-8.
std::vector<EncodedWord> encoded_words(std::string_view text, const text::Encoding& encoding,
                                       const std::string& tokenizer_kind);

// `scores` is [tokens, K] for the tokens of `encoding`; scores of special tokens are ignored. `outside` keeps tokens
// and words tagged O; neighbouring words form one entity.
std::vector<Entity> group_entities(std::string_view text, const text::Encoding& encoding,
                                   const std::string& tokenizer_kind, const float* scores,
                                   const std::vector<std::string>& labels, Aggregation aggregation = Aggregation::first,
                                   bool outside = false);

}  // namespace brim::engine
