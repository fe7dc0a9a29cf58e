// SPDX-License-Identifier: Apache-2.0
// forecast_loss: forecasts ŷ = level + scale f, their loss per lane, and its gradient with respect to f, in fp32.
//   smape     200 |ŷ-y| / (|ŷ|+|y|), the denominator taken as constant
//   mape      |ŷ-y| / |y|
//   mase      |ŷ-y| / mean |x[t] - x[t-season]| of the row's own window
//   mae, mse, huber, quantile (pinball)   of e = f - (y-level)/scale; scaled, else large series would dominate
// Cells with a zero denominator and missing targets count as 0. The mean is over all cells, including missing ones, or
// over the present ones only. The summation order depends only on the rows of a lane.
#pragma once
#include "ops/lane.h"
#include "ops/op.h"

namespace brim::ops {

using tensor::TensorView;

constexpr int64_t kForecastRows = 8;  // windows per partial sum of losses

struct ForecastLossArgs {
  TensorView f;             // [G,B,F] f32: Q forecasts of H points, one quantile after another; the rest is not read
  TensorView level, scale;  // [G,B] f32
  TensorView lanes;         // [G,sizeof(LaneSpec)] u8
  TensorView y;             // [G,B,H] f32, NaN if missing; empty to compute forecasts only
  TensorView season_scale;  // [G,B] f32; empty if no lane uses the mase loss
  TensorView quantiles;     // [Q] f32; empty for a single 0.5
  TensorView loss;          // [rows,G] f32: writes row `step` modulo rows
  TensorView step;          // [1] i64 on the device; empty for row 0
  TensorView d_f;           // [G,B,F] f32; optional
  TensorView y_hat;         // [G,B,Q*H] f32; optional
  TensorView scratch;       // u8[forecast_loss_scratch_bytes]
  int64_t horizon = 0;      // H
  int64_t windows = 0;      // windows in the lane's whole step, if this is a part of it; 0: all are here
  GradWrite loss_write = GradWrite::overwrite;
  bool mean_of_present = false;  // not for parts of a step

  template <class F>
  void views(F&& g) const {
    for (const TensorView& v : {f, level, scale, lanes, y, season_scale, quantiles, loss, step, d_f, y_hat, scratch})
      g(v);
  }
};
void forecast_loss(device::Stream& stream, const ForecastLossArgs& args);
int64_t forecast_loss_scratch_bytes(int64_t lanes, int64_t windows);

// One cell. `season` is the season_scale of the row, `level` and `scale` are its own.
struct LossCell {
  float loss, slope;  // d loss / d f
};
BRIM_HOST_DEVICE static inline LossCell forecast_cell(const LaneSpec& lane, float f, float y, float level, float scale,
                                                      float season, float quantile) {
  const auto sign = [](float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f; };
  const auto size = [](float x) { return x < 0.0f ? -x : x; };
  if (y != y) return {0.0f, 0.0f};
  const float e = f - (y - level) / scale, predicted = level + scale * f, apart = predicted - y;
  switch (lane.loss) {
    case ForecastLoss::mae:
      return {size(e), sign(e)};
    case ForecastLoss::mse:
      return {e * e, 2.0f * e};
    case ForecastLoss::huber:
      if (size(e) <= lane.huber_delta) return {0.5f * e * e, e};
      return {lane.huber_delta * (size(e) - 0.5f * lane.huber_delta), lane.huber_delta * sign(e)};
    case ForecastLoss::quantile:
      return e > 0.0f ? LossCell{(1.0f - quantile) * e, 1.0f - quantile}
                      : LossCell{-quantile * e, e < 0.0f ? -quantile : 0.0f};
    case ForecastLoss::smape: {
      const float both = size(predicted) + size(y);
      if (both == 0.0f) return {0.0f, 0.0f};
      return {200.0f * size(apart) / both, 200.0f * sign(apart) / both * scale};
    }
    case ForecastLoss::mape:
      if (y == 0.0f) return {0.0f, 0.0f};
      return {size(apart) / size(y), sign(apart) / size(y) * scale};
    case ForecastLoss::mase:
      if (season == 0.0f) return {0.0f, 0.0f};
      return {size(apart) / season, sign(apart) / season * scale};
  }
  return {0.0f, 0.0f};
}

}  // namespace brim::ops
