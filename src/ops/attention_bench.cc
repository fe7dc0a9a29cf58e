// SPDX-License-Identifier: Apache-2.0
// Benchmark of CPU attention, forward and backward: time, GFLOP/s and fraction of the register-resident fp32 peak for
// tweets, 32, 128 and 512 tokens, and one long text among short ones (which must reach the same rate).
//   attention_bench [--isa NAME] [--threads N]
// For scale, 32x128 tokens of BERT-base: 0.8 GFLOP per layer and 50 MB of q, k, v, out; at 130 GFLOP/s per core and 10
// GB/s that is 6 ms and 5 ms, so the qkv of a chunk should still be in the L2 cache when attention reads it.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>

#include "base/thread_pool.h"
#include "ops/attention.h"
#include "ops/bench.h"
#include "ops/cpu/attention_kernels.h"
#include "ops/testing.h"

namespace brim::ops {

using tensor::DType;

namespace {
using namespace brim::ops::testing;

struct Shape {
  const char* name;
  std::vector<int32_t> lengths;
};

std::vector<int32_t> tweets(int n) {  // 8 to 64 tokens, about 26 on average
  std::mt19937 generator(1);
  std::lognormal_distribution<double> length(3.15, 0.45);
  std::vector<int32_t> all;
  for (int i = 0; i < n; ++i) all.push_back(std::clamp(static_cast<int>(length(generator)), 5, 80));
  return all;
}
std::vector<int32_t> one_long() {
  std::vector<int32_t> all(64, 5);
  all[20] = 500;
  return all;
}

struct Mode {
  const char* name;
  Precision precision;
  DType type;
};
constexpr Mode kFp32{"fp32", Precision::fp32, DType::f32}, kBf16{"bf16", Precision::bf16, DType::f32},
    kBf16Views{"bf16 io", Precision::bf16, DType::bf16};

void run(const Shape& shape, int64_t N, int64_t D, device::CpuStream& stream, double peak, const Mode& mode,
         bool first_only) {
  const std::vector<int32_t> starts = starts_of(shape.lengths);
  const int64_t T = starts.back(), B = static_cast<int64_t>(shape.lengths.size()), H = N * D;
  const int threads = stream.pool() == nullptr ? 1 : stream.pool()->size();
  const int64_t S = *std::max_element(shape.lengths.begin(), shape.lengths.end());
  std::vector<int32_t> order(B);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return shape.lengths[a] > shape.lengths[b]; });
  const HostTensor qkv = random_tensor(mode.type, {T, 3 * H}, 1), start_view = int_tensor(starts),
                   order_view = int_tensor(order);
  const int64_t Tq = first_only ? B : T;
  const HostTensor out(mode.type, {Tq, H});
  const HostTensor scratch = bytes_tensor(attention_scratch_bytes(stream, T, S, H, N, mode.precision, threads));
  AttentionArgs args{.q = qkv.view().slice_cols(0, H).slice_rows(0, Tq),
                     .k = qkv.view().slice_cols(H, 2 * H),
                     .v = qkv.view().slice_cols(2 * H, 3 * H),
                     .out = out,
                     .first_query_only = first_only,
                     .heads = N,
                     .scratch = scratch,
                     .precision = mode.precision};
  args.batch = {.T = T, .B = B, .S = S, .starts = start_view, .order = order_view};
  double pairs = 0;
  for (const int32_t n : shape.lengths) pairs += static_cast<double>(n) * (first_only ? 1 : n);
  const double flops = attention_work(T, Tq, H, pairs, DType::f32).flops;
  const bench::Timing t = bench::measure([&] { attention(stream, args); });
  std::printf(
      "%-8s %-7s %-9s N %2d D %3d %s %9.1f us  %6.1f ns/token  %7.1f GFLOP/s  %4.1f %% of peak  (p10 %.1f, p90 %.1f "
      "us)\n",
      isa_name(stream.isa()), mode.name, shape.name, static_cast<int>(N), static_cast<int>(D),
      first_only ? "first" : "all  ", t.median * 1e6, t.median * 1e9 / static_cast<double>(T), flops / t.median * 1e-9,
      100 * flops / t.median / (peak * threads), t.low * 1e6, t.high * 1e6);
  std::fflush(stdout);
}

}  // namespace
}  // namespace brim::ops

int main(int argc, char** argv) {
  using namespace brim;
  using namespace brim::ops;
  std::string only;
  int threads = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--isa") == 0) only = argv[i + 1];
    if (std::strcmp(argv[i], "--threads") == 0) threads = std::atoi(argv[i + 1]);
  }
  const Shape shapes[] = {{"tweets", tweets(64)},
                          {"8x32", std::vector<int32_t>(8, 32)},
                          {"32x32", std::vector<int32_t>(32, 32)},
                          {"2x128", std::vector<int32_t>(2, 128)},
                          {"32x128", std::vector<int32_t>(32, 128)},
                          {"4x512", std::vector<int32_t>(4, 512)},
                          {"63x5+500", one_long()},
                          {"1x32", {32}}};
  for (const device::Isa isa : device::supported_isas()) {
    if (!only.empty() && only != isa_name(isa)) continue;
    std::unique_ptr<ThreadPool> pool = threads > 1 ? std::make_unique<ThreadPool>(threads) : nullptr;
    device::CpuStream stream(pool.get(), isa);
    bench::wall_clock() = false;
    const double peak = bench::fp32_peak(isa);
    bench::wall_clock() = threads > 1;
    std::printf("%s: fp32 peak %.1f GFLOP/s a thread, %d thread(s)\n", isa_name(isa), peak * 1e-9, threads);
    for (const Shape& shape : shapes)
      for (const int64_t D : {64, 32})
        for (const Mode& mode : {kFp32, kBf16, kBf16Views})
          if (mode.precision == Precision::fp32 || cpu::bf16_attention_kernels(isa) != nullptr)
            run(shape, 12, D, stream, peak, mode, false);
    for (const Mode& mode : {kFp32, kBf16Views}) run(shapes[0], 12, 64, stream, peak, mode, true);
  }
}
