// SPDX-License-Identifier: Apache-2.0
#include "ops/lane_linear.h"

#include "ops/lane_linear_testing.h"

namespace brim::ops {

using device::CpuStream;
using tensor::DType;
using tensor::TensorView;

namespace {
using namespace brim::ops::testing;

struct LaneShape {
  int64_t G, B, N, K;
};
constexpr LaneShape kShapes[] = {{1, 1, 8, 8}, {2, 7, 24, 16}, {3, 33, 40, 72}, {5, 130, 64, 48}, {9, 16, 16, 8}};

TEST(LaneLinear, AgreesWithFp64) {
  for_each_cpu_stream([](CpuStream& stream) {
    for (const LaneShape& s : kShapes)
      for (const Precision precision : {Precision::fp32, Precision::bf16})
        for (const bool relu : {false, true}) {
          const LaneTensor x(s.G, s.B, s.K, 1), w(s.G, s.N, s.K, 2, 64), bias(s.G, 1, s.N, 3, 64), y(s.G, s.B, s.N, 4);
          const HostTensor scratch = bytes_tensor(lane_linear_scratch_bytes(stream, s.G, s.B, s.N, s.K, precision, 3));
          lane_linear(
              stream,
              {.x = x, .w = w, .bias = bias.rows(), .y = y, .scratch = scratch, .precision = precision, .relu = relu});
          const double eps = precision == Precision::bf16 ? 2 * kEpsBf16 : 0;
          for (int64_t g = 0; g < s.G; ++g)
            for (int64_t i = 0; i < s.B; ++i)
              for (int64_t n = 0; n < s.N; ++n) {
                double sum = bias.at(g, 0, n), size = std::fabs(sum);
                for (int64_t k = 0; k < s.K; ++k) {
                  sum += x.at(g, i, k) * w.at(g, n, k);
                  size += std::fabs(x.at(g, i, k) * w.at(g, n, k));
                }
                // Both operands rounded where asked, a sum of K in fp32.
                ASSERT_NEAR(y.at(g, i, n), relu ? std::max(sum, 0.0) : sum,
                            (eps + static_cast<double>(s.K + 2) * kEps32) * size);
              }
        }
  });
}

TEST(LaneLinear, SharedOperandsHaveNoLaneStride) {
  CpuStream stream(nullptr, device::best_isa());
  const LaneTensor x(1, 9, 16, 1), w(1, 8, 16, 2), y(3, 9, 8, 3), one(1, 9, 8, 3);
  const HostTensor scratch = bytes_tensor(lane_linear_scratch_bytes(stream, 3, 9, 8, 16, Precision::fp32, 1));
  const auto shared = [](TensorView v) {
    v.dim[0] = 3;
    v.stride[0] = 0;
    return v;
  };
  lane_linear(stream, {.x = shared(x), .w = shared(w), .y = y, .scratch = scratch});
  lane_linear(stream, {.x = x, .w = w, .y = one, .scratch = scratch});
  for (int64_t g = 0; g < 3; ++g) EXPECT_EQ(std::memcmp(y.lane(g), one.lane(0), 9 * 8 * 4), 0);
}

// y = relu(x wᵀ + b) below, then this layer: gradients of sum(weights ∘ (x wᵀ + b)) with respect to x before its ReLU,
// w and b. Linear in each, so the reference is exact sums in fp64.
TEST(LaneLinear, GradientsAgreeWithFp64) {
  for_each_cpu_stream([](CpuStream& stream) {
    for (const LaneShape& s : kShapes)
      for (const Precision precision : {Precision::fp32, Precision::bf16})
        for (const bool add : {false, true}) {
          LaneTensor x(s.G, s.B, s.K, 1);
          for (int64_t i = 0; i < s.G * s.B * s.K; ++i) x.lane(0)[i] = std::max(x.lane(0)[i], 0.0f);
          const LaneTensor w(s.G, s.N, s.K, 2, 64), d_y(s.G, s.B, s.N, 3), d_x(s.G, s.B, s.K, 4),
              d_w(s.G, s.N, s.K, 5, 32), d_bias(s.G, 1, s.N, 6), sums(s.G, 1, s.K, 7), was_w(s.G, s.N, s.K, 5, 32),
              was_bias(s.G, 1, s.N, 6), was_sums(s.G, 1, s.K, 7);
          const HostTensor scratch =
              bytes_tensor(lane_linear_grad_scratch_bytes(stream, s.G, s.B, s.N, s.K, precision, 3));
          lane_linear_grad(stream, {.x = x,
                                    .w = w,
                                    .d_y = d_y,
                                    .d_x = d_x,
                                    .d_w = d_w,
                                    .d_bias = d_bias.rows(),
                                    .d_x_sums = sums.rows(),
                                    .scratch = scratch,
                                    .precision = precision,
                                    .x_is_relu = true,
                                    .write = add ? GradWrite::accumulate : GradWrite::overwrite,
                                    .d_x_sums_write = add ? GradWrite::accumulate : GradWrite::overwrite});
          const double eps = precision == Precision::bf16 ? 2 * kEpsBf16 : 0;
          for (int64_t g = 0; g < s.G; ++g) {
            for (int64_t k = 0; k < s.K; ++k) {
              double column = add ? was_sums.at(g, 0, k) : 0, column_size = std::fabs(column);
              for (int64_t i = 0; i < s.B; ++i) {
                double sum = 0, size = 0;
                for (int64_t n = 0; n < s.N; ++n) {
                  sum += d_y.at(g, i, n) * w.at(g, n, k);
                  size += std::fabs(d_y.at(g, i, n) * w.at(g, n, k));
                }
                const bool open = x.at(g, i, k) > 0;
                ASSERT_NEAR(d_x.at(g, i, k), open ? sum : 0, (eps + static_cast<double>(s.N + 2) * kEps32) * size);
                column += d_x.at(g, i, k);
                column_size += std::fabs(d_x.at(g, i, k));
              }
              ASSERT_NEAR(sums.at(g, 0, k), column, 4 * kEps32 * column_size);
              for (int64_t n = 0; n < s.N; ++n) {
                double sum = 0, size = 0;
                for (int64_t i = 0; i < s.B; ++i) {
                  sum += d_y.at(g, i, n) * x.at(g, i, k);
                  size += std::fabs(d_y.at(g, i, n) * x.at(g, i, k));
                }
                const double before = add ? was_w.at(g, n, k) : 0;
                ASSERT_NEAR(d_w.at(g, n, k), before + sum,
                            (eps + static_cast<double>(s.B + 2) * kEps32) * (size + std::fabs(before)));
              }
            }
            for (int64_t n = 0; n < s.N; ++n) {
              double sum = add ? was_bias.at(g, 0, n) : 0, size = std::fabs(sum);
              for (int64_t i = 0; i < s.B; ++i) {
                sum += d_y.at(g, i, n);
                size += std::fabs(d_y.at(g, i, n));
              }
              ASSERT_NEAR(d_bias.at(g, 0, n), sum, 4 * kEps32 * size);
            }
          }
        }
  });
}

// Alone, among others, and with any number of threads: the same bits.
TEST(LaneLinear, ALaneAmongOthersIsTheLaneAlone) {
  const LaneShape s{5, 70, 40, 48};
  for (const Precision precision : {Precision::fp32, Precision::bf16})
    expect_same_bits_for_all_thread_counts([&](CpuStream& stream) {
      const LaneTensor x(s.G, s.B, s.K, 1), w(s.G, s.N, s.K, 2), d_y(s.G, s.B, s.N, 3);
      LaneTensor y(s.G, s.B, s.N, 4), d_x(s.G, s.B, s.K, 4), d_w(s.G, s.N, s.K, 5);
      const int64_t bytes = std::max(lane_linear_scratch_bytes(stream, s.G, s.B, s.N, s.K, precision, 5),
                                     lane_linear_grad_scratch_bytes(stream, s.G, s.B, s.N, s.K, precision, 5));
      const HostTensor scratch = bytes_tensor(2 * bytes);
      const auto run = [&](TensorView xs, TensorView ws, TensorView ys, TensorView d_ys, TensorView d_xs,
                           TensorView d_ws) {
        lane_linear(stream, {.x = xs, .w = ws, .y = ys, .scratch = scratch, .precision = precision, .relu = true});
        lane_linear_grad(stream, {.x = xs,
                                  .w = ws,
                                  .d_y = d_ys,
                                  .d_x = d_xs,
                                  .d_w = d_ws,
                                  .scratch = scratch,
                                  .precision = precision,
                                  .x_is_relu = true});
      };
      run(x, w, y, d_y, d_x, d_w);
      for (int64_t g = 0; g < s.G; ++g) {
        const LaneTensor y1(1, s.B, s.N, 9), d_x1(1, s.B, s.K, 9), d_w1(1, s.N, s.K, 9);
        const auto only = [&](const LaneTensor& t) { return t.view().slice_rows(g, g + 1); };
        run(only(x), only(w), y1, only(d_y), d_x1, d_w1);
        EXPECT_EQ(std::memcmp(y1.lane(0), y.lane(g), static_cast<size_t>(s.B * s.N * 4)), 0);
        EXPECT_EQ(std::memcmp(d_x1.lane(0), d_x.lane(g), static_cast<size_t>(s.B * s.K * 4)), 0);
        EXPECT_EQ(std::memcmp(d_w1.lane(0), d_w.lane(g), static_cast<size_t>(s.N * s.K * 4)), 0);
      }
      std::vector<HostTensor> out;
      out.push_back(std::move(y.memory));
      out.push_back(std::move(d_x.memory));
      out.push_back(std::move(d_w.memory));
      return out;
    });
}

}  // namespace
}  // namespace brim::ops
