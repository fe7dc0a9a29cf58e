// SPDX-License-Identifier: Apache-2.0
// A lane is one of several forecasting models computed together, with its own seed, lookback, loss and cutoff of the
// data. LaneSpec is the part used by kernels; an array of them is on the device. Tensors of lanes are [G,B,…], G
// lanes of B windows; a lane stride of 0 means that all lanes share one.
#pragma once
#include <cstdint>

#include "ops/dropout.h"  // BRIM_HOST_DEVICE
#include "tensor/tensor_view.h"

namespace brim::ops {

enum class ForecastLoss : int32_t { smape, mape, mase, mae, mse, huber, quantile };
// Scaling of a window: none, or (x - last) / mean |x - last|.
enum class WindowScaler : int32_t { none, last };

struct LaneSpec {
  uint64_t seed = 0;
  int32_t lookback = 0;  // points per window, at most the padded length
  int32_t history = 0;   // cuts are within the last `history` points of a series
  int32_t season = 1;    // for the denominator of mase
  ForecastLoss loss = ForecastLoss::mae;
  WindowScaler scaler = WindowScaler::last;
  float huber_delta = 1;
};
static_assert(sizeof(LaneSpec) == 32);

inline const LaneSpec* lane_specs(const tensor::TensorView& v) { return static_cast<const LaneSpec*>(v.data); }

// Lane stride in elements.
inline int64_t lane_stride(const tensor::TensorView& v) { return v.rank == 0 ? 0 : v.stride[0]; }

BRIM_HOST_DEVICE static inline uint64_t mixed_bits(uint64_t x) {
  x ^= x >> 32;
  x *= 0xBF58476D1CE4E5B9ULL;
  x ^= x >> 29;
  x *= 0x94D049BB133111EBULL;
  x ^= x >> 32;
  return x;
}
// Upper half of a 128-bit product: maps `bits` uniformly to 0 .. below-1.
BRIM_HOST_DEVICE static inline uint64_t scaled_down(uint64_t bits, uint64_t below) {
  const uint64_t low = bits & 0xFFFFFFFF, high = bits >> 32, b_low = below & 0xFFFFFFFF, b_high = below >> 32;
  const uint64_t middle = high * b_low + (low * b_low >> 32), other = low * b_high + (middle & 0xFFFFFFFF);
  return high * b_high + (middle >> 32) + (other >> 32);
}

}  // namespace brim::ops
