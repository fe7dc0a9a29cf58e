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

using P = ParamIndex;

const Param& of_layer(const Params& params, int64_t l, int64_t what) {
  return params[static_cast<size_t>(P::layer(l) + what)];
}

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
void project_and_norm(Exec& e, const ModelShape& s, const Params& params, int64_t l, const Input& x, int64_t project,
                      const TensorView& residual, int64_t norm_gamma, const Hidden& y, const Fp8Scale& y_scale) {
  const ops::LinearWeight& w = of_layer(params, l, project).matrix;
  const bool in_product = target_kind(e.stream) == device::DeviceKind::cpu;
  const TensorView product = activations(e, x.x.rows(), w.N);
  apply_linear(e, x, w, of_layer(params, l, project + 1).plain, product, Activation::none,
               in_product ? residual : TensorView());
  ops::LayerNormArgs norm{.x = product,
                          .residual = in_product ? TensorView() : residual,
                          .gamma = of_layer(params, l, norm_gamma).plain,
                          .beta = of_layer(params, l, norm_gamma + 1).plain,
                          .y = y.wide};
  if (y.narrow) {
    norm.y_fp8 = y.narrow;
    norm.fp8_scale = y_scale.quantise;
  }
  norm.eps = s.eps;
  layer_norm(e.stream, norm);
}

// The feed-forward half of a layer: x to y (may be x).
void feed_forward(Exec& e, const ModelShape& s, const Params& params, int64_t l, const Hidden& x, const Hidden& y,
                  const Fp8Scale& next) {
  const int64_t rows = x.wide.rows();
  const Param& up = of_layer(params, l, P::ffn1_w);
  const TensorView& bias = of_layer(params, l, P::ffn1_b).plain;
  const Fp8Scale& scale = of_layer(params, l, P::ffn2_w).input;
  Input middle;
  if (!x.narrow) {
    middle.x = between(e, rows, s.ffn);
    apply_linear(e, {x.wide}, up.matrix, bias, middle.x, s.activation);
  } else {
    middle = {narrow(e, rows, s.ffn), scale.dequantise};
    const Input input{x.narrow, up.input.dequantise};
    if (s.activation == Activation::gelu || s.activation == Activation::gelu_tanh) {
      apply_linear(e, input, up.matrix, bias, middle.x, s.activation, {}, scale.quantise);
    } else {  // the library fuses no other activation with an fp8 result
      const TensorView h = activations(e, rows, s.ffn);
      apply_linear(e, input, up.matrix, bias, h, s.activation);
      ops::convert(e.stream, {.x = h, .y = middle.x, .scale = scale.quantise});
    }
  }
  project_and_norm(e, s, params, l, middle, P::ffn2_w, x.wide, P::norm2_gamma, y, next);
}

// Returns the context vectors as the output projection wants them.
Input attend(Exec& e, const ModelShape& s, const Fp8Scale& scale, const BatchView& batch, const TensorView& q,
             const TensorView& k, const TensorView& v, bool first_query_only) {
  const bool fp8 = static_cast<bool>(scale.quantise);
  const Input context{fp8 ? narrow(e, q.rows(), s.hidden) : between(e, q.rows(), s.hidden), scale.dequantise};
  ops::AttentionArgs args{.q = q, .k = k, .v = v, .out = context.x, .batch = batch};
  args.out_scale = scale.quantise;
  args.first_query_only = first_query_only;
  args.heads = s.heads;
  args.precision = e.precision;
  args.scratch =
      e.memory.scratch(attention_scratch_bytes(e.stream, batch.T, batch.S, s.hidden, s.heads, e.precision, e.threads));
  attention(e.stream, args);
  return context;
}

// From attention's queries, keys and values to the layer's output; `x` is the residual.
void finish_layer(Exec& e, const ModelShape& s, const Params& params, int64_t l, const Input& context,
                  const TensorView& x, const Hidden& y, const Fp8Scale& next) {
  Hidden attended{activations(e, x.rows(), s.hidden)};
  const Fp8Scale& scale = of_layer(params, l, P::ffn1_w).input;
  if (scale.quantise) attended.narrow = narrow(e, x.rows(), s.hidden);
  project_and_norm(e, s, params, l, context, P::out_w, x, P::norm1_gamma, attended, scale);
  feed_forward(e, s, params, l, attended, y, next);
}

}  // namespace

void embed(Exec& e, const ModelShape& s, const Params& params, const BatchView& batch, const Hidden& y) {
  ops::EmbeddingArgs args{.batch = batch,
                          .word = params[P::word].plain,
                          .position = params[P::position].plain,
                          .gamma = params[P::embed_gamma].plain,
                          .beta = params[P::embed_beta].plain,
                          .y = y.wide};
  if (s.types > 0) args.type = params[P::type].plain;
  if (y.narrow) {
    args.y_fp8 = y.narrow;
    args.fp8_scale = of_layer(params, 0, P::qkv_w).input.quantise;
  }
  args.eps = s.eps;
  embedding(e.stream, args);
}

