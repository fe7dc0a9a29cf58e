// SPDX-License-Identifier: Apache-2.0
// Ids in one pass over the bytes, for the two pipelines that most models use: BERT's (normalizer, pre-tokenizer and
// WordPiece) and RoBERTa's (byte-level BPE). Equal to the general way, token for token.
#pragma once
#include <memory>
#include <string_view>
#include <vector>

#include "text/pipeline.h"
#include "text/scratch.h"

namespace brim {

class FastPath {
 public:
  virtual ~FastPath() = default;
  // Appends the ids of a part of Scratch::input.
  virtual void encode(std::string_view part, Scratch& scratch, std::vector<int32_t>& out) const = 0;
};

// nullptr if the parts are of another kind. The parts must outlive it.
std::unique_ptr<FastPath> make_fast_path(const PipelineParts& parts);

}  // namespace brim
