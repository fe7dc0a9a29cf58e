// SPDX-License-Identifier: Apache-2.0
// A model's shape: all that planning and computing need to know of a config.json.
#pragma once
#include <cstdint>

#include "hub/hf_config.h"
#include "ops/op.h"

namespace brim::model {

struct ModelShape {
  hub::Family family = hub::Family::bert;
  int64_t layers = 0, hidden = 0, heads = 0, ffn = 0;
  int64_t vocab = 0, positions = 0, types = 0;
  int64_t embedding = 0;         // width of the tables where it is not the model's
  int64_t relative_buckets = 0;  // rows of attention's table of biases by distance; 0: none
  int64_t position_offset = 0;   // row of the first token's position: RoBERTa starts at padding_idx + 1
  int64_t padding_id = 0;
  int64_t sequence_classes = 0;  // 0: no such head
  int64_t token_classes = 0;
  bool multi_label = false;  // sigmoid instead of softmax
  bool raw_scores = false;   // neither: the head's value is the score
  ops::Activation activation = ops::Activation::gelu;
  float eps = 1e-12f;
  float hidden_dropout = 0.1f, attention_dropout = 0.1f, head_dropout = 0.1f;

  int64_t head_size() const { return hidden / heads; }
  int64_t embedding_size() const { return embedding > 0 ? embedding : hidden; }
  int64_t max_tokens() const { return positions - position_offset; }  // longest sequence, special tokens included
  bool operator==(const ModelShape&) const = default;
};

// `head` says which head the directory has (head_kind() of its weights); throws bad_model for what Brim cannot compute.
ModelShape shape_of(const hub::HfConfig& config, hub::HeadKind head);

// Multiply-adds count as two. Nominal: every layer for every token, as MFU is defined; `sum_squares` is the sum of
// squared sequence lengths.
double forward_flops(const ModelShape& shape, double tokens, double sum_squares);

}  // namespace brim::model
