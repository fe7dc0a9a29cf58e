// SPDX-License-Identifier: Apache-2.0
// Benchmarks the ops of a ModernBERT-base layer.
#include "ops/cuda/bench.h"
#include "ops/glu.h"
#include "ops/layer_norm.h"
#include "ops/rope.h"

namespace brim::ops {

void modern_part(Bench& b, const Options& o, const Batch& batch) {
  constexpr int64_t kGated = 1152, kWindow = 64;
  Stream& s = b.stream();
  const int64_t T = o.tokens;
  const double row_bytes = static_cast<double>(T * kH) * dtype_bytes(o.type);
  const TensorView x = b.normal(o.type, {T, kH}), sum = b.normal(o.type, {T, kH}), y = b.raw(o.type, {T, kH}),
                   qkv = b.normal(o.type, {T, 3 * kH}), wide = b.normal(o.type, {T, 2 * kGated}),
                   gated = b.normal(o.type, {T, kGated}), gamma = b.normal(o.type, {kH}, 0.1f),
                   scratch = b.raw(DType::u8, {kCudaLinearScratchBytes});
  const auto product = [&](const char* name, const TensorView& from, const TensorView& to, const TensorView& residual) {
    LinearArgs a{.x = from, .residual = residual, .y = to, .scratch = scratch};
    a.w = {.N = to.cols(), .K = from.cols(), .precision = precision_of(o.type)};
    a.w.data = b.normal(o.type, {a.w.N, a.w.K}, 0.03f);
    b.row(name, linear_work(a).flops, linear_work(a).bytes, [&] { linear(s, a); });
  };
  const auto norm = [&](const char* name, const LayerNormArgs& a) {
    b.row(name, 0, layer_norm_work(a).bytes, [&] { layer_norm(s, a); });
  };
  Bench::header("a layer of ModernBERT");
  product("linear qkv", x, qkv, {});
  product("linear out", x, y, {});
  product("linear out + residual", x, y, sum);
  product("linear up, both halves", x, wide, {});
  product("linear down + residual", gated, y, sum);
  norm("layer_norm", {.x = x, .gamma = gamma, .y = y, .eps = 1e-5f});
  norm("layer_norm + residual, sum kept", {.x = x, .residual = sum, .gamma = gamma, .y = y, .sum = x, .eps = 1e-5f});
  b.row("glu", 0, 4.5 * row_bytes, [&] { glu(s, {.x = wide, .y = gated}); });
  b.row("rope of q and k", 0, 4 * row_bytes, [&] {
    rope(s, {.x = qkv.slice_cols(0, 2 * kH), .positions = batch.view.positions, .head_size = kH / kHeads});
  });
  const auto attend = [&](const std::string& name, const Batch& of) {
    for (const int64_t window : {int64_t{0}, kWindow})
      for (const bool rotary : {false, true}) {
        AttentionArgs a = attention_of(qkv, y, of.view);
        a.window = window;
        if (rotary) {
          a.rope_theta = 10000;
          a.scratch =
              b.raw(DType::u8, {attention_scratch_bytes(s, T, of.view.S, kH, kHeads, Precision::bf16, 1, true)});
        }
        const double pairs = window == 0 ? of.pairs : std::min(of.pairs, static_cast<double>(T) * (2.0 * kWindow + 1));
        b.row("attention, " + name + (window > 0 ? ", local" : "") + (rotary ? ", rotary" : ""), 4.0 * kH * pairs,
              4 * row_bytes, [&] { attention(s, a); });
      }
  };
  attend("tweets", batch);
  for (const int32_t n : {64, 128, 512, 4096, 8192})
    attend(std::to_string(n), Batch(b, T, [n](std::mt19937&) { return n; }));
}

}  // namespace brim::ops
