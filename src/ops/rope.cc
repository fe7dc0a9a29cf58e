// SPDX-License-Identifier: Apache-2.0
#include "ops/rope.h"

#include <cmath>

#include "ops/check.h"
#include "ops/kernel_table.h"

namespace brim::ops {

using tensor::DType;

void rope(device::Stream& stream, const RopeArgs& a) {
  const int64_t T = a.x.rows(), W = a.x.cols(), D = a.head_size;
  if (target_kind(stream) != device::DeviceKind::cpu || a.x.dtype != DType::bf16)
    check_activation("rope", "x", stream, a.x.dtype);
  check_view("rope", "x", a.x, a.x.dtype, {T, W});
  check_view("rope", "positions", a.positions, DType::i32, {T});
  BRIM_CHECK(D > 0 && D % 2 == 0 && D <= kRopeMaxHeadSize && W % D == 0,
             "rope: rows of {} with heads of {}; the head size must divide the row, be even and at most {}", W, D,
             kRopeMaxHeadSize);
  BRIM_CHECK(a.theta > 0, "rope: theta is {}, must be above 0", a.theta);
  if (T == 0 || W == 0) return;
  const Work work{3.0 * static_cast<double>(a.x.elements()),
                  2.0 * static_cast<double>(a.x.bytes()) + 4.0 * static_cast<double>(T)};
  dispatch(stream, a, work);
}

RopeFrequencies rope_frequencies(float theta, int64_t head_size) {
  RopeFrequencies frequencies{};
  for (int64_t j = 0; j < head_size / 2; ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(head_size);
    frequencies.of[j] = 1.0f / static_cast<float>(std::pow(static_cast<double>(theta), static_cast<double>(exponent)));
  }
  return frequencies;
}

}  // namespace brim::ops
