// SPDX-License-Identifier: Apache-2.0
// window_gather on the CPU: 32 partial sums combined like the lanes of a warp, so that sums match the GPU.
#include <cmath>
#include <limits>

#include "ops/check.h"
#include "ops/cpu/convert_args.h"
#include "ops/cpu/parallel.h"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

struct WarpSum {
  float part[32] = {};
  int64_t count = 0;
  void add(int64_t j, float x) {
    part[j % 32] += x;
    ++count;
  }
  float total() {
    for (int o = 16; o > 0; o >>= 1)
      for (int i = 0; i < o; ++i) part[i] += part[i + o];
    return part[0];
  }
};

struct WindowPoints {
  const float* x;  // start of the series
  int64_t first, cut, lookback;
  // Whether the j-th point before the cut is present.
  bool has(int64_t j) const { return j < lookback && cut - 1 - j >= first && !std::isnan(x[cut - 1 - j]); }
  float at(int64_t j) const { return x[cut - 1 - j]; }
};

float season_scale_of(const WindowPoints& w, const LaneSpec& lane) {
  WarpSum sum;
  const bool padded = lane.scaler == WindowScaler::none;  // missing points count as zeros
  for (int64_t j = 0; j + lane.season < w.lookback; ++j) {
    const bool now = w.has(j), then = w.has(j + lane.season);
    if (padded)
      sum.add(j, std::fabs((now ? w.at(j) : 0.0f) - (then ? w.at(j + lane.season) : 0.0f)));
    else if (now && then)
      sum.add(j, std::fabs(w.at(j) - w.at(j + lane.season)));
  }
  return sum.count == 0 ? 0.0f : sum.total() / static_cast<float>(sum.count);
}

}  // namespace

void window_gather_cpu(device::Stream& stream, const WindowGatherArgs& a) {
  const int64_t G = a.r.rows(), B = a.r.dim[1], L = a.r.cols(), H = a.y ? a.y.cols() : 0, n = a.begin.rows() - 1;
  const int64_t step = a.step ? *a.step.as<int64_t>() : 0;
  const LaneSpec* lanes = lane_specs(a.lanes);
  const cpu::RowKernels& kernels = cpu::row_kernels_of(stream);
  parallel_pieces(stream, G * B, 16, [&](int64_t begin, int64_t last, int) {
    for (int64_t row = begin; row < last; ++row) {
      const int64_t g = row / B, i = row % B;
      const LaneSpec& lane = lanes[g];
      const int32_t *end = a.end.as<int32_t>() + g * lane_stride(a.end),
                    *first = a.first ? a.first.as<int32_t>() + g * lane_stride(a.first) : nullptr;
      WindowPick pick{};
      if (a.picks) {
        const int32_t* given = a.picks.as<int32_t>() + g * lane_stride(a.picks) + 2 * i;
        pick = {given[0], given[1]};
      } else {
        pick = window_pick(lane, a.weights.as<int64_t>() + g * lane_stride(a.weights), first, end, n, step,
                           a.first_row + i, a.every_window);
      }
      BRIM_CHECK(
          0 <= pick.series && pick.series < n && 0 <= pick.cut && pick.cut <= end[pick.series] && lane.lookback <= L,
          "window_gather: series {} of {} cut at {} of {}, lookback {} of {}", pick.series, n, pick.cut,
          end[pick.series], lane.lookback, L);
      const WindowPoints w{a.values.as<float>() + a.begin.as<int64_t>()[pick.series],
                           first == nullptr ? 0 : first[pick.series], pick.cut, lane.lookback};
      float* r = a.r.as<float>() + row * L;
      uint8_t* mask = a.mask.as<uint8_t>() + row * L;
      int64_t newest = -1;
      for (int64_t j = 0; j < L; ++j) {
        mask[j] = w.has(j) ? 1 : 0;
        if (newest < 0 && mask[j] != 0) newest = j;
      }
      const float level = newest < 0 ? 0.0f : w.at(newest);
      float scale = 1.0f;
      if (lane.scaler == WindowScaler::last && newest >= 0) {
        WarpSum sum;
        for (int64_t j = 0; j < L; ++j)
          if (mask[j] != 0) sum.add(j, std::fabs(w.at(j) - level));
        scale = std::fma(1e-3f, std::fabs(level), sum.total() / static_cast<float>(sum.count)) + 1e-8f;
      }
      for (int64_t j = 0; j < L; ++j)
        r[j] = mask[j] == 0 ? 0.0f : lane.scaler == WindowScaler::last ? (w.at(j) - level) / scale : w.at(j);
      if (a.r_half)
        kernels.narrow(r, static_cast<char*>(a.r_half.data) + row * L * dtype_bytes(a.r_half.dtype),
                       cpu::elem_of(a.r_half.dtype), L);
      for (int64_t h = 0; h < H; ++h)
        a.y.as<float>()[row * H + h] =
            pick.cut + h < end[pick.series] ? w.x[pick.cut + h] : std::numeric_limits<float>::quiet_NaN();
      a.level.as<float>()[row] = level;
      a.scale.as<float>()[row] = scale;
      if (a.season_scale) a.season_scale.as<float>()[row] = season_scale_of(w, lane);
      if (a.chosen) {
        a.chosen.as<int32_t>()[2 * row] = pick.series;
        a.chosen.as<int32_t>()[2 * row + 1] = pick.cut;
      }
    }
  });
}

}  // namespace brim::ops
