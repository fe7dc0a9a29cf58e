// SPDX-License-Identifier: Apache-2.0
// A failing kernel among others is reported by name, although the host detects the error later and elsewhere. Each
// failure destroys a context, so each test uses its own process; the emulator cannot lose a device and does not run
// these.
#include "device/graph.h"
#include "ops/cuda/testing.h"
#include "ops/linear.h"
#include "ops/rows.h"

namespace brim::ops {

using tensor::DType;

namespace {
using namespace brim::ops::testing;
using CudaTrailDeathTest = CudaOps;

enum class Faulty { nothing, gather_rows, linear };

// Forty ops in a row; the twentieth reads an invalid address.
void run_with_a_fault(Faulty what, bool as_graph) {
  constexpr int64_t kRows = 64, kWidth = 256;
  const DeviceTensor x(random_tensor(DType::f32, {kRows, kWidth}, 1)), y(DType::f32, {kRows, kWidth}),
      gathered(DType::f32, {kRows, kWidth}), w(random_tensor(DType::f32, {kWidth, kWidth}, 2)),
      product(DType::f32, {kRows, kWidth});
  const DeviceTensor rows(int_tensor(std::vector<int32_t>(kRows, what == Faulty::gather_rows ? 1 << 30 : 0)));
  LinearArgs a{.x = x, .y = product, .scratch = gemm_scratch()};
  a.w = {.N = kWidth, .K = kWidth, .precision = Precision::fp32, .data = w};
  linear(Gpu::stream(), a);  // loads modules, which is not allowed during capture
  Gpu::stream().synchronize();
  if (what == Faulty::linear) a.x.data = reinterpret_cast<void*>(uintptr_t{1} << 46);
  if (as_graph) begin_capture(Gpu::stream());
  for (int i = 0; i < 40; ++i) {
    if (i != 20)
      softmax(Gpu::stream(), {.x = x, .y = y});
    else if (what == Faulty::linear)
      linear(Gpu::stream(), a);
    else
      gather_rows(Gpu::stream(), {.x = x, .rows = rows, .y = gathered});
  }
  if (as_graph) end_capture(Gpu::stream())->launch(Gpu::stream());
  Gpu::stream().synchronize();
}

[[noreturn]] void end_with(Faulty what, bool as_graph) {
  device::exit_as_the_program_would([&] { run_with_a_fault(what, as_graph); });
}

TEST_F(CudaTrailDeathTest, NamesTheFailingOpAmongMany) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const bool as_graph : {false, true}) {
    EXPECT_EXIT(end_with(Faulty::nothing, as_graph), ::testing::ExitedWithCode(0), "");
    EXPECT_EXIT(end_with(Faulty::gather_rows, as_graph), ::testing::ExitedWithCode(6),
                as_graph ? "cuda:0: an op of a small batch: " : "cuda:0: gather_rows: ");
    EXPECT_EXIT(end_with(Faulty::linear, as_graph), ::testing::ExitedWithCode(6),
                as_graph ? "cuda:0: an op of a small batch: " : "cuda:0: linear: ");
  }
}

}  // namespace
}  // namespace brim::ops
