// SPDX-License-Identifier: Apache-2.0
#include "ops/residual_step.h"

#include "ops/testing.h"

namespace brim::ops {

using device::CpuStream;
using tensor::DType;

namespace {
using namespace brim::ops::testing;

HostTensor random_mask(std::initializer_list<int64_t> dims) {
  HostTensor mask(DType::u8, dims);
  for (int64_t i = 0; i < mask.view().elements(); ++i) mask.as<uint8_t>()[i] = i % 5 == 2 ? 0 : 1;
  return mask;
}
// A [G,B,n] tensor of normal values.
HostTensor random_lanes(int64_t G, int64_t B, int64_t n, uint64_t seed) {
  HostTensor t(DType::f32, {G, B, n});
  const HostTensor flat = random_tensor(DType::f32, {G * B * n}, seed);
  if (G * B * n > 0) std::memcpy(t.view().data, flat.view().data, static_cast<size_t>(flat.view().bytes()));
  return t;
}

TEST(ResidualStep, SubtractsMasksAndAdds) {
  for_each_cpu_stream([](CpuStream& stream) {
    for (const int64_t B : {0, 1, 7, 130})
      for (const bool first : {false, true}) {
        const int64_t G = 2, L = 24, F = 8;
        const HostTensor r = random_lanes(G, B, L, 1), o = random_lanes(G, B, L + F, 2), mask = random_mask({G, B, L}),
                         f = random_lanes(G, B, F, 3), before = random_lanes(G, B, F, 3), next(DType::f32, {G, B, L}),
                         half(DType::bf16, {G, B, L});
        residual_step(stream, {.r = r,
                               .o = o,
                               .mask = mask,
                               .r_next = next,
                               .r_half = half,
                               .f = f,
                               .f_write = first ? GradWrite::overwrite : GradWrite::accumulate});
        for (int64_t row = 0; row < G * B; ++row) {
          const float* out = o.as<float>() + row * (L + F);
          for (int64_t j = 0; j < L; ++j) {
            const int64_t i = row * L + j;
            EXPECT_EQ(next.as<float>()[i], mask.as<uint8_t>()[i] != 0 ? r.as<float>()[i] - out[j] : 0.0f);
            EXPECT_EQ(to_float(half.as<tensor::bf16_t>()[i]), to_float(tensor::to_bf16(next.as<float>()[i])));
          }
          for (int64_t h = 0; h < F; ++h)
            EXPECT_EQ(f.as<float>()[row * F + h], (first ? 0.0f : before.as<float>()[row * F + h]) + out[L + h]);
        }
        residual_step(stream, {.r = r, .o = o, .mask = mask, .f = f});  // the last block: forecasts only
        EXPECT_EQ(
            std::memcmp(r.view().data, random_lanes(G, B, L, 1).view().data, static_cast<size_t>(r.view().bytes())), 0);
      }
  });
}

// The loss is a fixed weighting of r_next and f; finite differences in fp64.
TEST(ResidualStep, GradientMatchesFiniteDifferences) {
  const int64_t G = 2, B = 3, L = 8, F = 8, rows = G * B;
  const HostTensor mask = random_mask({G, B, L}), weigh_r = random_lanes(G, B, L, 4),
                   weigh_f = random_lanes(G, B, F, 5);
  std::vector<double> r = random_lanes(G, B, L, 1).values(), o(static_cast<size_t>(rows * (L + F)));
  r.resize(static_cast<size_t>(rows * L));
  const auto loss = [&] {
    double sum = 0;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t j = 0; j < L; ++j)
        sum += weigh_r.as<float>()[row * L + j] * (r[row * L + j] - o[row * (L + F) + j]) *
               mask.as<uint8_t>()[row * L + j];
      for (int64_t h = 0; h < F; ++h) sum += weigh_f.as<float>()[row * F + h] * o[row * (L + F) + L + h];
    }
    return sum;
  };
  const std::vector<double> want_o = finite_differences(o, loss), want_r = finite_differences(r, loss);
  for_each_cpu_stream([&](CpuStream& stream) {
    const HostTensor d_r = random_lanes(G, B, L, 4), d_o(DType::f32, {G, B, L + F});
    residual_step_grad(stream, {.d_r = d_r, .d_f = weigh_f, .mask = mask, .d_o = d_o});
    for (size_t i = 0; i < want_o.size(); ++i) EXPECT_NEAR(d_o.as<float>()[i], want_o[i], 1e-9);
    for (size_t i = 0; i < want_r.size(); ++i) EXPECT_NEAR(d_r.as<float>()[i], want_r[i], 1e-9);
    const HostTensor poison(DType::f32, {G, B, L});
    residual_step_grad(stream, {.d_r = poison, .d_f = weigh_f, .mask = mask, .d_o = d_o, .last = true});
    for (int64_t i = 0; i < rows * L; ++i) EXPECT_EQ(poison.as<float>()[i], 0.0f);
    EXPECT_EQ(d_o.as<float>()[0], 0.0f);
  });
}

}  // namespace
}  // namespace brim::ops
