// SPDX-License-Identifier: Apache-2.0
#include "ops/window_gather.h"

#include "ops/check.h"
#include "ops/kernel_table.h"

namespace brim::ops {

using tensor::DType;

Work window_gather_work(const WindowGatherArgs& a) {
  double bytes = static_cast<double>(2 * a.r.bytes() + a.mask.bytes() + a.level.bytes() + a.scale.bytes());
  for (const TensorView& v : {a.r_half, a.y, a.y, a.season_scale})
    if (v) bytes += static_cast<double>(v.bytes());
  return {4.0 * static_cast<double>(a.r.elements()), bytes};
}

void window_gather(device::Stream& stream, const WindowGatherArgs& a) {
  const char* op = "window_gather";
  const int64_t G = a.r.rows(), B = a.r.dim[1], L = a.r.cols(), n = a.begin.rows() - 1;
  check_view(op, "values", a.values, DType::f32, {a.values.rows()});
  check_view(op, "begin", a.begin, DType::i64, {n + 1});
  check_view(op, "end", a.end, DType::i32, {G, n});
  check_optional(op, "first", a.first, DType::i32, {G, n});
  check_optional(op, "picks", a.picks, DType::i32, {G, B, 2});
  if (!a.picks) check_view(op, "weights", a.weights, DType::i64, {G, n + 1});
  check_view(op, "lanes", a.lanes, DType::u8, {G, sizeof(LaneSpec)});
  check_optional(op, "step", a.step, DType::i64, {1});
  check_view(op, "r", a.r, DType::f32, {G, B, L});
  check_optional(op, "r_half", a.r_half, a.r_half.dtype == DType::f16 ? DType::f16 : DType::bf16, {G, B, L});
  check_view(op, "mask", a.mask, DType::u8, {G, B, L});
  check_optional(op, "y", a.y, DType::f32, {G, B, a.y.cols()});
  check_view(op, "level", a.level, DType::f32, {G, B});
  check_view(op, "scale", a.scale, DType::f32, {G, B});
  check_optional(op, "season_scale", a.season_scale, DType::f32, {G, B});
  check_optional(op, "chosen", a.chosen, DType::i32, {G, B, 2});
  for (const TensorView& v : {a.r, a.r_half, a.mask, a.y, a.level, a.scale, a.season_scale, a.chosen})
    BRIM_CHECK(!v || v.contiguous(), "window_gather: {} must be contiguous", v.shape_text());
  if (G == 0 || B == 0) return;
  dispatch(stream, a, window_gather_work(a));
}

std::vector<int64_t> window_weights(const int32_t* first, const int32_t* end, int64_t n, int32_t history,
                                    Sampling sampling) {
  std::vector<int64_t> weights(static_cast<size_t>(n + 1));
  for (int64_t s = 0; s < n; ++s) {
    const int64_t cuts = end[s] - lowest_cut(first == nullptr ? 0 : first[s], end[s], history);
    const int64_t weight = cuts <= 0 ? 0 : sampling == Sampling::windows ? cuts : 1;
    weights[static_cast<size_t>(s + 1)] = weights[static_cast<size_t>(s)] + weight;
  }
  return weights;
}

}  // namespace brim::ops
