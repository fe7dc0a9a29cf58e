// SPDX-License-Identifier: Apache-2.0
// Context for the blocks (model/blocks): stream, memory, parameters and a packed batch. The same code runs inference
// and training; on a null stream it records the required memory.
#pragma once
#include <span>

#include "base/error.h"
#include "device/stream.h"
#include "memory/allocator.h"
#include "model/params.h"
#include "ops/batch_view.h"
#include "ops/dropout.h"

namespace brim::model {

// Result of a forward pass.
enum class Output : uint8_t {
  sequence_logits,  // [B,K] f32
  sequence_scores,  // same after softmax (sigmoid for multi-label)
  token_logits,     // [T,K] f32
  token_scores,
  cls_hidden,   // [B,H] f32: hidden state of each first token
  mean_hidden,  // [B,H] f32: mean over each sequence
  hidden,       // [T,H] f32: all tokens
  // [T,Kt+K] f32, for a model with both heads: each token's scores and the sequence head's logits for it, which are
  // only meaningful in the row of a sequence's first token.
  token_scores_and_logits,
  word_scores,  // [T,H] activation type: all tokens, for a head that scores words; its results have word_width values
};
inline bool wants_first_tokens(const ModelShape& shape, Output output) {
  // With mean pooling, the last layer's queries are not split, so first tokens are gathered at the end.
  const bool reads_first =
      output == Output::cls_hidden || output == Output::sequence_logits || output == Output::sequence_scores;
  return reads_first && !shape.mean_pooling;
}
inline bool is_per_token(Output output) {
  return output == Output::token_logits || output == Output::token_scores || output == Output::hidden ||
         output == Output::token_scores_and_logits || output == Output::word_scores;
}
// Values per row of the result.
int64_t output_width(const ModelShape& shape, Output output);

// Resources of a pass. `threads`: maximum number of threads of an op on `stream`, each with its own scratch memory.
struct Exec {
  device::Stream& stream;
  memory::TensorAllocator& memory;
  tensor::DType activation = tensor::DType::f32;
  ops::Precision precision = ops::Precision::fp32;
  int threads = 1;
};

struct DropoutSettings {
  bool on = false;
  uint64_t seed = 0;  // the caller mixes in step and micro-batch
};

// Additional inputs of a training pass; null in inference.
struct Training {
  DropoutSettings dropout;
  tensor::TensorView sorted, sorted_positions;  // [T] i32 for embedding_grad
};

// Dropout sites; each site number has independent random values.
enum class DropoutSite : uint8_t { probabilities, attention_out, feed_forward_out, gate, distances, convolution };
inline constexpr uint32_t kEmbeddingSite = 1u << 20, kHeadInSite = kEmbeddingSite + 1,
                          kHeadOutSite = kEmbeddingSite + 2, kTokenHeadSite = kEmbeddingSite + 3,
                          kLoraSite = 1u << 21;  // plus the index of the matrix

// Hidden states. If the first reader computes a sum, its two terms are passed separately.
struct Hidden {
  tensor::TensorView x;             // [rows,H] in the activation type
  tensor::TensorView pending = {};  // [rows,H] to be added to x; empty: x is the value
  // f8e4m3 copies of the value, scaled for the matrix that reads it, or i8 codes; optional.
  tensor::TensorView narrow = {};   // [rows,H]
  tensor::TensorView columns = {};  // training: [H,fp8_columns(rows)], transposed
  tensor::TensorView scales = {};   // [rows] f32, of i8 codes
};

// Texts of one adapter in a batch for several adapters of one encoder. The ranges of a batch are adjacent and cover it.
struct AdapterRange {
  const Params* params = nullptr;
  int64_t sequence = 0, end_sequence = 0;
  int64_t row = 0, end_row = 0;  // tokens
};
using AdapterRanges = std::span<const AdapterRange>;

struct Pass {
  Exec& e;
  const ModelShape& s;
  const Params& params;
  const ops::BatchView& batch;
  const Training* training = nullptr;
  AdapterRanges adapters = {};  // inference; empty: `params` apply to all rows

  const Param& param(int64_t index) const { return params[static_cast<size_t>(index)]; }
  bool trains_fp8(int64_t index) const { return training != nullptr && index >= 0 && param(index).fp8; }
  bool on_cpu() const { return target_kind(e.stream) == device::DeviceKind::cpu; }
  // Whether a matrix reads int8 rows that the op before it may write. Adapters read the values themselves.
  bool reads_codes(int64_t index) const {
    if (training != nullptr || index < 0 || on_cpu() || s.adapter_width > 0) return false;
    const Param& w = param(index);
    return (w.first.N > 0 ? w.first : w.matrix).precision == ops::Precision::int8;
  }

  // Calls part(params, begin, end) for the rows of each adapter in `x`, which has one row per token or per sequence.
  // All parts use the same memory; outputs must be allocated before.
  template <class Part>
  void for_each_adapter(const tensor::TensorView& x, Part&& part) const {
    const int64_t rows = x.rows();
    if (adapters.empty()) {
      part(params, int64_t{0}, rows);
      e.memory.extend(x);  // in plans
      return;
    }
    const bool tokens = rows == batch.T;
    BRIM_CHECK(tokens || rows == batch.B, "{} rows, the batch has {} tokens and {} sequences", rows, batch.T, batch.B);
    const size_t start = e.memory.position();
    for (const AdapterRange& range : adapters) {
      e.memory.rewind(start);
      part(*range.params, tokens ? range.row : range.sequence, tokens ? range.end_row : range.end_sequence);
    }
  }

  tensor::TensorView activations(int64_t rows, int64_t cols) const {
    return e.memory.allocate(memory::Tag::activations, e.activation, {rows, cols});
  }
  // For tensors between two products of a layer: narrower than the residual path if the next product rounds its input
  // anyway.
  tensor::TensorView between(int64_t rows, int64_t cols) const {
    // An adapter adds to the result of a product, which requires the type of the residual path.
    const bool adapted = s.adapter_width > 0 || s.lora;
    const bool rounds = training == nullptr && on_cpu() && e.precision != ops::Precision::fp32 && !adapted;
    return e.memory.allocate(memory::Tag::activations, rounds ? tensor::DType::bf16 : e.activation, {rows, cols});
  }
  tensor::TensorView narrow(int64_t rows, int64_t cols) const {
    return e.memory.allocate(memory::Tag::activations, tensor::DType::f8e4m3, {rows, cols});
  }
  tensor::TensorView codes(int64_t rows, int64_t cols) const {
    return e.memory.allocate(memory::Tag::activations, tensor::DType::i8, {rows, cols});
  }
  tensor::TensorView f32(std::initializer_list<int64_t> dims) const {
    return e.memory.allocate(memory::Tag::activations, tensor::DType::f32, dims);
  }

  // Disabled in inference.
  ops::Dropout dropout(float probability, uint32_t site) const {
    ops::Dropout d;
    if (training == nullptr) return d;
    if (training->dropout.on) d.probability = probability;
    d.seed = training->dropout.seed;
    d.site = site;
    return d;
  }
  ops::Dropout layer_dropout(int64_t l, DropoutSite site, float probability) const {
    constexpr uint32_t kSites = 8;
    return dropout(probability, static_cast<uint32_t>(l) * kSites + static_cast<uint32_t>(site));
  }
  ops::Dropout layer_dropout(int64_t l, DropoutSite site) const {
    return layer_dropout(l, site, site == DropoutSite::probabilities ? s.attention_dropout : s.hidden_dropout);
  }
};

}  // namespace brim::model
