// SPDX-License-Identifier: Apache-2.0
// What blocks (model/blocks) run on: a stream, memory, parameters and a packed batch. The same code scores and trains;
// on a null stream it records the memory it needs.
#pragma once
#include "device/stream.h"
#include "memory/allocator.h"
#include "model/params.h"
#include "ops/batch_view.h"
#include "ops/dropout.h"

namespace brim::model {

// What a forward pass is asked for.
enum class Output : uint8_t {
  sequence_logits,  // [B,K] f32
  sequence_scores,  // the same after softmax (sigmoid for multi-label)
  token_logits,     // [T,K] f32
  token_scores,
  cls_hidden,   // [B,H] f32: hidden state of each first token
  mean_hidden,  // [B,H] f32: mean over each sequence
  hidden,       // [T,H] f32: every token's
  // [T,Kt+K] f32, of a model with both heads: a token's scores, and what the sequence head gives for it as its
  // logits, which count in the row of a sequence's first token.
  token_scores_and_logits,
};
inline bool wants_first_tokens(const ModelShape& shape, Output output) {
  // A model that pools means keeps its last layer's queries with the rest, so its first tokens are picked at the end.
  const bool reads_first =
      output == Output::cls_hidden || output == Output::sequence_logits || output == Output::sequence_scores;
  return reads_first && !shape.mean_pooling;
}
inline bool is_per_token(Output output) {
  return output == Output::token_logits || output == Output::token_scores || output == Output::hidden ||
         output == Output::token_scores_and_logits;
}
// Values per row of a result.
int64_t output_width(const ModelShape& shape, Output output);

// Everything a pass runs on. `threads` is how many threads an op on `stream` may use (scratch counts once for each).
struct Exec {
  device::Stream& stream;
  memory::TensorAllocator& memory;
  tensor::DType activation = tensor::DType::f32;
  ops::Precision precision = ops::Precision::fp32;
  int threads = 1;
};

struct DropoutSettings {
  bool on = false;
  uint64_t seed = 0;  // mixed with step and micro-batch by the caller
};

// Training's side of a pass; scoring has none.
struct Training {
  DropoutSettings dropout;
  tensor::TensorView sorted, sorted_positions;  // [T] i32 for embedding_grad
};

// Places where dropout strikes; the site number makes each one's randomness its own.
enum class DropoutPlace : uint8_t { probabilities, attention_out, feed_forward_out, gate };
inline constexpr uint32_t kEmbeddingSite = 1u << 20, kHeadInSite = kEmbeddingSite + 1,
                          kHeadOutSite = kEmbeddingSite + 2, kTokenHeadSite = kEmbeddingSite + 3;

// Hidden states on their way through a model. A sum that its first reader makes is on its way in two parts.
struct Hidden {
  tensor::TensorView x;             // [rows,H] in the activation type
  tensor::TensorView pending = {};  // [rows,H] to be added to x; empty: x is the value
  // f8e4m3 copies of the value, scaled for the matrix that reads it; may be empty.
  tensor::TensorView narrow = {};   // [rows,H]
  tensor::TensorView columns = {};  // training: [H,fp8_columns(rows)], turned
};

struct Pass {
  Exec& e;
  const ModelShape& s;
  const Params& params;
  const ops::BatchView& batch;
  const Training* training = nullptr;

  const Param& param(int64_t place) const { return params[static_cast<size_t>(place)]; }
  bool trains_fp8(int64_t place) const { return training != nullptr && place >= 0 && param(place).fp8; }
  bool on_cpu() const { return target_kind(e.stream) == device::DeviceKind::cpu; }

  tensor::TensorView activations(int64_t rows, int64_t cols) const {
    return e.memory.allocate(memory::Tag::activations, e.activation, {rows, cols});
  }
  // Between two products of a layer: narrower than the residual path where the next product would round anyway.
  tensor::TensorView between(int64_t rows, int64_t cols) const {
    const bool rounds = training == nullptr && on_cpu() && e.precision != ops::Precision::fp32;
    return e.memory.allocate(memory::Tag::activations, rounds ? tensor::DType::bf16 : e.activation, {rows, cols});
  }
  tensor::TensorView narrow(int64_t rows, int64_t cols) const {
    return e.memory.allocate(memory::Tag::activations, tensor::DType::f8e4m3, {rows, cols});
  }
  tensor::TensorView f32(std::initializer_list<int64_t> dims) const {
    return e.memory.allocate(memory::Tag::activations, tensor::DType::f32, dims);
  }

  // Off when scoring.
  ops::Dropout dropout(float probability, uint32_t site) const {
    ops::Dropout d;
    if (training == nullptr) return d;
    if (training->dropout.on) d.probability = probability;
    d.seed = training->dropout.seed;
    d.site = site;
    return d;
  }
  ops::Dropout layer_dropout(int64_t l, DropoutPlace place, float probability) const {
    constexpr uint32_t kPlaces = 8;
    return dropout(probability, static_cast<uint32_t>(l) * kPlaces + static_cast<uint32_t>(place));
  }
  ops::Dropout layer_dropout(int64_t l, DropoutPlace place) const {
    return layer_dropout(l, place, place == DropoutPlace::probabilities ? s.attention_dropout : s.hidden_dropout);
  }
};

}  // namespace brim::model
