// SPDX-License-Identifier: Apache-2.0
// forecast_loss on CUDA: one warp per row; the losses of kForecastRows rows form one partial sum, and one block adds
// the partial sums of a lane in order.
#include "ops/cuda/elem.cuh"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

struct ForecastArgs {
  const float *f, *level, *scale, *y, *season_scale, *quantiles;
  const LaneSpec* lanes;
  const int64_t* step;
  float *loss, *d_f, *y_hat;
  double *partials, *cells;
  int64_t windows, loss_rows;
  int B, F, H, Q;
  bool add, mean_of_present;
};

__global__ void __launch_bounds__(256) count_cells_kernel(const ForecastArgs a) {
  __shared__ int64_t shares[256];
  const int64_t n = static_cast<int64_t>(a.B) * a.H;
  const float* y = a.y + blockIdx.x * n;
  int64_t count = 0;
  if (a.mean_of_present)
    for (int64_t i = threadIdx.x; i < n; i += 256) count += y[i] == y[i] ? 1 : 0;
  shares[threadIdx.x] = count;
  __syncthreads();
  if (threadIdx.x != 0) return;
  count = a.windows * a.H;
  if (a.mean_of_present) {
    count = 0;
    for (int i = 0; i < 256; ++i) count += shares[i];
  }
  a.cells[blockIdx.x] = static_cast<double>(max(count, int64_t{1}) * a.Q);
}

__global__ void __launch_bounds__(32 * kForecastRows) forecast_loss_kernel(const ForecastArgs a) {
  __shared__ double losses[kForecastRows];
  const int warp = threadIdx.x / 32, thread = threadIdx.x % 32, g = blockIdx.y;
  const int i = static_cast<int>(blockIdx.x) * static_cast<int>(kForecastRows) + warp, cells = a.Q * a.H;
  float sum = 0.0f;
  if (i < a.B) {
    const int64_t row = static_cast<int64_t>(g) * a.B + i;
    const LaneSpec lane = a.lanes[g];
    const float *f = a.f + row * a.F, level = a.level[row], scale = a.scale[row];
    if (a.y_hat != nullptr)
      for (int k = thread; k < cells; k += 32) a.y_hat[row * cells + k] = level + scale * f[k];
    if (a.y != nullptr) {
      const float season = a.season_scale == nullptr ? 0.0f : a.season_scale[row];
      const auto inverse = static_cast<float>(1 / a.cells[g]);
      for (int k = thread; k < a.F; k += 32) {
        LossCell cell{0.0f, 0.0f};
        if (k < cells)
          cell = forecast_cell(lane, f[k], a.y[row * a.H + k % a.H], level, scale, season,
                               a.quantiles == nullptr ? 0.5f : a.quantiles[k / a.H]);
        sum += cell.loss;
        if (a.d_f != nullptr) a.d_f[row * a.F + k] = cell.slope * inverse;
      }
    }
  }
  sum = warp_sum(sum);
  if (a.y == nullptr) return;
  if (thread == 0) losses[warp] = static_cast<double>(sum);
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = 0;
  for (int k = 0; k < kForecastRows; ++k) total += losses[k];
  a.partials[static_cast<int64_t>(g) * gridDim.x + blockIdx.x] = total;
}

__global__ void __launch_bounds__(256) finish_forecast_kernel(const ForecastArgs a, int parts) {
  __shared__ double shares[256];
  const int g = blockIdx.x;
  double sum = 0;
  for (int i = threadIdx.x; i < parts; i += 256) sum += a.partials[static_cast<int64_t>(g) * parts + i];
  shares[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < 256; ++i) sum += shares[i];
  float* loss = a.loss + (a.step == nullptr ? 0 : *a.step % a.loss_rows) * gridDim.x + g;
  *loss = static_cast<float>((a.add ? static_cast<double>(*loss) : 0.0) + sum / a.cells[g]);
}

}  // namespace

void forecast_loss_cuda(device::Stream& stream, const ForecastLossArgs& a) {
  cuda_op(stream, "forecast_loss", [&](device::CudaStream& s) {
    const int64_t G = a.f.rows(), B = a.f.dim[1];
    const unsigned parts = device::blocks_for(B, kForecastRows), lanes = static_cast<unsigned>(G);
    ForecastArgs args{};
    args.f = a.f.as<float>();
    args.level = a.level.as<float>();
    args.scale = a.scale.as<float>();
    args.y = a.y.as<float>();
    args.season_scale = a.season_scale.as<float>();
    args.quantiles = a.quantiles.as<float>();
    args.lanes = lane_specs(a.lanes);
    args.step = a.step.as<int64_t>();
    args.loss = a.loss.as<float>();
    args.d_f = a.d_f.as<float>();
    args.y_hat = a.y_hat.as<float>();
    args.partials = static_cast<double*>(a.scratch.data);
    args.cells = args.partials + G * parts;
    args.windows = a.windows > 0 ? a.windows : B;
    args.loss_rows = a.loss.rows();
    args.B = static_cast<int>(B);
    args.F = static_cast<int>(a.f.cols());
    args.H = static_cast<int>(a.horizon);
    args.Q = a.quantiles ? static_cast<int>(a.quantiles.rows()) : 1;
    args.add = a.loss_write == GradWrite::accumulate;
    args.mean_of_present = a.mean_of_present;
    if (a.y) launch<count_cells_kernel>(s, dim3(lanes), dim3(256), args);
    launch<forecast_loss_kernel>(s, dim3(parts, lanes), dim3(32 * kForecastRows), args);
    if (a.y) launch<finish_forecast_kernel>(s, dim3(lanes), dim3(256), args, static_cast<int>(parts));
  });
}

}  // namespace brim::ops
