// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
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
    const float scale = a.scale.as<float>()[i] = fp8_scale_of(a.amax.as<float>()[i] * a.margin);
    if (a.inverse) a.inverse.as<float>()[i * a.inverse.ld()] = 1 / scale;
  }
}

void fp8_remember_cpu(device::Stream&, const Fp8RememberArgs& a) {
  for (int64_t i = 0; i < a.amax.rows(); ++i) {
    float& most = a.amax.as<float>()[i];
    float* history = a.history.as<float>() + i * a.history.ld();
    if (std::isfinite(most)) {
      std::copy_backward(history, history + kFp8History - 1, history + kFp8History);
      history[0] = i < a.first_gradient ? most : most / a.unit;
    }
    most = 0;
  }
}

void fp8_delayed_scale_cpu(device::Stream&, const Fp8DelayedScaleArgs& a) {
  for (int64_t i = 0; i < a.scale.rows(); ++i) {
    const float* history = a.history.as<float>() + i * a.history.ld();
    const float most = *std::max_element(history, history + kFp8History);
    const float scale = a.scale.as<float>()[i] =
        fp8_scale_of(fp8_expected(most, i >= a.first_gradient, a.unit) * a.margin);
    if (a.inverse) a.inverse.as<float>()[i * a.inverse.ld()] = 1 / scale;
  }
}

}  // namespace brim::ops
