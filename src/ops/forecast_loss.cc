// SPDX-License-Identifier: Apache-2.0
#include "ops/forecast_loss.h"

#include "ops/check.h"
#include "ops/kernel_table.h"

namespace brim::ops {

using tensor::DType;

void forecast_loss(device::Stream& stream, const ForecastLossArgs& a) {
  const char* op = "forecast_loss";
  const int64_t G = a.f.rows(), B = a.f.dim[1], F = a.f.cols(), H = a.horizon, Q = a.quantiles ? a.quantiles.rows() : 1;
  BRIM_CHECK(H > 0 && Q * H <= F, "forecast_loss: {} forecasts of {} points in {} columns", Q, H, F);
  BRIM_CHECK(!a.mean_of_present || a.windows == 0 || a.windows == B,
             "forecast_loss: the mean over present values needs all {} windows, {} given", a.windows, B);
  check_view(op, "f", a.f, DType::f32, {G, B, F});
  check_view(op, "level", a.level, DType::f32, {G, B});
  check_view(op, "scale", a.scale, DType::f32, {G, B});
  check_view(op, "lanes", a.lanes, DType::u8, {G, sizeof(LaneSpec)});
  check_optional(op, "quantiles", a.quantiles, DType::f32, {Q});
  check_optional(op, "y_hat", a.y_hat, DType::f32, {G, B, Q * H});
  if (a.y) {
    check_view(op, "y", a.y, DType::f32, {G, B, H});
    check_optional(op, "season_scale", a.season_scale, DType::f32, {G, B});
    check_view(op, "loss", a.loss, DType::f32, {a.loss.rows(), G});
    check_optional(op, "step", a.step, DType::i64, {1});
    check_optional(op, "d_f", a.d_f, DType::f32, {G, B, F});
    check_scratch(op, a.scratch, forecast_loss_scratch_bytes(G, B));
  }
  for (const TensorView& v : {a.f, a.level, a.scale, a.y, a.season_scale, a.loss, a.d_f, a.y_hat})
    BRIM_CHECK(!v || v.contiguous(), "forecast_loss: {} must be contiguous", v.shape_text());
  if (G == 0 || B == 0) return;
  Work work{12.0 * static_cast<double>(G * B * Q * H), static_cast<double>(a.f.bytes())};
  for (const TensorView& v : {a.y, a.d_f, a.y_hat})
    if (v) work.bytes += static_cast<double>(v.bytes());
  dispatch(stream, a, work);
}

// One partial sum per kForecastRows windows of a lane, plus the lane's number of present targets.
int64_t forecast_loss_scratch_bytes(int64_t lanes, int64_t windows) {
  return lanes * ((windows + kForecastRows - 1) / kForecastRows + 1) * static_cast<int64_t>(sizeof(double));
}

}  // namespace brim::ops
