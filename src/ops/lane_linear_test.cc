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

// Sums in fp64 and sums of the magnitudes of their terms, the scale of rounding errors.
struct Sums {
  std::vector<double> value, size;
  void add(double sum, double absolute) {
    value.push_back(sum);
    size.push_back(absolute);
  }
};
// start + sum over k of a(k) * b(k).
template <class A, class B>
void add_dot(Sums& sums, double start, int64_t n, A&& a, B&& b) {
  double sum = start, size = std::fabs(start);
  for (int64_t k = 0; k < n; ++k) {
    sum += a(k) * b(k);
    size += std::fabs(a(k) * b(k));
  }
  sums.add(sum, size);
}
// Operands rounded according to the precision, and a sum of `depth` terms in fp32.
::testing::AssertionResult near(const LaneTensor& got, const Sums& want, Precision precision, int64_t depth) {
  const double eps = (precision == Precision::bf16 ? 2 * kEpsBf16 : 0) + static_cast<double>(depth + 2) * kEps32;
  return close(got.memory.values(), want.value, [&](size_t i) { return eps * want.size[i]; });
}

TEST(LaneLinear, MatchesFp64) {
  for (const LaneShape& s : kShapes)
    for (const bool relu : {false, true}) {
      const LaneTensor x(s.G, s.B, s.K, 1), w(s.G, s.N, s.K, 2, 64), bias(s.G, 1, s.N, 3, 64);
      Sums want;
      for (int64_t g = 0; g < s.G; ++g)
        for (int64_t i = 0; i < s.B; ++i)
          for (int64_t n = 0; n < s.N; ++n) {
            const float *a = x.lane(g) + i * s.K, *b = w.lane(g) + n * s.K;
            add_dot(
                want, bias.at(g, 0, n), s.K, [&](int64_t k) { return double{a[k]}; },
                [&](int64_t k) { return double{b[k]}; });
            if (relu) want.value.back() = std::max(want.value.back(), 0.0);
          }
      for_each_cpu_stream([&](CpuStream& stream) {
        for (const Precision precision : {Precision::fp32, Precision::bf16}) {
          const LaneTensor y(s.G, s.B, s.N, 4);
          const HostTensor scratch = bytes_tensor(lane_linear_scratch_bytes(stream, s.G, s.B, s.N, s.K, precision, 3));
          lane_linear(
              stream,
              {.x = x, .w = w, .bias = bias.rows(), .y = y, .scratch = scratch, .precision = precision, .relu = relu});
          EXPECT_TRUE(near(y, want, precision, s.K));
        }
      });
    }
}

TEST(LaneLinear, SharedOperandsHaveZeroLaneStride) {
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

// Gradient of sum(d_y ∘ (x wᵀ + b)) with respect to x before its ReLU, w and b: linear in each, so sums in fp64 are
// exact. The bias gradient of the layer below is compared with the sums of the computed d_x.
TEST(LaneLinear, GradientsMatchFp64) {
  for (const LaneShape& s : kShapes)
    for (const bool add : {false, true}) {
      const LaneTensor x(s.G, s.B, s.K, 1), w(s.G, s.N, s.K, 2, 64), d_y(s.G, s.B, s.N, 3), was_w(s.G, s.N, s.K, 5, 32),
          was_bias(s.G, 1, s.N, 6), was_sums(s.G, 1, s.K, 7);
      for (int64_t i = 0; i < s.G * s.B * s.K; ++i) x.lane(0)[i] = std::max(x.lane(0)[i], 0.0f);
      Sums want_x, want_w, want_bias;
      for (int64_t g = 0; g < s.G; ++g) {
        const float *xs = x.lane(g), *ws = w.lane(g), *ds = d_y.lane(g);
        const auto d = [&](int64_t i, int64_t n) { return double{ds[i * s.N + n]}; };
        for (int64_t i = 0; i < s.B; ++i)
          for (int64_t k = 0; k < s.K; ++k) {
            add_dot(
                want_x, 0, s.N, [&](int64_t n) { return d(i, n); }, [&](int64_t n) { return double{ws[n * s.K + k]}; });
            if (xs[i * s.K + k] <= 0) want_x.value.back() = 0;
          }
        for (int64_t n = 0; n < s.N; ++n) {
          for (int64_t k = 0; k < s.K; ++k)
            add_dot(
                want_w, add ? was_w.at(g, n, k) : 0, s.B, [&](int64_t i) { return d(i, n); },
                [&](int64_t i) { return double{xs[i * s.K + k]}; });
          add_dot(
              want_bias, add ? was_bias.at(g, 0, n) : 0, s.B, [&](int64_t i) { return d(i, n); },
              [](int64_t) { return 1.0; });
        }
      }
      for_each_cpu_stream([&](CpuStream& stream) {
        for (const Precision precision : {Precision::fp32, Precision::bf16}) {
          const LaneTensor d_x(s.G, s.B, s.K, 4), d_w(s.G, s.N, s.K, 5, 32), d_bias(s.G, 1, s.N, 6),
              sums(s.G, 1, s.K, 7);
          const HostTensor scratch =
              bytes_tensor(lane_linear_grad_scratch_bytes(stream, s.G, s.B, s.N, s.K, precision, 3));
          const GradWrite write = add ? GradWrite::accumulate : GradWrite::overwrite;
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
                                    .write = write,
                                    .d_x_sums_write = write});
          EXPECT_TRUE(near(d_x, want_x, precision, s.N));
          EXPECT_TRUE(near(d_w, want_w, precision, s.B));
          EXPECT_TRUE(near(d_bias, want_bias, Precision::fp32, 2));
          Sums want_sums;
          for (int64_t g = 0; g < s.G; ++g)
            for (int64_t k = 0; k < s.K; ++k)
              add_dot(
                  want_sums, add ? was_sums.at(g, 0, k) : 0, s.B,
                  [&](int64_t i) { return double{d_x.lane(g)[i * s.K + k]}; }, [](int64_t) { return 1.0; });
          EXPECT_TRUE(near(sums, want_sums, Precision::fp32, 2));
        }
      });
    }
}

