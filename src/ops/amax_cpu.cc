// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "ops/amax.h"
#include "ops/kernel_table.h"

namespace brim::ops {

void amax_cpu(device::Stream&, const AmaxArgs& a) {
  float most = *a.amax.as<float>();
  const int64_t rows = a.x.rank < 2 ? 1 : a.x.rows(), cols = a.x.rank < 2 ? a.x.elements() : a.x.cols();
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) {
      const float x = std::fabs(a.x.as<float>()[r * a.x.ld() * (a.x.rank < 2 ? 0 : 1) + c]);
      most = x != x ? std::numeric_limits<float>::infinity() : std::max(most, x);
    }
  *a.amax.as<float>() = most;
}

void fp8_scale_cpu(device::Stream&, const Fp8ScaleArgs& a) {
  for (int64_t i = 0; i < a.amax.rows(); ++i) {
    const float most = a.amax.as<float>()[i] * a.margin;
    const bool usable = most > 0 && std::isfinite(most);
    a.quantise.as<float>()[i] = usable ? kFp8Largest / most : 1.0f;
    a.dequantise.as<float>()[i] = usable ? most / kFp8Largest : 1.0f;
  }
}

}  // namespace brim::ops
