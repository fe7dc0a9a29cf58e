// SPDX-License-Identifier: Apache-2.0
// forecast_loss: forecasts ŷ = level + scale f, their loss lane by lane, and its gradient with respect to f, in fp32.
//   smape     200 |ŷ-y| / (|ŷ|+|y|), the denominator taken as constant      mape   |ŷ-y| / |y|
//   mase      |ŷ-y| / mean |x[t] - x[t-season]| of the row's own window
//   mae, mse, huber, quantile (pinball)   of e = f - (y-level)/scale: scaled, else large series rule
// What is divided by zero counts 0, and so do targets that are not there. The mean is over all cells, absent ones
// included, or over those that are there. Sums run in an order that depends on the rows of a lane alone.
#pragma once
#include "ops/lane.h"
#include "ops/op.h"

namespace brim::ops {

using tensor::TensorView;

constexpr int64_t kForecastRows = 8;  // windows whose losses are one partial sum

struct ForecastLossArgs {
  TensorView f;             // [G,B,F] f32: Q forecasts of H points, one quantile after another; the rest is not read
  TensorView level, scale;  // [G,B] f32
  TensorView lanes;         // [G,sizeof(LaneSpec)] u8
  TensorView y;             // [G,B,H] f32, NaN: not there; empty: forecasts alone are wanted
  TensorView season_scale;  // [G,B] f32; empty where no lane's loss is mase
  TensorView quantiles;     // [Q] f32; empty: one, 0.5
  TensorView loss;          // [rows,G] f32: row `step` modulo rows is written
  TensorView step;          // [1] i64 on the device; empty: row 0
  TensorView d_f;           // [G,B,F] f32; empty: not wanted
  TensorView y_hat;         // [G,B,Q*H] f32; empty: not wanted
  TensorView scratch;       // u8[forecast_loss_scratch_bytes]
  int64_t horizon = 0;      // H
  int64_t windows = 0;      // of a lane's whole step, of which these are a part; 0: these are all
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

// One cell. `season` is the row's season_scale, `level` and `scale` its own.
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
