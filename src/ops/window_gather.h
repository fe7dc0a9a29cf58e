// SPDX-License-Identifier: Apache-2.0
// window_gather: draws training windows from a store of series on the device. The series and cut are a pure function of
// (lane's seed, step, row): there is no generator state, any step can be drawn again, and lanes are independent.
// Integers are identical on all devices; sums are fp32 in one order, so results have the same bits if fused alike. A
// window is levelled, scaled and reversed: index 0 is its newest point.
//   level l = the newest present point;  s = mean |x - l| over the present points + 1e-3 |l| + 1e-8
//   r[j] = (x[cut-1-j] - l) / s if that point is present, else 0      (scaler none: r[j] = x[cut-1-j], s = 1)
// so that a forecast f means l + s f. One value per point (one channel).
#pragma once
#include <vector>

#include "ops/lane.h"
#include "ops/op.h"

namespace brim::ops {

using tensor::TensorView;

struct WindowGatherArgs {
  TensorView values;          // [V] f32, concatenated series; NaN if missing
  TensorView begin;           // [n+1] i64: start of each series in values
  TensorView end;             // [G,n] i32: end of the visible points of a series; nothing at or after it is read
  TensorView first;           // [G,n] i32: first visible point; empty for 0
  TensorView weights;         // [G,n+1] i64 from window_weights; not read if `picks` are given
  TensorView lanes;           // [G,sizeof(LaneSpec)] u8
  TensorView step;            // [1] i64 on the device; empty for 0
  TensorView picks;           // [G,B,2] i32 (series, cut) instead of random draws, or empty
  TensorView r;               // [G,B,L] f32, written: newest first
  TensorView r_half;          // [G,B,L] f16 or bf16: r rounded, or empty
  TensorView mask;            // [G,B,L] u8: 1 if the point is present
  TensorView y;               // [G,B,H] f32: points from the cut on, NaN if missing; optional
  TensorView level, scale;    // [G,B] f32
  TensorView season_scale;    // [G,B] f32: mean |x[t] - x[t-season]| over the window; optional
  TensorView chosen;          // [G,B,2] i32: the drawn picks; optional
  int64_t first_row = 0;      // number of the first row, so that parts of a batch match the whole
  bool every_window = false;  // weights count windows (Sampling::windows), not series

  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {values, begin, end, first, weights, lanes, step, picks, r, r_half, mask, y, level,
                                scale, season_scale, chosen})
      f(v);
  }
};
void window_gather(device::Stream& stream, const WindowGatherArgs& args);
Work window_gather_work(const WindowGatherArgs& args);

// series: every series with a window is equally likely, then each of its windows. windows: every window is equally
// likely.
enum class Sampling : uint8_t { series, windows };

// Cuts are in [lowest_cut, end): at least one point before and one after.
BRIM_HOST_DEVICE static inline int32_t lowest_cut(int32_t first, int32_t end, int32_t history) {
  const int32_t after_first = first + 1, recent = end - history;
  return after_first > recent ? after_first : recent;
}
// One lane's row of `weights`: cumulative weights before each series. `first` may be null.
std::vector<int64_t> window_weights(const int32_t* first, const int32_t* end, int64_t n, int32_t history,
                                    Sampling sampling);

struct WindowPick {
  int32_t series, cut;
};
// `weights`, `first` and `end` are those of the lane.
BRIM_HOST_DEVICE static inline WindowPick window_pick(const LaneSpec& lane, const int64_t* weights,
                                                      const int32_t* first, const int32_t* end, int64_t n, int64_t step,
                                                      int64_t row, bool every_window) {
  const uint64_t of_step = mixed_bits(lane.seed + 0x9E3779B97F4A7C15ULL * (static_cast<uint64_t>(step) + 1)),
                 of_row = mixed_bits(of_step ^ 0xD1B54A32D192ED03ULL * (static_cast<uint64_t>(row) + 1));
  const auto at = static_cast<int64_t>(scaled_down(of_row, static_cast<uint64_t>(weights[n])));
  int64_t low = 0, high = n;  // weights[low] <= at < weights[high]
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (weights[middle] <= at)
      low = middle;
    else
      high = middle;
  }
  const int32_t lowest = lowest_cut(first == nullptr ? 0 : first[low], end[low], lane.history);
  const int64_t cuts = end[low] - lowest;
  const int64_t further = every_window ? at - weights[low]
                                       : static_cast<int64_t>(scaled_down(mixed_bits(of_row + 0xA0761D6478BD642FULL),
                                                                          static_cast<uint64_t>(cuts > 0 ? cuts : 1)));
  return {static_cast<int32_t>(low), static_cast<int32_t>(lowest + further)};
}

}  // namespace brim::ops
