// SPDX-License-Identifier: Apache-2.0
// Functions of vec.h compared with fp64, and a check that a forced instruction set selects its kernels.
#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/row_kernels.h"
#include "ops/testing.h"

namespace brim::ops {

using device::Isa;

namespace {
using namespace brim::ops::testing;

std::string expected_table(Isa isa) {
  switch (isa) {
    case Isa::avx512_vnni:
    case Isa::amx:
      return "avx512";
    case Isa::neon_dot:
    case Isa::neon_mm:
      return "neon";
    default:
      return isa_name(isa);
  }
}

TEST(Kernels, EachInstructionSetHasItsOwnTable) {
  for (const Isa isa : device::supported_isas()) {
    EXPECT_EQ(cpu::row_kernels(isa).name, expected_table(isa));
    EXPECT_EQ(cpu::attention_kernels(isa).name, expected_table(isa));
  }
}

TEST(Kernels, ExpIsWithinTwoE7) {
  std::vector<float> x, y;
  for (double v = -87.3; v < 88.7; v += 0.0007) x.push_back(static_cast<float>(v));
  for (int e = -40; e < 0; ++e)
    for (const float m : {1.0f, -1.0f, 1.37f, -1.91f}) x.push_back(std::ldexp(m, e));
  y.resize(x.size());
  for (const Isa isa : device::supported_isas()) {
    cpu::row_kernels(isa).exp(x.data(), y.data(), static_cast<int64_t>(x.size()));
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i)
      worst = std::max(worst, std::fabs(y[i] / std::exp(static_cast<double>(x[i])) - 1));
    EXPECT_LT(worst, 2e-7) << isa_name(isa);
    const float ends[] = {0.0f, -0.0f, -87.4f, -1e30f, -INFINITY, 88.8f, 1e30f, INFINITY, NAN};
    float at_ends[9];
    cpu::row_kernels(isa).exp(ends, at_ends, 9);
    EXPECT_EQ(at_ends[0], 1.0f);
    EXPECT_EQ(at_ends[1], 1.0f);
    for (int i = 2; i < 5; ++i) EXPECT_EQ(at_ends[i], 0.0f) << isa_name(isa) << " " << i;
    for (int i = 5; i < 8; ++i) EXPECT_EQ(at_ends[i], INFINITY) << isa_name(isa) << " " << i;
    EXPECT_TRUE(std::isnan(at_ends[8]));
  }
}

TEST(Kernels, ConversionsRoundLikeTheElementTypes) {
  std::vector<float> x;
  for (uint32_t u = 0; u < 0xFFFFFFFFu - 70001; u += 70001) x.push_back(std::bit_cast<float>(u));
  const auto n = static_cast<int64_t>(x.size());
  std::vector<uint16_t> half(x.size());
  std::vector<float> back(x.size());
  for (const Isa isa : device::supported_isas()) {
    const cpu::RowKernels& k = cpu::row_kernels(isa);
    k.narrow(x.data(), half.data(), cpu::Elem::bf16, n);
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_EQ(half[i], tensor::to_bf16(x[i]).bits) << isa_name(isa) << " " << x[i];
    k.widen(half.data(), cpu::Elem::bf16, back.data(), n);
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_EQ(std::bit_cast<uint32_t>(back[i]), static_cast<uint32_t>(half[i]) << 16);
    k.narrow(x.data(), half.data(), cpu::Elem::f16, n);
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i]))
        ASSERT_GT(half[i] & 0x7FFF, 0x7C00) << isa_name(isa);
      else
        ASSERT_EQ(half[i], tensor::to_f16(x[i]).bits) << isa_name(isa) << " " << x[i];
    }
    std::vector<uint16_t> all(0x10000);
    for (uint32_t u = 0; u < 0x10000; ++u) all[u] = static_cast<uint16_t>(u);
    std::vector<float> wide(0x10000);
    k.widen(all.data(), cpu::Elem::f16, wide.data(), 0x10000);
    for (uint32_t u = 0; u < 0x10000; ++u) {
      const float want = to_float(tensor::f16_t{all[u]});
      if (std::isnan(want))
        ASSERT_TRUE(std::isnan(wide[u]));
      else
        ASSERT_EQ(std::bit_cast<uint32_t>(wide[u]), std::bit_cast<uint32_t>(want)) << isa_name(isa) << " " << u;
    }
  }
}

}  // namespace
}  // namespace brim::ops
