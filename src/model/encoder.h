// SPDX-License-Identifier: Apache-2.0
// The encoder's forward pass for scoring, written once for every backend: packed tokens in, logits or hidden states
// out. On a null stream the same code records the memory it needs. Training's forward and backward are in
// training_pass.h.
#pragma once
#include "memory/allocator.h"
#include "model/params.h"
#include "ops/batch_view.h"

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
};

// Everything a pass runs on. `threads` is how many threads an op on `stream` may use (scratch counts once for each).
struct Exec {
  device::Stream& stream;
  memory::TensorAllocator& memory;
  tensor::DType activation = tensor::DType::f32;
  ops::Precision precision = ops::Precision::fp32;
  int threads = 1;
};

// The whole pass, op by op. The result is kept to the end of the pass.
tensor::TensorView forward(Exec& exec, const ModelShape& shape, const Params& params, const ops::BatchView& batch,
                           Output output);

// Hidden states on their way through the layers: in fp8 a narrow copy of them, made by the norm, feeds the products.
struct Hidden {
  tensor::TensorView wide;         // [T,H] in the activation type
  tensor::TensorView narrow = {};  // [T,H] f8e4m3, scaled for the layer that reads it; empty in other precisions
};

// Its parts, for drivers that order the work themselves (forward_runner.h).
void embed(Exec& exec, const ModelShape& shape, const Params& params, const ops::BatchView& batch, const Hidden& y);
// x becomes the layer's output in place, its narrow copy scaled for the next layer's input (empty after the last).
void forward_layer(Exec& exec, const ModelShape& shape, const Params& params, int64_t l, const ops::BatchView& batch,
                   const Hidden& x);
// The last layer when only first tokens matter: y [B,H].
void forward_last_layer_first_tokens(Exec& exec, const ModelShape& shape, const Params& params,
                                     const ops::BatchView& batch, const Hidden& x, const tensor::TensorView& y);
// From hidden states to what was asked. `x` is [T,H], or [B,H] when first_tokens.
tensor::TensorView finish(Exec& exec, const ModelShape& shape, const Params& params, const ops::BatchView& batch,
                          const tensor::TensorView& x, bool first_tokens, Output output);
inline bool wants_first_tokens(Output output) {
  return output == Output::sequence_logits || output == Output::sequence_scores || output == Output::cls_hidden;
}
inline bool is_per_token(Output output) {
  return output == Output::token_logits || output == Output::token_scores || output == Output::hidden;
}
// Values per row of a result.
int64_t output_width(const ModelShape& shape, Output output);

// Shapes without bytes, for planning: views that point nowhere real but have the right sizes.
Params describe_weights(const ModelShape& shape, ops::Precision precision, device::DeviceKind target, device::Isa isa);
// A batch of that size as planning needs it (made-up addresses).
ops::BatchView describe_batch(int64_t tokens, int64_t sequences, int64_t longest);

}  // namespace brim::model
