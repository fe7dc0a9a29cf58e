// SPDX-License-Identifier: Apache-2.0
#include "model/encoder.h"

#include "ops/attention.h"
#include "ops/embedding.h"
#include "ops/layer_norm.h"
#include "ops/rows.h"

namespace brim::model {

using memory::Tag;
using ops::Activation;
using ops::BatchView;
using tensor::DType;
using tensor::TensorView;

namespace {

TensorView activations(Exec& e, int64_t rows, int64_t cols) {
  return e.memory.allocate(Tag::activations, e.activation, {rows, cols});
}

// What a product reads: rows, and in fp8 the factor that makes them real numbers again.
struct Input {
  TensorView x;
  TensorView dequantise = {};
};

// Between two products of a layer: narrower than the residual path where the next product would round anyway.
TensorView between(Exec& e, int64_t rows, int64_t cols) {
  const bool rounds = target_kind(e.stream) == device::DeviceKind::cpu && e.precision != ops::Precision::fp32;
  return e.memory.allocate(Tag::activations, rounds ? DType::bf16 : e.activation, {rows, cols});
}
TensorView narrow(Exec& e, int64_t rows, int64_t cols) {
  return e.memory.allocate(Tag::activations, DType::f8e4m3, {rows, cols});
}

void apply_linear(Exec& e, const Input& input, const ops::LinearWeight& w, const TensorView& bias, const TensorView& y,
                  Activation activation = Activation::none, const TensorView& residual = {},
                  const TensorView& quantise = {}) {
  ops::LinearArgs args{.x = input.x, .w = w, .bias = bias, .residual = residual, .y = y};
  args.x_scale = input.dequantise;
  args.y_scale = quantise;
  args.activation = activation;
  args.scratch = e.memory.scratch(linear_scratch_bytes(e.stream, input.x.rows(), w.N, w.K, w.precision, e.threads));
  linear(e.stream, args);
}

// y = LN(x W + b + residual). The CPU adds the residual while the product is in registers; on the GPU the norm reads
// it, because a residual in cuBLASLt's epilogue costs the product what it saves the norm.
void project_and_norm(Exec& e, const ModelShape& s, const Input& x, const ops::LinearWeight& w, const TensorView& bias,
                      const TensorView& residual, const TensorView& gamma, const TensorView& beta, const Hidden& y,
                      const Fp8Scale& y_scale) {
  const bool in_product = target_kind(e.stream) == device::DeviceKind::cpu;
  const TensorView product = activations(e, x.x.rows(), w.N);
  apply_linear(e, x, w, bias, product, Activation::none, in_product ? residual : TensorView());
  ops::LayerNormArgs norm{
      .x = product, .residual = in_product ? TensorView() : residual, .gamma = gamma, .beta = beta, .y = y.wide};
  if (y.narrow) {
    norm.y_fp8 = y.narrow;
    norm.fp8_scale = y_scale.quantise;
  }
  norm.eps = s.eps;
  layer_norm(e.stream, norm);
}

// The feed-forward half of a layer: x to y (may be x).
void feed_forward(Exec& e, const ModelShape& s, const LayerWeights& w, const Hidden& x, const Hidden& y,
                  const Fp8Scale& next) {
  const int64_t rows = x.wide.rows();
  Input middle;
  if (!x.narrow) {
    middle.x = between(e, rows, s.ffn);
    apply_linear(e, {x.wide}, w.ffn1, w.ffn1_bias, middle.x, s.activation);
  } else {
    middle = {narrow(e, rows, s.ffn), w.middle.dequantise};
    const Input input{x.narrow, w.attended.dequantise};
    if (s.activation == Activation::gelu || s.activation == Activation::gelu_tanh) {
      apply_linear(e, input, w.ffn1, w.ffn1_bias, middle.x, s.activation, {}, w.middle.quantise);
    } else {  // the library fuses no other activation with an fp8 result
      const TensorView h = activations(e, rows, s.ffn);
      apply_linear(e, input, w.ffn1, w.ffn1_bias, h, s.activation);
      ops::convert(e.stream, {.x = h, .y = middle.x, .scale = w.middle.quantise});
    }
  }
  project_and_norm(e, s, middle, w.ffn2, w.ffn2_bias, x.wide, w.norm2_gamma, w.norm2_beta, y, next);
}

// Returns the context vectors as the output projection wants them.
Input attend(Exec& e, const ModelShape& s, const LayerWeights& w, const BatchView& batch, const TensorView& q,
             const TensorView& k, const TensorView& v, bool first_query_only) {
  const bool fp8 = static_cast<bool>(w.context.quantise);
  const Input context{fp8 ? narrow(e, q.rows(), s.hidden) : between(e, q.rows(), s.hidden), w.context.dequantise};
  ops::AttentionArgs args{.q = q, .k = k, .v = v, .out = context.x, .batch = batch};
  args.out_scale = w.context.quantise;
  args.first_query_only = first_query_only;
  args.heads = s.heads;
  args.precision = e.precision;
  args.scratch =
      e.memory.scratch(attention_scratch_bytes(e.stream, batch.T, batch.S, s.hidden, s.heads, e.precision, e.threads));
  attention(e.stream, args);
  return context;
}

// From attention's queries, keys and values to the layer's output; `x` is the residual.
void finish_layer(Exec& e, const ModelShape& s, const LayerWeights& w, const Input& context, const TensorView& x,
                  const Hidden& y, const Fp8Scale& next) {
  Hidden attended{activations(e, x.rows(), s.hidden)};
  if (w.attended.quantise) attended.narrow = narrow(e, x.rows(), s.hidden);
  project_and_norm(e, s, context, w.out, w.out_bias, x, w.norm1_gamma, w.norm1_beta, attended, w.attended);
  feed_forward(e, s, w, attended, y, next);
}

}  // namespace

void embed(Exec& e, const ModelShape& s, const EncoderWeights& w, const BatchView& batch, const Hidden& y) {
  ops::EmbeddingArgs args{.batch = batch,
                          .word = w.word,
                          .position = w.position,
                          .type = w.type,
                          .gamma = w.norm_gamma,
                          .beta = w.norm_beta,
                          .y = y.wide};
  if (y.narrow) {
    args.y_fp8 = y.narrow;
    args.fp8_scale = w.layers.front().input.quantise;
  }
  args.eps = s.eps;
  embedding(e.stream, args);
}

void forward_layer(Exec& e, const ModelShape& s, const LayerWeights& w, const BatchView& batch, const Hidden& x,
                   const Fp8Scale& next) {
  const int64_t H = s.hidden;
  const Input input = x.narrow ? Input{x.narrow, w.input.dequantise} : Input{x.wide};
  const TensorView qkv = between(e, batch.T, 3 * H);
  if (w.qkv.N > 0) {
    apply_linear(e, input, w.qkv, w.qkv_bias, qkv);
  } else {
    apply_linear(e, input, w.q, w.qkv_bias.slice_rows(0, H), qkv.slice_cols(0, H));
    apply_linear(e, input, w.kv, w.qkv_bias.slice_rows(H, 3 * H), qkv.slice_cols(H, 3 * H));
  }
  const Input context =
      attend(e, s, w, batch, qkv.slice_cols(0, H), qkv.slice_cols(H, 2 * H), qkv.slice_cols(2 * H, 3 * H), false);
  finish_layer(e, s, w, context, x.wide, {x.wide, next.quantise ? x.narrow : TensorView()}, next);
}

void forward_last_layer_first_tokens(Exec& e, const ModelShape& s, const LayerWeights& w, const BatchView& batch,
                                     const Hidden& x, const TensorView& y) {
  const int64_t H = s.hidden, B = batch.B;
  const TensorView first = activations(e, B, H);
  ops::gather_rows(e.stream, {.x = x.wide, .rows = batch.starts.slice_rows(0, B), .y = first});
  const TensorView kv = between(e, batch.T, 2 * H);
  Input all{x.wide}, firsts{first};
  if (x.narrow) {
    all = {x.narrow, w.input.dequantise};
    firsts = {narrow(e, B, H), w.input.dequantise};
    ops::convert(e.stream, {.x = first, .y = firsts.x, .scale = w.input.quantise});
  }
  apply_linear(e, all, w.kv, w.qkv_bias.slice_rows(H, 3 * H), kv);
  const TensorView q = between(e, B, H);
  apply_linear(e, firsts, w.q, w.qkv_bias.slice_rows(0, H), q);
  const Input context = attend(e, s, w, batch, q, kv.slice_cols(0, H), kv.slice_cols(H, 2 * H), true);
  finish_layer(e, s, w, context, first, {y}, {});
}

TensorView finish(Exec& e, const ModelShape& s, const EncoderWeights& w, const BatchView& batch, const TensorView& x,
                  bool first_tokens, Output output) {
  if (output == Output::hidden) {
    e.memory.keep(x);
    return x;
  }
  TensorView result;
  if (output == Output::token_logits || output == Output::token_scores) {
    result = e.memory.allocate(Tag::activations, DType::f32, {batch.T, s.token_classes});
    apply_linear(e, {x}, w.token, w.token_bias, result);
  } else if (output == Output::mean_hidden) {
    result = e.memory.allocate(Tag::activations, DType::f32, {batch.B, s.hidden});
    ops::pool_mean(e.stream, {.x = x, .batch = batch, .y = result});
  } else {
    TensorView first = x;
    if (!first_tokens) {
      first = activations(e, batch.B, s.hidden);
      ops::gather_rows(e.stream, {.x = x, .rows = batch.starts.slice_rows(0, batch.B), .y = first});
    }
    if (output == Output::cls_hidden) {
      result = e.memory.allocate(Tag::activations, DType::f32, {batch.B, s.hidden});
      ops::convert(e.stream, {.x = first, .y = result});
    } else {
      const TensorView dense = activations(e, batch.B, s.hidden);
      apply_linear(e, {first}, w.dense, w.dense_bias, dense, head_activation(s.family));
      result = e.memory.allocate(Tag::activations, DType::f32, {batch.B, s.sequence_classes});
      apply_linear(e, {dense}, w.sequence, w.sequence_bias, result);
    }
  }
  if (output == Output::sequence_scores || output == Output::token_scores)
    ops::softmax(e.stream, {.x = result, .y = result, .sigmoid = s.multi_label && output == Output::sequence_scores});
  e.memory.keep(result);
  return result;
}

int64_t output_width(const ModelShape& s, Output output) {
  switch (output) {
    case Output::sequence_logits:
    case Output::sequence_scores:
      return s.sequence_classes;
    case Output::token_logits:
    case Output::token_scores:
      return s.token_classes;
    default:
      return s.hidden;
  }
}

TensorView forward(Exec& e, const ModelShape& s, const EncoderWeights& w, const BatchView& batch, Output output) {
  Hidden x{activations(e, batch.T, s.hidden)};
  if (w.layers.front().input.quantise) x.narrow = narrow(e, batch.T, s.hidden);
  embed(e, s, w, batch, x);
  const bool first_tokens = wants_first_tokens(output);
  const auto layers = static_cast<size_t>(s.layers);
  for (size_t l = 0; l + (first_tokens ? 1 : 0) < layers; ++l)
    forward_layer(e, s, w.layers[l], batch, x, l + 1 < layers ? w.layers[l + 1].input : Fp8Scale());
  if (!first_tokens) return finish(e, s, w, batch, x.wide, false, output);
  const TensorView y = activations(e, batch.B, s.hidden);
  forward_last_layer_first_tokens(e, s, w.layers.back(), batch, x, y);
  return finish(e, s, w, batch, y, true, output);
}

}  // namespace brim::model
