// SPDX-License-Identifier: Apache-2.0
// Benchmark of all CUDA ops with RoBERTa-base shapes on a packed batch of tweet-like lengths, relative to the GPU's two
// roofs (copy bandwidth and a large GEMM, measured first), then of the whole encoder, forward and backward, from the
// same calls.
//   ops_cuda_bench [--tokens 65536] [--tune SECONDS per GEMM] [--dtype bf16|f16|f32]
//                  [--only forward|train|fp8|fp8train|modern|int8]
// fp8train: products and conversions of a layer trained in fp8; modern: a layer of ModernBERT-base, with tweets and
// with texts of 4,096 tokens; int8: products with int8 operands (with --tune, in several tile sizes). Reports medians
// over groups, after warming up: the GPU settles at its power limit after a second of work.
#include "ops/cuda/bench.h"
#include "ops/gemm_tuner.h"

namespace brim::ops {
namespace {

void measure_roofs(Bench& b, DType type) {
  const int64_t n = 8192;
  const TensorView from = b.normal(DType::bf16, {n, n * 8}), to = b.raw(DType::bf16, {n, n * 8});
  LinearArgs a{.x = from.slice_cols(0, n), .scratch = b.raw(DType::u8, {kCudaLinearScratchBytes})};
  const double copy = b.us([&] { b.stream().copy(to.data, from.data, static_cast<size_t>(from.bytes())); });
  b.roofs.bytes = 2.0 * static_cast<double>(from.bytes()) / copy * 1e6;
  a.x = b.normal(type, {n, n});
  a.y = b.raw(type, {n, n});
  a.w = {.N = n, .K = n, .precision = precision_of(type), .data = b.normal(type, {n, n}, 0.03f)};
  for (int i = 0; i < 40; ++i) linear(b.stream(), a);
  const double gemm = b.us([&] { linear(b.stream(), a); }, 1.0);
  b.roofs.flops = 2.0 * n * n * n / gemm * 1e6;
  std::printf("copy %.2f TB/s, %s GEMM of 8192³ %.0f TFLOP/s\n", b.roofs.bytes * 1e-12, dtype_name(type),
              b.roofs.flops * 1e-12);
}

int run(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i], value = i + 1 < argc ? argv[++i] : "";
    if (flag == "--tokens")
      o.tokens = std::stoll(value);
    else if (flag == "--tune")
      o.tune = std::stod(value);
    else if (flag == "--only")
      o.only = value;
    else if (flag == "--dtype")
      o.type = value == "f16" ? DType::f16 : value == "f32" ? DType::f32 : DType::bf16;
    else
      fail(ErrorCode::usage, "{}: unknown flag", flag);
  }
  if (const auto reason = device::cuda_unavailable_reason(0)) fail(ErrorCode::device_lost, "{}", *reason);
  const auto part = [&](const char* name, const std::function<void(Bench&, const Batch&)>& f) {
    if (!o.only.empty() && o.only != name) return;
    Bench b;  // one at a time: each frees its memory
    std::printf("\n%s, sm_%d, %lld tokens, %s\n", b.device().name().c_str(), cuda_info(b.device()).capability,
                static_cast<long long>(o.tokens), dtype_name(o.type));
    load_gemm_choices(b.stream());
    measure_roofs(b, o.type);
    const Batch batch(b, o.tokens, tweet_length);
    std::printf("%zu sequences, mean %.1f tokens, longest %lld\n", batch.lengths.size(),
                static_cast<double>(o.tokens) / static_cast<double>(batch.lengths.size()),
                static_cast<long long>(batch.view.S));
    f(b, batch);
    if (o.tune > 0) save_gemm_choices(b.stream());
  };
  part("forward", [&](Bench& b, const Batch& batch) { forward_part(b, o, batch, false); });
  part("fp8", [&](Bench& b, const Batch& batch) {
    if (cuda_info(b.device()).fp8 && o.type == DType::bf16) forward_part(b, o, batch, true);
  });
  part("train", [&](Bench& b, const Batch& batch) { train_part(b, o, batch); });
  part("fp8train", [&](Bench& b, const Batch&) {
    if (cuda_info(b.device()).fp8) fp8_train_part(b, o);
  });
  part("int8", [&](Bench& b, const Batch&) { int8_part(b, o); });
  part("modern", [&](Bench& b, const Batch& batch) { modern_part(b, o, batch); });
  return 0;
}

}  // namespace
}  // namespace brim::ops

int main(int argc, char** argv) {
  try {
    return brim::ops::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
