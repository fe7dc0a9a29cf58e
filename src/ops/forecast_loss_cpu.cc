// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "ops/cpu/parallel.h"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

// Loss of one row; also computes its gradient and forecasts.
float forecast_row(const ForecastLossArgs& a, const LaneSpec& lane, int64_t row, float inverse) {
  const int64_t F = a.f.cols(), H = a.horizon, Q = a.quantiles ? a.quantiles.rows() : 1;
  const float *f = a.f.as<float>() + row * F, level = a.level.as<float>()[row], scale = a.scale.as<float>()[row];
  if (a.y_hat)
    for (int64_t k = 0; k < Q * H; ++k) a.y_hat.as<float>()[row * Q * H + k] = level + scale * f[k];
  if (!a.y) return 0;
  const float season = a.season_scale ? a.season_scale.as<float>()[row] : 0.0f;
  const float* y = a.y.as<float>() + row * H;
  float* d_f = a.d_f ? a.d_f.as<float>() + row * F : nullptr;
  float sum = 0;
  for (int64_t k = 0; k < Q * H; ++k) {
    const float quantile = a.quantiles ? a.quantiles.as<float>()[k / H] : 0.5f;
    const LossCell cell = forecast_cell(lane, f[k], y[k % H], level, scale, season, quantile);
    sum += cell.loss;
    if (d_f != nullptr) d_f[k] = cell.slope * inverse;
  }
  if (d_f != nullptr) std::fill(d_f + Q * H, d_f + F, 0.0f);
  return sum;
}

}  // namespace

void forecast_loss_cpu(device::Stream& stream, const ForecastLossArgs& a) {
  const int64_t G = a.f.rows(), B = a.f.dim[1], H = a.horizon, Q = a.quantiles ? a.quantiles.rows() : 1;
  const int64_t parts = (B + kForecastRows - 1) / kForecastRows;
  const LaneSpec* lanes = lane_specs(a.lanes);
  auto *partial = static_cast<double*>(a.scratch.data), *cells = partial + G * parts;
  if (a.y)
    parallel_pieces(stream, G, 1, [&](int64_t g, int64_t, int) {
      int64_t present = (a.windows > 0 ? a.windows : B) * H;
      if (a.mean_of_present) {
        const float* y = a.y.as<float>() + g * B * H;
        present = std::count_if(y, y + B * H, [](float v) { return !std::isnan(v); });
      }
      cells[g] = static_cast<double>(std::max<int64_t>(present, 1) * Q);
    });
  parallel_pieces(stream, G * parts, 1, [&](int64_t piece, int64_t, int) {
    const int64_t g = piece / parts, begin = piece % parts * kForecastRows, end = std::min(B, begin + kForecastRows);
    const float inverse = a.y ? static_cast<float>(1 / cells[g]) : 0.0f;
    double sum = 0;
    for (int64_t i = begin; i < end; ++i) sum += static_cast<double>(forecast_row(a, lanes[g], g * B + i, inverse));
    if (a.y) partial[piece] = sum;
  });
  if (!a.y) return;
  float* loss = a.loss.as<float>() + (a.step ? *a.step.as<int64_t>() % a.loss.rows() : 0) * G;
  for (int64_t g = 0; g < G; ++g) {
    double sum = 0;
    for (int64_t i = 0; i < parts; ++i) sum += partial[g * parts + i];
    const double before = a.loss_write == GradWrite::accumulate ? static_cast<double>(loss[g]) : 0;
    loss[g] = static_cast<float>(before + sum / cells[g]);
  }
}

}  // namespace brim::ops
