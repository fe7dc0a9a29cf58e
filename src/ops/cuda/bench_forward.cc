// SPDX-License-Identifier: Apache-2.0
// Benchmarks the ops of scoring, and 12 layers of them.
#include "device/graph.h"
#include "ops/amax.h"
#include "ops/cuda/bench_encoder.h"
#include "ops/gather_tokens.h"
#include "ops/gemm_tuner.h"

namespace brim::ops {
namespace {

void tune(Bench& b, Encoder& e, double seconds) {
  for (int which = 0; which < 4; ++which) {
    const GemmChoice c = tune_linear(b.stream(), e.gemm(which, 0), seconds);
    std::printf("tuned %-28s %8.1f us, the library's own choice %8.1f us, %d tried\n", kGemmNames[which], c.us,
                c.default_us, c.tried);
  }
}

}  // namespace

void forward_part(Bench& b, const Options& o, const Batch& batch, bool fp8) {
  Encoder e(b, o, batch, fp8);
  Stream& s = b.stream();
  const double row_bytes = static_cast<double>(o.tokens * kH) * dtype_bytes(o.type);
  if (fp8) b.roofs.flops *= 2;
  if (o.tune > 0) tune(b, e, o.tune);
  Bench::header(fp8 ? "fp8 forward" : "forward");
  for (int which = 0; which < 4; ++which) {
    const LinearArgs a = e.gemm(which, 0);
    b.row(kGemmNames[which], linear_work(a).flops, linear_work(a).bytes,
          [&, i = 0]() mutable { linear(s, e.gemm(which, ++i)); });
  }
  b.row("layer_norm + residual", 0, layer_norm_work(e.norm(false)).bytes, [&] { layer_norm(s, e.norm(false)); });
  b.row("embedding", 0, embedding_work(e.embed()).bytes, [&] { embedding(s, e.embed()); });
  attention_rows(b, o, batch, [&](const std::string& name, const Batch& batch_of) {
    b.row("attention, " + name, 4.0 * kH * batch_of.pairs, (fp8 ? 3.5 : 4) * row_bytes,
          [&] { attention(s, e.attend(batch_of.view)); });
  });
  if (!fp8) {
    const TensorView q = b.normal(o.type, {batch.view.B, kH}), kv = b.normal(o.type, {o.tokens, 2 * kH}),
                     x = b.normal(o.type, {o.tokens, kH}), few = b.raw(o.type, {batch.view.B, kH}),
                     pooled = b.raw(DType::f32, {batch.view.B, kH});
    AttentionArgs first{.q = q,
                        .k = kv.slice_cols(0, kH),
                        .v = kv.slice_cols(kH, 2 * kH),
                        .out = few,
                        .batch = batch.view,
                        .first_query_only = true,
                        .heads = kHeads};
    b.row("attention, first queries only", 4.0 * kH * static_cast<double>(o.tokens), 2 * row_bytes,
          [&] { attention(s, first); });
    b.row("gather_rows", 0, 2.0 * static_cast<double>(few.bytes()),
          [&] { gather_rows(s, {.x = x, .rows = batch.first_rows, .y = few}); });
    std::vector<int64_t> places;
    for (int64_t i = 0; i < batch.view.B; ++i)
      places.push_back(i * 7919 % (256 * o.tokens - kPositions));  // spread over a set of 256 batches
    const TensorView set = b.raw(DType::i32, {256 * o.tokens}), begins = b.longs(places),
                     ids = b.raw(DType::i32, {o.tokens}), positions = b.raw(DType::i32, {o.tokens});
    GatherTokensArgs cut{
        .tokens = set, .begins = begins, .starts = batch.view.starts, .ids = ids, .positions = positions};
    b.row("gather_tokens", 0, gather_tokens_work(cut).bytes, [&] { gather_tokens(s, cut); });
    b.row("pool_mean", 0, row_bytes, [&] { pool_mean(s, {.x = x, .batch = batch.view, .y = pooled}); });
    const TensorView head = b.normal(o.type, {9, kH}), logits = b.raw(DType::f32, {o.tokens, 9}),
                     scores = b.raw(DType::f32, {o.tokens, 9});
    LinearArgs narrow{.x = x, .w = {.N = 9, .K = kH, .precision = precision_of(o.type), .data = head}, .y = logits};
    b.row("linear to 9 labels, every token", linear_work(narrow).flops, row_bytes, [&] { linear(s, narrow); });
    b.row("softmax of 9 labels", 0, 2.0 * static_cast<double>(logits.bytes()),
          [&] { softmax(s, {.x = logits, .y = scores}); });
    const TensorView eight = b.raw(DType::f8e4m3, {o.tokens, kH}), one = b.scalar(1);
    b.row("convert to fp8", 0, 1.5 * row_bytes, [&] { convert(s, {.x = x, .y = eight, .scale = one}); });
    b.row("amax", 0, row_bytes, [&] { amax(s, {.x = x, .amax = one}); });
  }
  std::printf("\n");
  e.report(fp8 ? "12 layers, fp8" : "12 layers");
  if (fp8) b.roofs.flops /= 2;

  // One text: launch overhead, and the gain from a graph.
  const Batch one(b, 26, [](std::mt19937&) { return 26; });
  Encoder small(b, o, one, fp8);
  std::printf("%-34s %9.0f us launched", "12 layers, one text of 26 tokens", b.us([&] { small.forward(); }));
  small.forward();
  begin_capture(s);
  small.forward();
  const auto graph = end_capture(s);
  std::printf(", %.0f us as a graph\n", b.us([&] { graph->launch(s); }));
}

}  // namespace brim::ops
