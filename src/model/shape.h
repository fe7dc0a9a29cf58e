// SPDX-License-Identifier: Apache-2.0
// Shape of a model: the parts of config.json that planning and computing need. Does not include labels or tokenizer
// settings.
#pragma once
#include <cstdint>

#include "hub/hf_config.h"
#include "hub/lora_config.h"
#include "ops/distance_rows.h"
#include "ops/op.h"

namespace brim::model {

// Parameters that training does not change. `layers` includes the embeddings and everything that layers share.
struct Freeze {
  enum class Part : uint8_t { none, embeddings, layers, all_but_head };
  Part part = Part::none;
  int64_t layers = 0;  // number of lowest layers; only for Part::layers
  explicit operator bool() const { return part != Part::none; }
  bool operator==(const Freeze&) const = default;
};

struct ModelShape {
  hub::Family family = {};
  int64_t layers = 0, hidden = 0, heads = 0, ffn = 0;
  int64_t vocab = 0, positions = 0, types = 0;
  int64_t embedding = 0;         // width of the tables if it differs from the model's
  int64_t layer_groups = 0;      // number of shared parameter sets; 0: not shared
  int64_t relative_buckets = 0;  // rows of the attention bias table by distance; 0: none
  int64_t position_offset = 0;   // position of the first token: RoBERTa starts at padding_idx + 1
  int64_t padding_id = 0;
  int64_t sequence_classes = 0;  // 0: no such head
  int64_t token_classes = 0;
  bool multi_label = false;  // sigmoid instead of softmax
  bool regression = false;   // trained on numeric targets
  bool raw_scores = false;   // no activation: the head's value is the score
  ops::Activation activation = ops::Activation::gelu;
  float eps = 1e-12f;
  float hidden_dropout = 0.1f, attention_dropout = 0.1f, head_dropout = 0.1f;
  // ModernBERT only: rotary positions, local attention windows, gated feed-forward, optional biases.
  float rope_theta = 0, local_rope_theta = 0;
  int64_t window = 0;         // maximum distance between query and key in local layers
  uint64_t local_layers = 0;  // bit l: layer l is local
  bool gated = false;
  bool attention_bias = true, feed_forward_bias = true, norm_bias = true, head_bias = true;
  bool mean_pooling = false;  // classifier: mean of all tokens instead of the first token
  ops::Activation head_activation = ops::Activation::gelu;
  float feed_forward_dropout = 0;  // after the gate
  // DeBERTa only: attention terms by distance (span 0: none), and a convolution beside the first layer.
  ops::DistanceBuckets distances;
  bool distance_queries = false, distance_keys = false;  // terms of keys (p2c) and of queries (c2p)
  bool shared_distances = false;                         // projected by the matrices of queries and keys
  bool distance_norm = false;
  bool position_table = true;
  int64_t convolution = 0;  // width; 0: none
  ops::Activation convolution_activation = ops::Activation::tanh;
  float pooler_dropout = 0;  // before the sequence head's first matrix
  Freeze freeze;             // training only
  hub::LoraConfig lora;      // training only: adapters and head are trained, everything else is frozen
  // Scoring with an adapter whose products are not merged into the matrices: their largest rank (Param::low_rank).
  int64_t adapter_width = 0;
  int64_t word_width = 0;       // scoring words on a device: values per token of the result; 0: none
  bool shares_weights = false;  // with models that have other heads, so formats of matrices do not depend on the head

  bool number_targets() const { return multi_label || regression; }  // [B,K] f32 instead of classes
  int64_t head_size() const { return hidden / heads; }
  bool is_local(int64_t l) const { return (local_layers >> l & 1) != 0; }
  bool has_dropout() const {
    return hidden_dropout > 0 || attention_dropout > 0 || head_dropout > 0 || feed_forward_dropout > 0 ||
           pooler_dropout > 0 || (lora && lora.dropout > 0);
  }
  int64_t embedding_size() const { return embedding > 0 ? embedding : hidden; }
  int64_t max_tokens() const { return positions - position_offset; }  // longest sequence, special tokens included
  bool operator==(const ModelShape&) const = default;
};

// `head`: head of the directory (head_kind() of its weights). Throws bad_model if the model is not supported.
ModelShape shape_of(const hub::HfConfig& config, hub::HeadKind head);

ops::Activation activation_of(hub::HiddenAct act);

// A multiply-add counts as two. Nominal, as in the definition of MFU: every layer for every token. `sum_squares` is the
// sum of squared sequence lengths.
double forward_flops(const ModelShape& shape, double tokens, double sum_squares);

}  // namespace brim::model
