// SPDX-License-Identifier: Apache-2.0
#include "model/encoder.h"

#include "ops/attention.h"
#include "ops/embedding.h"
#include "ops/layer_norm.h"
#include "ops/rows.h"

namespace brim {
namespace {

TensorView activations(Exec& e, int64_t rows, int64_t cols) { return e.memory.allocate(Tag::activations, e.activation, {rows, cols}); }

void apply_linear(Exec& e, const TensorView& x, const LinearWeight& w, const TensorView& bias, const TensorView& y,
                  Activation activation = Activation::none, const TensorView& residual = {}) {
  LinearArgs args{.x = x, .w = w, .bias = bias, .residual = residual, .y = y};
  args.activation = activation;
  args.scratch = e.memory.scratch(linear_scratch_bytes(e.stream, x.rows(), w.N, w.K, w.precision, e.threads));
  linear(e.stream, args);
}

// y = LN(x W + b + residual). The CPU adds the residual while the product is in registers; on the GPU the norm reads it,
// because a residual in cuBLASLt's epilogue costs the product what it saves the norm.
void project_and_norm(Exec& e, const ModelShape& s, const TensorView& x, const LinearWeight& w, const TensorView& bias,
                      const TensorView& residual, const TensorView& gamma, const TensorView& beta, const TensorView& y) {
  const bool in_product = target_kind(e.stream) == DeviceKind::cpu;
  const TensorView product = activations(e, x.rows(), w.N);
  apply_linear(e, x, w, bias, product, Activation::none, in_product ? residual : TensorView());
  LayerNormArgs norm{.x = product, .residual = in_product ? TensorView() : residual, .gamma = gamma, .beta = beta, .y = y};
  norm.eps = s.eps;
  layer_norm(e.stream, norm);
}

// The feed-forward half of a layer: x [rows,H] to y (may be x).
void feed_forward(Exec& e, const ModelShape& s, const LayerWeights& w, const TensorView& x, const TensorView& y) {
  const TensorView h = activations(e, x.rows(), s.ffn);
  apply_linear(e, x, w.ffn1, w.ffn1_bias, h, s.activation);
  project_and_norm(e, s, h, w.ffn2, w.ffn2_bias, x, w.norm2_gamma, w.norm2_beta, y);
}

void attend(Exec& e, const ModelShape& s, const BatchView& batch, const TensorView& q, const TensorView& k, const TensorView& v,
            const TensorView& out, bool first_query_only) {
  AttentionArgs args{.q = q, .k = k, .v = v, .out = out, .batch = batch};
  args.first_query_only = first_query_only;
  args.heads = s.heads;
  args.precision = e.precision;
  args.scratch = e.memory.scratch(attention_scratch_bytes(e.stream, batch.T, batch.S, s.hidden, s.heads, e.precision, e.threads));
  attention(e.stream, args);
}

}  // namespace

TensorView embed(Exec& e, const ModelShape& s, const EncoderWeights& w, const BatchView& batch, const TensorView& y) {
  EmbeddingArgs args{.batch = batch, .word = w.word, .position = w.position, .type = w.type, .gamma = w.norm_gamma, .beta = w.norm_beta, .y = y};
  args.eps = s.eps;
  embedding(e.stream, args);
  return y;
}

void forward_layer(Exec& e, const ModelShape& s, const LayerWeights& w, const BatchView& batch, const TensorView& x) {
  const int64_t H = s.hidden;
  const TensorView qkv = activations(e, batch.T, 3 * H);
  if (w.qkv.N > 0) {
    apply_linear(e, x, w.qkv, w.qkv_bias, qkv);
  } else {
    apply_linear(e, x, w.q, w.qkv_bias.slice_rows(0, H), qkv.slice_cols(0, H));
    apply_linear(e, x, w.kv, w.qkv_bias.slice_rows(H, 3 * H), qkv.slice_cols(H, 3 * H));
  }
  const TensorView context = activations(e, batch.T, H);
  attend(e, s, batch, qkv.slice_cols(0, H), qkv.slice_cols(H, 2 * H), qkv.slice_cols(2 * H, 3 * H), context, false);
  const TensorView attended = activations(e, batch.T, H);
  project_and_norm(e, s, context, w.out, w.out_bias, x, w.norm1_gamma, w.norm1_beta, attended);
  feed_forward(e, s, w, attended, x);
}

void forward_last_layer_first_tokens(Exec& e, const ModelShape& s, const LayerWeights& w, const BatchView& batch, const TensorView& x,
                                     const TensorView& y) {
  const int64_t H = s.hidden, B = batch.B;
  const TensorView first = activations(e, B, H);
  gather_rows(e.stream, {.x = x, .rows = batch.starts.slice_rows(0, B), .y = first});
  const TensorView kv = activations(e, batch.T, 2 * H);
  apply_linear(e, x, w.kv, w.qkv_bias.slice_rows(H, 3 * H), kv);
  const TensorView q = activations(e, B, H);
  apply_linear(e, first, w.q, w.qkv_bias.slice_rows(0, H), q);
  const TensorView context = activations(e, B, H);
  attend(e, s, batch, q, kv.slice_cols(0, H), kv.slice_cols(H, 2 * H), context, true);
  const TensorView attended = activations(e, B, H);
  project_and_norm(e, s, context, w.out, w.out_bias, first, w.norm1_gamma, w.norm1_beta, attended);
  feed_forward(e, s, w, attended, y);
}

TensorView finish(Exec& e, const ModelShape& s, const EncoderWeights& w, const BatchView& batch, const TensorView& x, bool first_tokens,
                  Output output) {
  if (output == Output::hidden) {
    e.memory.keep(x);
    return x;
  }
  TensorView result;
  if (output == Output::token_logits || output == Output::token_scores) {
    result = e.memory.allocate(Tag::activations, DType::f32, {batch.T, s.token_classes});
    apply_linear(e, x, w.token, w.token_bias, result);
  } else if (output == Output::mean_hidden) {
    result = e.memory.allocate(Tag::activations, DType::f32, {batch.B, s.hidden});
    pool_mean(e.stream, {.x = x, .batch = batch, .y = result});
  } else {
    TensorView first = x;
    if (!first_tokens) {
      first = activations(e, batch.B, s.hidden);
      gather_rows(e.stream, {.x = x, .rows = batch.starts.slice_rows(0, batch.B), .y = first});
    }
    if (output == Output::cls_hidden) {
      result = e.memory.allocate(Tag::activations, DType::f32, {batch.B, s.hidden});
      convert(e.stream, {.x = first, .y = result});
    } else {
      const TensorView dense = activations(e, batch.B, s.hidden);
      apply_linear(e, first, w.dense, w.dense_bias, dense, head_activation(s.family));
      result = e.memory.allocate(Tag::activations, DType::f32, {batch.B, s.sequence_classes});
      apply_linear(e, dense, w.sequence, w.sequence_bias, result);
    }
  }
  if (output == Output::sequence_scores || output == Output::token_scores)
    softmax(e.stream, {.x = result, .y = result, .sigmoid = s.multi_label && output == Output::sequence_scores});
  e.memory.keep(result);
  return result;
}

int64_t output_width(const ModelShape& s, Output output) {
  switch (output) {
    case Output::sequence_logits: case Output::sequence_scores: return s.sequence_classes;
    case Output::token_logits: case Output::token_scores: return s.token_classes;
    default: return s.hidden;
  }
}

TensorView forward(Exec& e, const ModelShape& s, const EncoderWeights& w, const BatchView& batch, Output output) {
  const TensorView x = activations(e, batch.T, s.hidden);
  embed(e, s, w, batch, x);
  const bool first_tokens = wants_first_tokens(output);
  for (int64_t l = 0; l + (first_tokens ? 1 : 0) < s.layers; ++l) forward_layer(e, s, w.layers[l], batch, x);
  if (!first_tokens) return finish(e, s, w, batch, x, false, output);
  const TensorView y = activations(e, batch.B, s.hidden);
  forward_last_layer_first_tokens(e, s, w.layers.back(), batch, x, y);
  return finish(e, s, w, batch, y, true, output);
}

}  // namespace brim
