// SPDX-License-Identifier: Apache-2.0
// From token scores to entities: sub-words join their word, whose first token decides its tag; neighbouring words of
// one type become one entity (B- starts anew). The words and offsets are those of Hugging Face's pipelines with the
// "first" strategy.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"

namespace brim {

// One tag of a tag set: "B-PER" is begin of PER, "O" and labels without prefix keep their name as the type.
struct TagParts {
  bool outside, begin;
  std::string_view type;
};
TagParts split_tag(std::string_view tag);

// Code point offsets of where each byte of `text` begins … used to slice words.
std::vector<size_t> code_point_starts(std::string_view text);

// `scores` is [tokens, K] for the tokens of `encoding` (special ones included; theirs are ignored).
std::vector<Entity> group_entities(std::string_view text, const Encoding& encoding, const float* scores,
                                   const std::vector<std::string>& labels);

// Index of the first token of each word; special tokens (offset 0,0) belong to none.
std::vector<size_t> word_starts(std::string_view text, const Encoding& encoding);

}  // namespace brim
