// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/testing.h"
#include "ops/gather_tokens.h"
#include "ops/glu.h"
#include "ops/glu_testing.h"
#include "ops/relative_bias.h"
#include "ops/rope.h"
#include "ops/rope_testing.h"
#include "ops/rows.h"

namespace brim::ops {

using tensor::DType;

namespace {
using namespace brim::ops::testing;
using CudaRows = CudaOps;

TEST_F(CudaRows, GathersRows) {
  for (const DType type : kActivationTypes)
    for (const int64_t H : {1, 7, 8, 384, 768}) {
      const HostTensor x = random_tensor(type, {23, H}, 1, 1, 0, H == 384 ? 8 : 0);
      const std::vector<int32_t> rows{0, 5, 5, 22, 13};
      const DeviceTensor dx(x), dr(int_tensor(rows)), y(type, {5, H}, H == 768 ? 16 : 0);
      gather_rows(Gpu::stream(), {.x = dx, .rows = dr, .y = y});
      const HostTensor got = y.host();
      for (int64_t b = 0; b < 5; ++b)
        for (int64_t i = 0; i < H; ++i) ASSERT_EQ(got.at(b, i), x.at(rows[b], i)) << "row " << b << " column " << i;
    }
}

TEST_F(CudaRows, GathersTokens) {
  std::vector<int32_t> set(4096);
  std::iota(set.begin(), set.end(), 1000);
  const DeviceTensor tokens(int_tensor(set));
  for (const auto& lengths : ragged_lengths()) {
    const PackedBatch packed(lengths);
    std::vector<int64_t> begins;
    for (size_t b = 0; b < lengths.size(); ++b)
      begins.push_back(static_cast<int64_t>(4096 - lengths[b] - 97 * b));  // the first one ends at the end of the set
    const DeviceTensor d_begins(long_tensor(begins)), ids(DType::i32, {packed.batch.T}),
        positions(DType::i32, {packed.batch.T});
    gather_tokens(Gpu::stream(), {.tokens = tokens,
                                  .begins = d_begins,
                                  .starts = packed.batch.starts,
                                  .ids = ids,
                                  .positions = positions,
                                  .position_offset = 2});
    const HostTensor got_ids = ids.host(), got_positions = positions.host();
    for (size_t b = 0; b < lengths.size(); ++b)
      for (int32_t i = 0; i < lengths[b]; ++i) {
        ASSERT_EQ(got_ids.as<int32_t>()[packed.starts[b] + i], set[static_cast<size_t>(begins[b] + i)])
            << "sequence " << b << " token " << i;
        ASSERT_EQ(got_positions.as<int32_t>()[packed.starts[b] + i], 2 + i) << "sequence " << b << " token " << i;
      }
  }
}

TEST_F(CudaRows, PoolsMeans) {
  for (const DType type : kActivationTypes)
    for (const auto& lengths : ragged_lengths())
      for (const int64_t H : {1, 130, 384}) {
        const PackedBatch packed(lengths);
        const HostTensor x = random_tensor(type, {packed.batch.T, H}, 2);
        const DeviceTensor dx(x), y(DType::f32, {packed.batch.B, H});
        pool_mean(Gpu::stream(), {.x = dx, .batch = packed.batch, .y = y});
        std::vector<double> want, tolerance;
        for (size_t b = 0; b < lengths.size(); ++b)
          for (int64_t i = 0; i < H; ++i) {
            double sum = 0, magnitude = 0;
            for (int32_t t = packed.starts[b]; t < packed.starts[b + 1]; ++t) {
              sum += x.at(t, i);
              magnitude += std::fabs(x.at(t, i));
            }
            const double n = std::max(1, lengths[b]);
            want.push_back(sum / n);
            tolerance.push_back(magnitude / n * (n + 2) * kEps32);
          }
        EXPECT_TRUE(close(y.values(), want, [&](size_t i) { return tolerance[i]; }));
      }
}

TEST_F(CudaRows, SpreadsMeanGradients) {
  for (const DType type : kActivationTypes)
    for (const auto& lengths : ragged_lengths())
      for (const GradWrite write : {GradWrite::overwrite, GradWrite::accumulate}) {
        const int64_t H = 130;
        const PackedBatch packed(lengths);
        const HostTensor d_y = random_tensor(type, {packed.batch.B, H}, 2),
                         before = random_tensor(type, {packed.batch.T, H}, 3);
        const DeviceTensor g_d_y(d_y), d_x(before);
        pool_mean_grad(Gpu::stream(), {.d_y = g_d_y, .batch = packed.batch, .d_x = d_x, .write = write});
        std::vector<double> want = before.values();
        for (size_t b = 0; b < lengths.size(); ++b)
          for (int32_t t = packed.starts[b]; t < packed.starts[b + 1]; ++t)
            for (int64_t i = 0; i < H; ++i) {
              double& to = want[static_cast<size_t>(t * H + i)];
              to = d_y.at(static_cast<int64_t>(b), i) / lengths[b] + (write == GradWrite::accumulate ? to : 0);
            }
        EXPECT_TRUE(close(d_x.values(), want, [&](size_t i) {
          return (eps_of(type) + 4 * kEps32) * (std::fabs(want[i]) + 1e-3) + 8 * kEps32 + smallest_of(type);
        }));
      }
}

TEST_F(CudaRows, RotatesHeadsByPosition) {
  for (const DType type : kActivationTypes)
    for (const RopeCase& c : rope_cases()) {
      SCOPED_TRACE(c.text());
      const HostTensor x = c.input(type);
      const DeviceTensor dx(x), positions(int_tensor(c.positions()));
      rope(Gpu::stream(), {.x = dx, .positions = positions, .head_size = c.D, .theta = c.theta, .back = c.back});
      c.check(dx.values(), x.values(), eps_of(type) + 2 * kEps32);
    }
}

TEST_F(CudaRows, GatesHalvesOfRows) {
  for (const DType type : kActivationTypes)
    for (const Activation activation : kEveryActivation)
      for (const int64_t F : {7, 64}) {
        SCOPED_TRACE(::testing::Message() << dtype_name(type) << " " << static_cast<int>(activation) << " F " << F);
        const HostTensor x = random_tensor(type, {5, 2 * F}, 3, 2, 0, F == 64 ? 8 : 2),
                         d_y = random_tensor(type, {5, F}, 4);
        const DeviceTensor dx(x), y(type, {5, F}), g_d_y(d_y), d_x(type, {5, 2 * F});
        glu(Gpu::stream(), {.x = dx, .y = y, .activation = activation});
        check_glu(x.values(), y.values(), F, activation, eps_of(type) * 1.01, smallest_of(type));
        glu_grad(Gpu::stream(), {.x = dx, .d_y = g_d_y, .d_x = d_x, .activation = activation});
        check_glu_grad(x.values(), d_y.values(), d_x.values(), F, activation, eps_of(type) * 1.01, smallest_of(type));
        glu_grad(Gpu::stream(), {.x = dx, .d_y = g_d_y, .d_x = dx, .y = g_d_y, .activation = activation});
        EXPECT_EQ(dx.values(), d_x.values()) << "in place";
        EXPECT_EQ(g_d_y.values(), y.values()) << "the output, written over its gradient";
      }
}

TEST_F(CudaRows, ComputesSoftmaxAndSigmoid) {
  for (const DType type : kActivationTypes)
    for (const int64_t K : {1, 2, 3, 31, 32, 33, 200})
      for (const bool sigmoid : {false, true}) {
        SCOPED_TRACE(::testing::Message() << dtype_name(type) << " K " << K << " sigmoid " << sigmoid);
        const int64_t rows = 9;
        const HostTensor x = random_tensor(type, {rows, K}, 3, 5, 0, 3);
        const DeviceTensor dx(x), y(DType::f32, {rows, K}, 5);
        softmax(Gpu::stream(), {.x = dx, .y = y, .sigmoid = sigmoid});
        std::vector<double> want;
        for (int64_t r = 0; r < rows; ++r) {
          double top = -INFINITY, sum = 0;
          for (int64_t i = 0; i < K; ++i) top = std::max(top, x.at(r, i));
          for (int64_t i = 0; i < K; ++i) sum += std::exp(x.at(r, i) - top);
          for (int64_t i = 0; i < K; ++i)
            want.push_back(sigmoid ? 1 / (1 + std::exp(-x.at(r, i))) : std::exp(x.at(r, i) - top) / sum);
        }
        // An exponent up to 40 has an error of 40 eps before exponentiation; the sum and the quotient add a few.
        EXPECT_TRUE(close(y.values(), want,
                          [&](size_t i) { return want[i] * (60 + static_cast<double>(K)) * 2 * kEps32 + 1e-37; }));
      }
}

TEST_F(CudaRows, SoftmaxAndSigmoidShowNanAndInfinity) {
  for (const DType type : kActivationTypes)
    for (const double value : {double{NAN}, double{INFINITY}, -double{INFINITY}})
      for (const bool sigmoid : {false, true}) {
        SCOPED_TRACE(::testing::Message() << dtype_name(type) << " " << value << " sigmoid " << sigmoid);
        const HostTensor x = random_tensor(type, {2, 40}, 3);
        x.set(1, 33, value);
        const DeviceTensor dx(x), y(DType::f32, {2, 40}, 5);
        softmax(Gpu::stream(), {.x = dx, .y = y, .sigmoid = sigmoid});
        const std::vector<double> scores = y.values();
        for (size_t i = 0; i < 40; ++i) EXPECT_TRUE(std::isfinite(scores[i])) << i;
        EXPECT_TRUE(std::isnan(scores[40 + 33]));
      }
}

TEST_F(CudaRows, ConvertsBetweenEveryPairOfTypes) {
  for (const DType from : kActivationTypes)
    for (const int64_t n : {1, 7, 8, 1000, 1024}) {
      const HostTensor x = random_tensor(from, {n}, 4, 3);
      const DeviceTensor dx(x);
      for (const DType to : kActivationTypes) {
        const DeviceTensor y(to, {n});
        convert(Gpu::stream(), {.x = dx, .y = y});
        const HostTensor want(to, {n});
        for (int64_t i = 0; i < n; ++i) want.set(i, 0, x.at(i));
        EXPECT_TRUE(same_bits(y.host(), want)) << dtype_name(from) << " to " << dtype_name(to);
      }
      const DeviceTensor y(DType::f8e4m3, {n}), scale(random_tensor(DType::f32, {1}, 1, 0, 100));
      convert(Gpu::stream(), {.x = dx, .y = y, .scale = scale});
      std::vector<double> want;
      for (int64_t i = 0; i < n; ++i) want.push_back(std::clamp(x.at(i) * 100, -448.0, 448.0));  // saturates
      EXPECT_TRUE(close(y.values(), want, [&](size_t i) { return 0x1p-4 * std::fabs(want[i]) + 0x1p-10; }));
    }
}

TEST_F(CudaRows, Activates) {
  for (const DType type : kActivationTypes)
    for (const Activation activation : kEveryActivation)
      for (const int64_t pad : {0, 1, 8}) {
        const HostTensor x = random_tensor(type, {11, 24}, 5, 3, 0, pad);
        const DeviceTensor dx(x), y(type, {11, 24}, pad);
        activate(Gpu::stream(), {.x = dx, .y = y, .activation = activation});
        std::vector<double> want = x.values();
        for (double& v : want) v = activation64(activation, v);
        // Accurate to a few ulp, and to the rounding of the argument of exp or erfcf times its slope.
        EXPECT_TRUE(close(
            y.values(), want,
            [&](size_t i) { return std::fabs(want[i]) * (eps_of(type) + 300 * kEps32) + smallest_of(type) + 1e-37; }))
            << dtype_name(type) << " " << static_cast<int>(activation) << " pad " << pad;
      }
  // More pieces than a block processes at a time, and a last block that is not full.
  const HostTensor x = random_tensor(DType::bf16, {5, 2056}, 5, 3);
  const DeviceTensor dx(x), apart(DType::bf16, {5, 2056}, 8), flat(DType::bf16, {5, 2056});
  activate(Gpu::stream(), {.x = dx, .y = apart});
  activate(Gpu::stream(), {.x = dx, .y = flat});
  EXPECT_EQ(flat.values(), apart.values());
}

using CudaRelativeBias = CudaOps;
TEST_F(CudaRelativeBias, MatchesTheCpu) {
  device::CpuStream cpu(nullptr, device::Isa::generic);
  for (const DType dtype : kActivationTypes)
    for (const int64_t heads : {1, 12}) {
      const HostTensor table = random_tensor(dtype, {40, heads}, 3), bias(DType::f32, {heads, kRelativeWidth}),
                       d_table = random_tensor(DType::f32, {40, heads}, 4);
      const DeviceTensor g_table(table), g_bias(DType::f32, {heads, kRelativeWidth}), g_d_table(d_table);
      relative_bias(cpu, {.table = table, .bias = bias});
      relative_bias(Gpu::stream(), {.table = g_table, .bias = g_bias});
      EXPECT_TRUE(same_bits(bias, g_bias.host()));
      relative_bias_grad(cpu, {.d_bias = bias, .d_table = d_table});
      relative_bias_grad(Gpu::stream(), {.d_bias = g_bias, .d_table = g_d_table});
      // The last buckets hold 28 and 29 distances: that many roundings of values below about 8.
      EXPECT_TRUE(close(g_d_table.values(), d_table.values(), 64 * 64 * kEps32));
    }
}

}  // namespace
}  // namespace brim::ops