void forward_layer(Exec& e, const ModelShape& s, const Params& params, int64_t l, const BatchView& batch,
                   const Hidden& x) {
  const int64_t H = s.hidden;
  const Param& w = of_layer(params, l, P::qkv_w);
  const TensorView& bias = of_layer(params, l, P::qkv_b).plain;
  const Input input = x.narrow ? Input{x.narrow, w.input.dequantise} : Input{x.wide};
  const TensorView qkv = between(e, batch.T, 3 * H);
  if (l + 1 < s.layers) {
    apply_linear(e, input, w.matrix, bias, qkv);
  } else {
    apply_linear(e, input, w.first, bias.slice_rows(0, H), qkv.slice_cols(0, H));
    apply_linear(e, input, w.rest, bias.slice_rows(H, 3 * H), qkv.slice_cols(H, 3 * H));
  }
  const Input context = attend(e, s, of_layer(params, l, P::out_w).input, batch, qkv.slice_cols(0, H),
                               qkv.slice_cols(H, 2 * H), qkv.slice_cols(2 * H, 3 * H), false);
  const Fp8Scale next = l + 1 < s.layers ? of_layer(params, l + 1, P::qkv_w).input : Fp8Scale();
  finish_layer(e, s, params, l, context, x.wide, {x.wide, next.quantise ? x.narrow : TensorView()}, next);
}

void forward_last_layer_first_tokens(Exec& e, const ModelShape& s, const Params& params, const BatchView& batch,
                                     const Hidden& x, const TensorView& y) {
  const int64_t H = s.hidden, B = batch.B, l = s.layers - 1;
  const Param& w = of_layer(params, l, P::qkv_w);
  const TensorView& bias = of_layer(params, l, P::qkv_b).plain;
  const TensorView first = activations(e, B, H);
  ops::gather_rows(e.stream, {.x = x.wide, .rows = batch.starts.slice_rows(0, B), .y = first});
  const TensorView kv = between(e, batch.T, 2 * H);
  Input all{x.wide}, firsts{first};
  if (x.narrow) {
    all = {x.narrow, w.input.dequantise};
    firsts = {narrow(e, B, H), w.input.dequantise};
    ops::convert(e.stream, {.x = first, .y = firsts.x, .scale = w.input.quantise});
  }
  apply_linear(e, all, w.rest, bias.slice_rows(H, 3 * H), kv);
  const TensorView q = between(e, B, H);
  apply_linear(e, firsts, w.first, bias.slice_rows(0, H), q);
  const Input context =
      attend(e, s, of_layer(params, l, P::out_w).input, batch, q, kv.slice_cols(0, H), kv.slice_cols(H, 2 * H), true);
  finish_layer(e, s, params, l, context, first, {y}, {});
}

TensorView finish(Exec& e, const ModelShape& s, const Params& params, const BatchView& batch, const TensorView& x,
                  bool first_tokens, Output output) {
  const HeadIndex head = head_index(s);
  const auto param = [&](int64_t i) -> const Param& { return params[static_cast<size_t>(i)]; };
  if (output == Output::hidden && x.dtype == DType::f32) {
    e.memory.keep(x);
    return x;
  }
  TensorView result;
  if (output == Output::hidden) {
    result = e.memory.allocate(Tag::activations, DType::f32, {batch.T, s.hidden});
    ops::convert(e.stream, {.x = x, .y = result});
  } else if (output == Output::token_logits || output == Output::token_scores) {
    result = e.memory.allocate(Tag::activations, DType::f32, {batch.T, s.token_classes});
    apply_linear(e, {x}, param(head.token_w).matrix, param(head.token_b).plain, result);
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
      apply_linear(e, {first}, param(head.dense_w).matrix, param(head.dense_b).plain, dense, head_activation(s.family));
      result = e.memory.allocate(Tag::activations, DType::f32, {batch.B, s.sequence_classes});
      apply_linear(e, {dense}, param(head.sequence_w).matrix, param(head.sequence_b).plain, result);
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

TensorView forward(Exec& e, const ModelShape& s, const Params& params, const BatchView& batch, Output output) {
  Hidden x{activations(e, batch.T, s.hidden)};
  if (of_layer(params, 0, P::qkv_w).input.quantise) x.narrow = narrow(e, batch.T, s.hidden);
  embed(e, s, params, batch, x);
  const bool first_tokens = wants_first_tokens(output);
  for (int64_t l = 0; l + (first_tokens ? 1 : 0) < s.layers; ++l) forward_layer(e, s, params, l, batch, x);
  if (!first_tokens) return finish(e, s, params, batch, x.wide, false, output);
  const TensorView y = activations(e, batch.B, s.hidden);
  forward_last_layer_first_tokens(e, s, params, batch, x, y);
  return finish(e, s, params, batch, y, true, output);
}

}  // namespace brim::model
