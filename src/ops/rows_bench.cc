// SPDX-License-Identifier: Apache-2.0
// Benchmark of CPU row ops: GB/s relative to the copy roof when streaming from memory, and ns per element with rows in
// cache, as in a chunk of a forward pass. Each result is checked against a value computed in fp64.
//   rows_bench [--isa NAME]
// For scale, 256 rows of 768: 0.8 MB in and out, 0.1 ms at 16 GB/s from memory; a norm has 8 flops per element, 1.6
// Mflop, 0.01 ms: from memory all ops are bandwidth-bound, in cache they are bound by loads and stores.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>

#include "ops/adamw.h"
#include "ops/bench.h"
#include "ops/embedding.h"
#include "ops/layer_norm.h"
#include "ops/loss.h"
#include "ops/rows.h"
#include "ops/testing.h"

namespace brim::ops {

using tensor::DType;

namespace {
using namespace brim::ops::testing;

double roof = 0;

void report(const device::CpuStream& stream, const char* name, int64_t rows, int64_t H, double bytes,
            const std::function<void()>& op) {
  const bench::Timing hot = bench::measure(
                          op, [] {}, 0.15),
                      cold = bench::measure(op, bench::flush_caches, 0.3);
  std::printf(
      "%-8s %-16s %5dx%-5d hot %8.1f us %6.3f ns/element %6.1f GB/s   cold %8.1f us %6.1f GB/s %4.0f %% of copy\n",
      isa_name(stream.isa()), name, static_cast<int>(rows), static_cast<int>(H), hot.median * 1e6,
      hot.median * 1e9 / static_cast<double>(rows * H), bytes / hot.median * 1e-9, cold.median * 1e6,
      bytes / cold.median * 1e-9, 100 * bytes / cold.median / roof);
  std::fflush(stdout);
}

void check(const char* name, double actual, double expected) {
  if (!(std::fabs(actual - expected) <= 1e-5 * (1 + std::fabs(expected))))
    std::printf("%s: %g, expected %g: WRONG\n", name, actual, expected);
}

void run(device::CpuStream& stream, int64_t T, int64_t H) {
  const HostTensor x = random_tensor(DType::f32, {T, H}, 1), residual = random_tensor(DType::f32, {T, H}, 2),
                   y(DType::f32, {T, H});
  const HostTensor gamma = random_tensor(DType::f32, {H}, 3), beta = random_tensor(DType::f32, {H}, 4);
  const HostTensor sum(DType::f32, {T, H}), mean(DType::f32, {T}), rstd(DType::f32, {T}), d_x(DType::f32, {T, H});
  const double row_bytes = static_cast<double>(T * H) * 4;

  const LayerNormArgs norm{.x = x, .gamma = gamma, .beta = beta, .y = y};
  report(stream, "layer_norm", T, H, 2 * row_bytes, [&] { layer_norm(stream, norm); });
  const LayerNormArgs with_residual{.x = x, .residual = residual, .gamma = gamma, .beta = beta, .y = y};
  report(stream, "layer_norm+res", T, H, 3 * row_bytes, [&] { layer_norm(stream, with_residual); });
  double m = 0, v = 0;
  for (int64_t i = 0; i < H; ++i) m += (x.at(T - 1, i) + residual.at(T - 1, i)) / static_cast<double>(H);
  for (int64_t i = 0; i < H; ++i) v += std::pow(x.at(T - 1, i) + residual.at(T - 1, i) - m, 2) / static_cast<double>(H);
  check("layer_norm", y.at(T - 1, H - 1),
        (x.at(T - 1, H - 1) + residual.at(T - 1, H - 1) - m) / std::sqrt(v) * gamma.at(H - 1) + beta.at(H - 1));
  const LayerNormArgs training{.x = x,
                               .residual = residual,
                               .gamma = gamma,
                               .beta = beta,
                               .y = y,
                               .sum = sum,
                               .mean = mean,
                               .rstd = rstd,
                               .dropout = {.probability = 0.1f, .seed = 1}};
  report(stream, "layer_norm train", T, H, 4 * row_bytes, [&] { layer_norm(stream, training); });
  const HostTensor d_gamma = random_tensor(DType::f32, {H}, 5), d_beta = random_tensor(DType::f32, {H}, 6),
                   d_sum(DType::f32, {T, H});
  const HostTensor scratch = bytes_tensor(layer_norm_grad_scratch_bytes(stream, T, H, 1));
  LayerNormGradArgs grad{.y = y,
                         .beta = beta,
                         .rstd = rstd,
                         .gamma = gamma,
                         .d_y = residual,
                         .d_sum = d_sum,
                         .d_x = d_x,
                         .d_gamma = d_gamma,
                         .d_beta = d_beta,
                         .scratch = scratch,
                         .dropout = {.probability = 0.1f, .seed = 1}};
  report(stream, "layer_norm_grad, y", T, H, 4 * row_bytes, [&] { layer_norm_grad(stream, grad); });
  grad.y = grad.beta = {};
  grad.sum = sum;
  grad.mean = mean;
  report(stream, "layer_norm_grad, sum", T, H, 4 * row_bytes, [&] { layer_norm_grad(stream, grad); });
  report(stream, "gelu", T, H, 2 * row_bytes, [&] { activate(stream, {.x = x, .y = y}); });
  check("gelu", y.at(0, 0), 0.5 * x.at(0, 0) * std::erfc(-x.at(0, 0) / std::sqrt(2.0)));
  report(stream, "gelu_grad", T, H, 3 * row_bytes,
         [&] { activate_grad(stream, {.x = x, .d_y = residual, .d_x = d_x}); });
  report(stream, "dropout_rows", T, H, 2 * row_bytes,
         [&] { dropout_rows(stream, {.x = x, .y = y, .dropout = {.probability = 0.1f, .seed = 1}}); });
  report(stream, "softmax", T, H, 2 * row_bytes, [&] { softmax(stream, {.x = x, .y = y}); });
  const HostTensor half(DType::bf16, {T, H});
  report(stream, "convert to bf16", T, H, 1.5 * row_bytes, [&] { convert(stream, {.x = x, .y = half}); });

  const int64_t V = 30522;
  const HostTensor word = random_tensor(DType::bf16, {V, H}, 7), position = random_tensor(DType::bf16, {512, H}, 8);
  std::vector<int32_t> ids, positions;
  for (int64_t t = 0; t < T; ++t) {
    ids.push_back(static_cast<int32_t>(t * 7919 % V));
    positions.push_back(static_cast<int32_t>(t % 30));
  }
  const HostTensor id_view = int_tensor(ids), position_view = int_tensor(positions);
  EmbeddingArgs embed{.word = word, .position = position, .gamma = gamma, .beta = beta, .y = y};
  embed.batch = {.T = T, .ids = id_view, .positions = position_view};
  report(stream, "embedding bf16", T, H, 1.5 * row_bytes, [&] { embedding(stream, embed); });
}

void run_optimizer(device::CpuStream& stream, int64_t n) {
  const HostTensor master = random_tensor(DType::f32, {n}, 1), grad = random_tensor(DType::f32, {n}, 2),
                   m = random_tensor(DType::f32, {n}, 3, 0), v = random_tensor(DType::f32, {n}, 3, 0),
                   m8(DType::u8, {n}), v8(DType::u8, {n}), copy(DType::bf16, {n});
  const int64_t blocks = (n + kAdamBlock - 1) / kAdamBlock;
  const HostTensor m_scale = random_tensor(DType::f32, {blocks}, 1, 0),
                   v_scale = random_tensor(DType::f32, {blocks}, 1, 0);
  std::memset(m8.view().data, 0, static_cast<size_t>(n));
  std::memset(v8.view().data, 0, static_cast<size_t>(n));
  const HostTensor table(DType::f32, {1, 1, kAdamWRowFloats});
  set_step(stream, {.rows = table, .row = adamw_row(1e-4f, 0.9f, 0.999f, 1e-8f, 0.01f, 1)});
  const AdamWArgs full{.master = master, .grad = grad, .m = m, .v = v, .table = {.rows = table}};
  report(stream, "adamw", 1, n, 28.0 * static_cast<double>(n), [&] { adamw(stream, full); });
  const AdamWArgs eight{.master = master,
                        .grad = grad,
                        .m = m8,
                        .v = v8,
                        .m_scale = m_scale,
                        .v_scale = v_scale,
                        .table = {.rows = table}};
  report(stream, "adamw 8-bit", 1, n, 16.0 * static_cast<double>(n), [&] { adamw(stream, eight); });
  const HostTensor norm(DType::f32, {1}), factor(DType::f32, {1}), scratch = bytes_tensor(grad_norm_scratch_bytes(n));
  report(stream, "grad_norm", 1, n, 4.0 * static_cast<double>(n),
         [&] { grad_norm(stream, {.grad = grad, .norm = norm, .factor = factor, .scratch = scratch, .max_norm = 1}); });
}

}  // namespace
}  // namespace brim::ops

int main(int argc, char** argv) {
  using namespace brim;
  using namespace brim::ops;
  const std::string only = argc == 3 && std::strcmp(argv[1], "--isa") == 0 ? argv[2] : "";
  roof = bench::copy_roof();
  std::printf("copy %.1f GB/s (read and written), one thread\n", roof * 1e-9);
  for (const device::Isa isa : device::supported_isas()) {
    if (only.empty() ? isa == device::Isa::amx : only != isa_name(isa)) continue;
    device::CpuStream stream(nullptr, isa);
    run(stream, 256, 768);
    run(stream, 256, 384);
    run_optimizer(stream, 1 << 18);
  }
}
