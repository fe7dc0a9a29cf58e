// SPDX-License-Identifier: Apache-2.0
// window_gather on CUDA: one warp per row.
#include "ops/cuda/elem.cuh"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

struct GatherArgs {
  const float* values;
  const int64_t *begin, *weights, *step;
  const int32_t *end, *first, *picks;
  const LaneSpec* lanes;
  int64_t end_stride, first_stride, weights_stride, picks_stride, n, first_row;
  float *r, *y, *level, *scale, *season_scale;
  uint8_t* mask;
  int32_t* chosen;
  int B, L, H;
  bool every_window;
};

struct Points {
  const float* x;
  int first, cut, lookback;
  __device__ __forceinline__ bool has(int j) const {
    if (j >= lookback || cut - 1 - j < first) return false;
    const float v = x[cut - 1 - j];
    return v == v;
  }
  __device__ __forceinline__ float at(int j) const { return x[cut - 1 - j]; }
};

__device__ __forceinline__ int warp_min(int v) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v = min(v, __shfl_xor_sync(~0u, v, o));
  return v;
}
__device__ __forceinline__ int warp_count(int v) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}

// Half is float if no rounded copy is needed.
template <class Half>
__global__ void __launch_bounds__(256) window_gather_kernel(const GatherArgs a, Half* half, int64_t rows) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x) / 32;
  const int thread = threadIdx.x % 32;
  if (row >= rows) return;
  const int g = static_cast<int>(row / a.B), i = static_cast<int>(row % a.B);
  const LaneSpec lane = a.lanes[g];
  const int32_t *end = a.end + g * a.end_stride, *first = a.first == nullptr ? nullptr : a.first + g * a.first_stride;
  WindowPick pick;
  if (a.picks != nullptr) {
    const int32_t* given = a.picks + g * a.picks_stride + 2 * i;
    pick.series = given[0];
    pick.cut = given[1];
  } else {
    pick = window_pick(lane, a.weights + g * a.weights_stride, first, end, a.n, a.step == nullptr ? 0 : *a.step,
                       a.first_row + i, a.every_window);
  }
  const Points w{a.values + a.begin[pick.series], first == nullptr ? 0 : first[pick.series], pick.cut, lane.lookback};
  int newest = a.L;
  for (int j = thread; j < a.L; j += 32)
    if (w.has(j)) {
      newest = j;
      break;
    }
  newest = warp_min(newest);
  const float level = newest == a.L ? 0.0f : w.at(newest);
  const bool scaled = lane.scaler == WindowScaler::last;
  float sum = 0.0f;
  int count = 0;
  for (int j = thread; j < a.L; j += 32)
    if (w.has(j)) {
      sum += fabsf(w.at(j) - level);
      ++count;
    }
  sum = warp_sum(sum);
  count = warp_count(count);
  const float scale = scaled && count > 0 ? fmaf(1e-3f, fabsf(level), sum / static_cast<float>(count)) + 1e-8f : 1.0f;
  for (int j = thread; j < a.L; j += 32) {
    const bool there = w.has(j);
    const float r = !there ? 0.0f : scaled ? (w.at(j) - level) / scale : w.at(j);
    a.r[row * a.L + j] = r;
    a.mask[row * a.L + j] = there ? 1 : 0;
    if constexpr (!std::is_same_v<Half, float>) half[row * a.L + j] = from_f32<Half>(r);
  }
  for (int h = thread; h < a.H; h += 32) a.y[row * a.H + h] = pick.cut + h < end[pick.series] ? w.x[pick.cut + h] : NAN;
  if (a.season_scale != nullptr) {
    float apart = 0.0f;
    int pairs = 0;
    for (int j = thread; j + lane.season < lane.lookback; j += 32) {
      const bool now = w.has(j), then = w.has(j + lane.season);
      if (scaled && !(now && then)) continue;  // without a scaler, missing points count as zeros
      apart += fabsf((now ? w.at(j) : 0.0f) - (then ? w.at(j + lane.season) : 0.0f));
      ++pairs;
    }
    apart = warp_sum(apart);
    pairs = warp_count(pairs);
    if (thread == 0) a.season_scale[row] = pairs == 0 ? 0.0f : apart / static_cast<float>(pairs);
  }
  if (thread == 0) {
    a.level[row] = level;
    a.scale[row] = scale;
    if (a.chosen != nullptr) {
      a.chosen[2 * row] = pick.series;
      a.chosen[2 * row + 1] = pick.cut;
    }
  }
}

}  // namespace

void window_gather_cuda(device::Stream& stream, const WindowGatherArgs& a) {
  cuda_op(stream, "window_gather", [&](device::CudaStream& s) {
    GatherArgs args{};
    args.values = a.values.as<float>();
    args.begin = a.begin.as<int64_t>();
    args.weights = a.weights.as<int64_t>();
    args.step = a.step.as<int64_t>();
    args.end = a.end.as<int32_t>();
    args.first = a.first.as<int32_t>();
    args.picks = a.picks.as<int32_t>();
    args.lanes = lane_specs(a.lanes);
    args.end_stride = lane_stride(a.end);
    args.first_stride = lane_stride(a.first);
    args.weights_stride = lane_stride(a.weights);
    args.picks_stride = lane_stride(a.picks);
    args.n = a.begin.rows() - 1;
    args.first_row = a.first_row;
    args.r = a.r.as<float>();
    args.y = a.y.as<float>();
    args.level = a.level.as<float>();
    args.scale = a.scale.as<float>();
    args.season_scale = a.season_scale.as<float>();
    args.mask = a.mask.as<uint8_t>();
    args.chosen = a.chosen.as<int32_t>();
    args.B = static_cast<int>(a.r.dim[1]);
    args.L = static_cast<int>(a.r.cols());
    args.H = a.y ? static_cast<int>(a.y.cols()) : 0;
    args.every_window = a.every_window;
    const int64_t rows = a.r.rows() * a.r.dim[1];
    const auto run = [&](auto tag) {
      using Half = typename decltype(tag)::type;
      device::launch<window_gather_kernel<Half>>(s, dim3(device::blocks_for(rows, 8)), dim3(256), args,
                                                 static_cast<Half*>(a.r_half.data), rows);
    };
    if (a.r_half)
      dispatch_elem(a.r_half.dtype, run);
    else
      run(ElemTag<float>{});
  });
}

}  // namespace brim::ops
