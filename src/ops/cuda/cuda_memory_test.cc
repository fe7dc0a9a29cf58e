// SPDX-License-Identifier: Apache-2.0
// After every kernel and algorithm has run once, device memory in use does not change. Other processes on the GPU would
// change it too, so this test runs alone (bench/gpu/check).
#include "device/graph.h"
#include "ops/attention.h"
#include "ops/cuda/testing.h"
#include "ops/layer_norm.h"
#include "ops/linear.h"

namespace brim::ops {
namespace {
using namespace brim::ops::testing;
using CudaMemory = CudaOps;

TEST_F(CudaMemory, DoesNotChangeAfterWarmupAndGraphsMatchEagerBits) {
  if (Gpu::emulated()) GTEST_SKIP() << "no GPU";
  const tensor::DType type = cuda_info(Gpu::device()).bf16 ? tensor::DType::bf16 : tensor::DType::f16;
  const Precision precision = type == tensor::DType::bf16 ? Precision::bf16 : Precision::fp16;
  const PackedBatch packed({40, 200, 12, 31, 5, 129, 64, 300});
  const int64_t T = packed.batch.T, H = 768;
  const DeviceTensor x(random_tensor(type, {T, H}, 1)), w(random_tensor(type, {3 * H, H}, 2, 0.05)),
      bias(random_tensor(type, {3 * H}, 3)), qkv(type, {T, 3 * H}), att(type, {T, H}), y(type, {T, H}),
      again(type, {T, H}), gamma(random_tensor(type, {H}, 4));
  const auto run = [&](const tensor::TensorView& to, int64_t rows) {
    LinearArgs a{.x = x.view().slice_rows(0, rows),
                 .bias = bias,
                 .y = qkv.view().slice_rows(0, rows),
                 .scratch = gemm_scratch()};
    a.w = {.N = 3 * H, .K = H, .precision = precision, .data = w};
    linear(Gpu::stream(), a);
    if (rows == T)
      attention(Gpu::stream(), {.q = qkv.view().slice_cols(0, H),
                                .k = qkv.view().slice_cols(H, 2 * H),
                                .v = qkv.view().slice_cols(2 * H, 3 * H),
                                .out = att,
                                .batch = packed.batch,
                                .heads = 12});
    layer_norm(Gpu::stream(), {.x = att.view().slice_rows(0, rows),
                               .residual = x.view().slice_rows(0, rows),
                               .gamma = gamma,
                               .beta = gamma,
                               .y = to.slice_rows(0, rows)});
  };
  run(y, T);
  for (int64_t rows = 1; rows < T; rows = rows * 2) run(again, rows);
  Gpu::stream().synchronize();
  const int64_t before = Gpu::device().memory().free_bytes;
  for (int64_t rows = 1; rows <= T; rows += 37) run(again, rows);
  run(y, T);
  Gpu::stream().synchronize();
  EXPECT_EQ(Gpu::device().memory().free_bytes, before) << "did another process use the GPU?";

  begin_capture(Gpu::stream());
  run(again, T);
  const auto graph = end_capture(Gpu::stream());
  Gpu::stream().fill_zero(again.view().data, static_cast<size_t>(again.view().bytes()));
  graph->launch(Gpu::stream());
  EXPECT_TRUE(same_bits(again.host(), y.host()));
}

}  // namespace
}  // namespace brim::ops