// Products round their inputs to bf16, so values stored as bf16 give the same bits as f32.
TEST(LaneLinear, ValuesStoredAsBf16GiveTheSameBits) {
  const auto rounded = [](float v) { return static_cast<double>(to_float(tensor::to_bf16(v))); };
  for (const LaneShape& s : {LaneShape{1, 1, 8, 8}, {2, 300, 40, 72}, {1, 1100, 40, 72}, {3, 33, 24, 16}}) {
    const LaneTensor w(s.G, s.N, s.K, 1), bias(s.G, 1, s.N, 2), x16(s.G, s.B, s.K, 3, 0, DType::bf16),
        d_y16(s.G, s.B, s.N, 4, 0, DType::bf16), x(s.G, s.B, s.K, 5), d_y(s.G, s.B, s.N, 6);
    for (const auto& [from, to] : {std::pair(&x16, &x), std::pair(&d_y16, &d_y)})
      for (int64_t g = 0; g < s.G; ++g)
        for (int64_t i = 0; i < from->height * from->width; ++i)
          to->lane(g)[i] = static_cast<float>(from->memory.at(g, i));
    for_each_cpu_stream([&](CpuStream& stream) {
      if (lane_value_type(stream, Precision::bf16) != DType::bf16) return;
      const HostTensor scratch =
          bytes_tensor(std::max(lane_linear_scratch_bytes(stream, s.G, s.B, s.N, s.K, Precision::bf16, 3),
                                lane_linear_grad_scratch_bytes(stream, s.G, s.B, s.N, s.K, Precision::bf16, 3)));
      LaneTensor d_w[2] = {{s.G, s.N, s.K, 7}, {s.G, s.N, s.K, 8}}, sums[2] = {{s.G, 1, s.K, 7}, {s.G, 1, s.K, 8}};
      LaneTensor y(s.G, s.B, s.N, 9), y16(s.G, s.B, s.N, 9, 0, DType::bf16), d_x(s.G, s.B, s.K, 9),
          d_x16(s.G, s.B, s.K, 9, 0, DType::bf16);
      for (const bool half : {false, true}) {
        lane_linear(stream, {.x = half ? x16 : x,
                             .w = w,
                             .bias = bias.rows(),
                             .y = half ? y16 : y,
                             .scratch = scratch,
                             .precision = Precision::bf16,
                             .relu = true});
        lane_linear_grad(stream, {.x = half ? x16 : x,
                                  .w = w,
                                  .d_y = half ? d_y16 : d_y,
                                  .d_x = half ? d_x16 : d_x,
                                  .d_w = d_w[half],
                                  .d_x_sums = sums[half].rows(),
                                  .scratch = scratch,
                                  .precision = Precision::bf16,
                                  .x_is_relu = true});
      }
      for (int64_t g = 0; g < s.G; ++g) {
        EXPECT_EQ(std::memcmp(d_w[0].lane(g), d_w[1].lane(g), static_cast<size_t>(s.N * s.K * 4)), 0);
        EXPECT_EQ(std::memcmp(sums[0].lane(g), sums[1].lane(g), static_cast<size_t>(s.K * 4)), 0);
        for (int64_t i = 0; i < s.B * s.N; ++i) ASSERT_EQ(y16.memory.at(g, i), rounded(y.lane(g)[i])) << i;
        for (int64_t i = 0; i < s.B * s.K; ++i) ASSERT_EQ(d_x16.memory.at(g, i), rounded(d_x.lane(g)[i])) << i;
      }
    });
  }
}

// Same bits alone, among others, and with any number of threads.
TEST(LaneLinear, LaneResultDoesNotDependOnOtherLanes) {
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
