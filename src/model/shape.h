// SPDX-License-Identifier: Apache-2.0
// A model's shape: all that planning and computing need to know of a config.json.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "hub/hf_config.h"
#include "ops/op.h"

namespace brim::model {

struct ModelShape {
  hub::Family family = hub::Family::bert;
  int64_t layers = 0, hidden = 0, heads = 0, ffn = 0;
  int64_t vocab = 0, positions = 0, types = 0;
  int64_t position_offset = 0;  // row of the first token's position: RoBERTa starts at padding_idx + 1
  int64_t padding_id = 0;
  int64_t sequence_classes = 0;  // 0: no such head
  int64_t token_classes = 0;
  bool multi_label = false;  // sigmoid instead of softmax
  ops::Activation activation = ops::Activation::gelu;
  float eps = 1e-12f;
  float hidden_dropout = 0.1f, attention_dropout = 0.1f, head_dropout = 0.1f;

  int64_t head_size() const { return hidden / heads; }
  int64_t max_tokens() const { return positions - position_offset; }  // longest sequence, special tokens included
};

// `head` says which head the directory has (head_kind() of its weights); throws bad_model for what Brim cannot compute.
ModelShape shape_of(const hub::HfConfig& config, hub::HeadKind head);

// Multiply-adds count as two. Nominal: every layer for every token, as MFU is defined; `sum_squares` is the sum of
// squared sequence lengths.
double forward_flops(const ModelShape& shape, double tokens, double sum_squares);

enum class ParamKind : uint8_t { embedding, matrix, bias, norm };

// One entry of a parameter slab: one or several tensors of the file, stacked by rows (q, k and v are one matrix here).
struct ParamSpec {
  std::vector<std::string> names;  // full Hugging Face names, e.g. bert.encoder.layer.0.attention.self.query.weight
  int64_t rows = 0;                // of all names together
  int64_t cols = 0;                // 0: a vector
  ParamKind kind = ParamKind::matrix;
  bool head = false;  // of a task head: may be absent when a new head is to be trained
  int64_t elements() const { return rows * (cols > 0 ? cols : 1); }
};

// Places of the parameters in the list below.
struct ParamIndex {
  enum Embedding { word, position, type, embed_gamma, embed_beta, first_layer };
  // Within a layer, from its first entry.
  enum Layer {
    qkv_w,
    qkv_b,
    out_w,
    out_b,
    norm1_gamma,
    norm1_beta,
    ffn1_w,
    ffn1_b,
    ffn2_w,
    ffn2_b,
    norm2_gamma,
    norm2_beta,
    per_layer
  };
  static int64_t layer(int64_t l) { return first_layer + l * per_layer; }
};

// All parameters in slab order: embeddings, layers, sequence head (dense, out), token head. Empty entries (no type
// table, no head) have rows = 0, so that places never move.
std::vector<ParamSpec> model_params(const ModelShape& shape);
struct HeadIndex {
  int64_t dense_w, dense_b, sequence_w, sequence_b, token_w, token_b;
};
HeadIndex head_index(const ModelShape& shape);
int64_t param_count(const ModelShape& shape);
// Activation between the sequence head's two matrices.
ops::Activation head_activation(hub::Family family);

}  // namespace brim::model
