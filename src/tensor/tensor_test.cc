// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tensor/dtype.h"
#include "tensor/tensor_view.h"

namespace brim::tensor {
namespace {

TEST(DType, HalfConversionsRoundTripEveryValue) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const f16_t h{static_cast<uint16_t>(bits)};
    const float f = to_float(h);
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(to_float(to_f16(f))));
    } else {
      ASSERT_EQ(to_f16(f).bits, h.bits) << bits;
    }
    const bf16_t b{static_cast<uint16_t>(bits)};
    if (!std::isnan(to_float(b))) {
      ASSERT_EQ(to_bf16(to_float(b)).bits, b.bits);
    }
  }
}

TEST(DType, ReadsFp8) {
  const uint8_t codes[] = {0x00, 0x01, 0x38, 0xB8, 0x7E, 0xFE, 0x08};
  float values[std::size(codes)];
  convert_elements(codes, DType::f8e4m3, values, DType::f32, std::size(codes));
  const float want[] = {0, 0x1p-9f, 1, -1, 448, -448, 0x1p-6f};
  for (size_t i = 0; i < std::size(codes); ++i) EXPECT_EQ(values[i], want[i]) << i;
  const uint8_t no_number = 0xFF;
  convert_elements(&no_number, DType::f8e4m3, values, DType::f32, 1);
  EXPECT_NE(values[0], values[0]);
}

TEST(DType, RoundsToNearestEven) {
  EXPECT_EQ(to_f16(65519.0f).bits, 0x7BFF);             // below the midpoint: largest finite
  EXPECT_EQ(to_f16(65520.0f).bits, 0x7C00);             // midpoint: infinity
  EXPECT_EQ(to_f16(1.0f + 0x1p-11f).bits, 0x3C00);      // tie to even, down
  EXPECT_EQ(to_f16(1.0f + 3 * 0x1p-11f).bits, 0x3C02);  // tie to even, up
  EXPECT_EQ(to_f16(0x1p-25f).bits, 0);                  // half the smallest subnormal: tie to zero
  EXPECT_EQ(to_f16(-0x1.8p-25f).bits, 0x8001);
  EXPECT_EQ(to_bf16(1.0f + 0x1p-8f).bits, 0x3F80);
  EXPECT_EQ(to_bf16(1.0f + 3 * 0x1p-8f).bits, 0x3F82);
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::bit_cast<float>(0x7F800001)))));
}

TEST(TensorView, SlicesKeepStridesAndCheckBounds) {
  float storage[24];
  TensorView t(storage, DType::f32, {4, 6});
  const auto s = t.slice_rows(1, 3).slice_cols(2, 5);
  EXPECT_EQ(s.as<float>(), storage + 8);
  EXPECT_EQ(s.ld(), 6);
  EXPECT_FALSE(s.contiguous());
  EXPECT_EQ(s.elements(), 6);
  EXPECT_THROW((void)t.slice_rows(2, 5), Error);
  EXPECT_THROW((void)s.reshape({6}), Error);
  EXPECT_THROW((void)t.as<int8_t>(), Error);
  EXPECT_EQ(t.reshape({2, 12}).shape_text(), "f32[2,12]");
}

}  // namespace
}  // namespace brim::tensor
