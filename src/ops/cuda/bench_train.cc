// SPDX-License-Identifier: Apache-2.0
// Benchmarks the ops of a training step in 16 or 32 bits, and their fp8 counterparts.
#include "ops/adamw.h"
#include "ops/cuda/bench_encoder.h"
#include "ops/fp8_cast.h"
#include "ops/gather_tokens.h"
#include "ops/gemm_tuner.h"
#include "ops/loss.h"

namespace brim::ops {

// Products of fp8 training and the conversions before them; four of each kind per layer.
void fp8_train_part(Bench& b, const Options& o) {
  Stream& s = b.stream();
  const int64_t T = o.tokens, P = fp8_columns(T);
  const auto tokens = static_cast<double>(T);
  const TensorView scratch = b.raw(DType::u8, {kCudaLinearScratchBytes}), one = b.scalar(1), small = b.scalar(0.01f);
  Bench::header("fp8 training");
  struct Shape {
    const char* name;
    int64_t N, K;
  };
  for (const Shape& shape : {Shape{"qkv", 3 * kH, kH}, {"out", kH, kH}, {"ffn1", kF, kH}, {"ffn2", kH, kF}}) {
    const int64_t N = shape.N, K = shape.K;
    const double flops = 2 * tokens * static_cast<double>(N * K);
    const TensorView x = b.fp8({T, K}, 1, 64), w = b.fp8({N, K}, 0.03f, 1024), w_t = b.fp8({K, N}, 0.03f, 1024),
                     d_y = b.fp8({T, N}, 1, 64), x_t = b.fp8({K, P}, 1, 64), d_y_t = b.fp8({N, P}, 1, 64),
                     y = b.raw(DType::bf16, {T, N}), d_x = b.raw(DType::bf16, {T, K}), d_w = b.raw(DType::f32, {N, K}),
                     bias = b.raw(DType::bf16, {N});
    const auto product = [&](const TensorView& left, const TensorView& right, const TensorView& to, bool add,
                             LinearRole role) {
      LinearArgs a{.x = left, .y = to, .scratch = scratch, .x_scale = small};
      a.w = {.N = right.rows(), .K = right.cols(), .precision = Precision::fp8, .data = right, .scale = small};
      if (add) a.residual = to;
      if (role == LinearRole::forward) a.bias = bias;
      a.role = role;
      return a;
    };
    const auto row = [&](const std::string& name, const LinearArgs& a) {
      b.row(name + " " + shape.name, flops, linear_work(a).bytes, [&] { linear(s, a); });
    };
    row("forward", product(x, w, y, false, LinearRole::forward));
    LinearArgs exact = product(x, w, y, false, LinearRole::input_gradient);
    row("forward, exact sums,", exact);
    row("dX", product(d_y, w_t, d_x, false, LinearRole::input_gradient));
    LinearArgs quick = product(d_y, w_t, d_x, false, LinearRole::input_gradient);
    quick.role = LinearRole::forward;
    row("dX, quick sums,", quick);
    row("dX added", product(d_y, w_t, d_x, true, LinearRole::input_gradient));
    row("dW", product(d_y_t, x_t, d_w, true, LinearRole::weight_gradient));
  }
  for (const int64_t C : {kH, 3 * kH, kF}) {
    const TensorView x = b.normal(DType::bf16, {T, C}), gate = b.normal(DType::bf16, {T, C}),
                     rows = b.raw(DType::f8e4m3, {T, C}), columns = b.raw(DType::f8e4m3, {C, P}),
                     inverse = b.raw(DType::f32, {1}), most = b.raw(DType::f32, {1}), sums = b.raw(DType::f32, {C}),
                     shares = b.raw(DType::u8, {fp8_cast_scratch_bytes(s, T, C)});
    const double each = tokens * static_cast<double>(C);
    const Fp8CastArgs both{
        .x = x, .rows = rows, .columns = columns, .scale = one, .inverse = inverse, .amax = most, .scratch = shares};
    const auto row = [&](const std::string& name, double bytes, const Fp8CastArgs& a) {
      b.row("cast " + std::to_string(C) + name, 0, bytes * each, [&] { fp8_cast(s, a); });
    };
    Fp8CastArgs a = both;
    row(", rows and columns", 4, a);
    a.d_bias = sums;
    row(", the same, bias summed", 4, a);
    a = both;
    a.columns = {};
    row(", rows", 3, a);
    a = both;
    a.rows = {};
    row(", columns", 3, a);
    if (C != kF) continue;
    a = both;
    a.activation = Activation::gelu;
    row(", GELU", 4, a);
    a.gate = gate;
    a.d_bias = sums;
    row(", GELU's slope, bias", 6, a);
  }
}

namespace {

double row_bytes_of(const Options& o) { return static_cast<double>(o.tokens * kH) * dtype_bytes(o.type); }

void linear_gradients(Bench& b, const Options& o) {
  Stream& s = b.stream();
  const int64_t T = o.tokens;
  const TensorView scratch = b.raw(DType::u8, {kCudaLinearScratchBytes}), x = b.normal(o.type, {T, kH}),
                   wide = b.normal(o.type, {T, kF}), d_x = b.normal(o.type, {T, kH}),
                   d_wide = b.normal(o.type, {T, kF}), qkv = b.normal(o.type, {T, 3 * kH});
  struct Shape {
    const char* name;
    TensorView x, d_y, d_x;
  };
  for (const Shape& shape : {Shape{"linear_grad qkv", x, qkv, d_x},
                             {"linear_grad out", x, d_x, x},
                             {"linear_grad ffn1", x, wide, d_x},
                             {"linear_grad ffn2", wide, x, d_wide}}) {
    const int64_t N = shape.d_y.cols(), K = shape.x.cols();
    LinearGradArgs a{.x = shape.x,
                     .w_plain = b.normal(o.type, {N, K}, 0.03f),
                     .d_y = shape.d_y,
                     .d_x = shape.d_x,
                     .d_w = b.raw(DType::f32, {N, K}),
                     .d_bias = b.raw(DType::f32, {N}),
                     .scratch = scratch,
                     .precision = precision_of(o.type)};
    b.row(shape.name, linear_grad_work(a).flops, linear_grad_work(a).bytes, [&] { linear_grad(s, a); });
  }
}

void attention_gradients(Bench& b, const Options& o, const Batch& batch) {
  Stream& s = b.stream();
  const int64_t T = o.tokens;
  const double row_bytes = row_bytes_of(o);
  const TensorView qkv = b.normal(o.type, {T, 3 * kH}), d_qkv = b.normal(o.type, {T, 3 * kH}),
                   out = b.normal(o.type, {T, kH}), d_out = b.normal(o.type, {T, kH}),
                   lse = b.raw(DType::f32, {T, kHeads}), a_scratch = b.raw(DType::u8, {T * kHeads * 4});
  attention_rows(b, o, batch, [&](const std::string& name, const Batch& batch_of) {
    AttentionArgs f = attention_of(qkv, out, batch_of.view);
    f.lse = lse;
    f.dropout = {.probability = 0.1f, .seed = 1};
    b.row("attention + dropout, " + name, 4.0 * kH * batch_of.pairs, 4 * row_bytes, [&] { attention(s, f); });
    AttentionGradArgs g{.q = f.q,
                        .k = f.k,
                        .v = f.v,
                        .out = out,
                        .lse = lse,
                        .d_out = d_out,
                        .d_q = d_qkv.slice_cols(0, kH),
                        .d_k = d_qkv.slice_cols(kH, 2 * kH),
                        .d_v = d_qkv.slice_cols(2 * kH, 3 * kH)};
    g.batch = batch_of.view;
    g.heads = kHeads;
    g.scratch = a_scratch;
    g.dropout = f.dropout;
    b.row("attention_grad, " + name, 10.0 * kH * batch_of.pairs, 8 * row_bytes, [&] { attention_grad(s, g); });
  });
}

void norm_gradients(Bench& b, const Options& o) {
  Stream& s = b.stream();
  const int64_t T = o.tokens;
  const double row_bytes = row_bytes_of(o);
  const TensorView x = b.normal(o.type, {T, kH}), d_x = b.normal(o.type, {T, kH}), out = b.normal(o.type, {T, kH}),
                   d_out = b.normal(o.type, {T, kH});
  const TensorView gamma = b.normal(o.type, {kH}), mean = b.normal(DType::f32, {T}, 0),
                   rstd = b.normal(DType::f32, {T}), d_gamma = b.raw(DType::f32, {kH}),
                   d_beta = b.raw(DType::f32, {kH}),
                   norm_scratch = b.raw(DType::u8, {layer_norm_grad_scratch_bytes(s, T, kH, 1)});
  LayerNormArgs norm{.x = x,
                     .residual = out,
                     .gamma = gamma,
                     .beta = gamma,
                     .y = d_x,
                     .sum = d_out,
                     .mean = mean,
                     .rstd = rstd,
                     .dropout = {.probability = 0.1f, .seed = 2}};
  b.row("layer_norm + dropout, sum kept", 0, layer_norm_work(norm).bytes, [&] { layer_norm(s, norm); });
  norm.sum = norm.mean = {};
  b.row("layer_norm + dropout", 0, layer_norm_work(norm).bytes, [&] { layer_norm(s, norm); });
  LayerNormGradArgs norm_grad{.sum = x,
                              .mean = mean,
                              .rstd = rstd,
                              .gamma = gamma,
                              .d_y = out,
                              .d_sum = d_out,
                              .d_x = d_x,
                              .d_gamma = d_gamma,
                              .d_beta = d_beta,
                              .scratch = norm_scratch};
  norm_grad.dropout = norm.dropout;
  norm_grad.d_bias = b.raw(DType::f32, {kH});
  b.row("layer_norm_grad, from the sum", 0, 4 * row_bytes, [&] { layer_norm_grad(s, norm_grad); });
  norm_grad.y = norm_grad.sum;
  norm_grad.beta = gamma;
  norm_grad.sum = norm_grad.mean = {};
  b.row("layer_norm_grad, from the result", 0, 4 * row_bytes, [&] { layer_norm_grad(s, norm_grad); });
}

void activation_gradients(Bench& b, const Options& o) {
  Stream& s = b.stream();
  const double row_bytes = row_bytes_of(o);
  const TensorView wide = b.normal(o.type, {o.tokens, kF}), d_wide = b.normal(o.type, {o.tokens, kF});
  b.row("activate_grad gelu", 0, 12 * row_bytes, [&] { activate_grad(s, {.x = wide, .d_y = d_wide, .d_x = d_wide}); });
  const TensorView d_wide_bias = b.raw(DType::f32, {wide.cols()}),
                   sums = b.raw(DType::u8, {activate_grad_scratch_bytes(s, wide.rows(), wide.cols())});
  b.row("activate_grad gelu, bias summed", 0, 12 * row_bytes,
        [&] { activate_grad(s, {.x = wide, .d_y = d_wide, .d_x = d_wide, .d_bias = d_wide_bias, .scratch = sums}); });
  const TensorView active = b.raw(o.type, {wide.rows(), wide.cols()});  // in place would change `wide`
  ActivationGradArgs with_output{.x = wide, .d_y = d_wide, .d_x = d_wide, .y = active, .d_bias = d_wide_bias};
  with_output.scratch = sums;
  b.row("activate_grad gelu, bias summed, output made", 0, 16 * row_bytes, [&] { activate_grad(s, with_output); });
  b.row("activate gelu", 0, 8 * row_bytes, [&] { activate(s, {.x = wide, .y = active}); });
}

void embedding_gradients(Bench& b, const Options& o, const Batch& batch) {
  Stream& s = b.stream();
  const int64_t T = o.tokens;
  const TensorView x = b.normal(o.type, {T, kH});
  const TensorView d_word = b.raw(DType::f32, {kVocabulary, kH}), d_position = b.raw(DType::f32, {kPositions, kH}),
                   d_type = b.raw(DType::f32, {1, kH}),
                   type_scratch = b.raw(DType::u8, {embedding_grad_scratch_bytes(s, T, kH, 1)});
  b.row("embedding_grad", 0, 3 * row_bytes_of(o), [&] {
    embedding_grad(s, {.batch = batch.view,
                       .d_sum = x,
                       .sorted = batch.sorted,
                       .sorted_positions = batch.sorted_positions,
                       .d_word = d_word,
                       .d_position = d_position,
                       .d_type = d_type,
                       .scratch = type_scratch});
  });
}

void optimizer_steps(Bench& b) {
  Stream& s = b.stream();
  const int64_t n = 124'600'000;
  const TensorView master = b.normal(DType::f32, {n}), grad = b.normal(DType::f32, {n}, 0.01f),
                   m = b.raw(DType::f32, {n}), v = b.raw(DType::f32, {n}), copy = b.raw(DType::bf16, {n}),
                   norm_out = b.raw(DType::f32, {1}), factor = b.scalar(1),
                   g_scratch = b.raw(DType::u8, {grad_norm_scratch_bytes(n)});
  b.row("grad_norm of 124.6 M", 0, 4.0 * n,
        [&] { grad_norm(s, {.grad = grad, .norm = norm_out, .factor = factor, .scratch = g_scratch, .max_norm = 1}); });
  const TensorView table = b.raw(DType::f32, {1, 1, kAdamWRowFloats});
  set_step(s, {.rows = table, .row = adamw_row(1e-5f, 0.9f, 0.999f, 1e-8f, 0, 1)});
  b.row("adamw of 124.6 M", 0, 30.0 * n,
        [&] { adamw(s, {.master = master, .grad = grad, .m = m, .v = v, .copy = copy, .table = {.rows = table}}); });
  const TensorView m8 = b.raw(DType::u8, {n}), v8 = b.raw(DType::u8, {n}),
                   m_scale = b.raw(DType::f32, {(n + kAdamBlock - 1) / kAdamBlock}),
                   v_scale = b.raw(DType::f32, {(n + kAdamBlock - 1) / kAdamBlock});
  b.row("adamw, 8-bit", 0, 18.0 * n, [&] {
    adamw(s, {.master = master,
              .grad = grad,
              .m = m8,
              .v = v8,
              .m_scale = m_scale,
              .v_scale = v_scale,
              .copy = copy,
              .table = {.rows = table}});
  });
}

}  // namespace

void train_part(Bench& b, const Options& o, const Batch& batch) {
  Bench::header("training");
  linear_gradients(b, o);
  attention_gradients(b, o, batch);
  norm_gradients(b, o);
  activation_gradients(b, o);
  embedding_gradients(b, o, batch);
  optimizer_steps(b);
}

}  // namespace brim::ops
