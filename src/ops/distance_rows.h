// SPDX-License-Identifier: Apache-2.0
// distance_rows: one row per distance between two tokens, from a table with a row per bucket of distances (DeBERTa).
// The result is an argument of attention. Does not project the rows.
#pragma once
#include <cmath>

#include "ops/dropout.h"
#include "ops/op.h"

namespace brim::ops {

using tensor::TensorView;

// The buckets of a table of 2 span rows: distances of up to buckets / 2 have their own, further ones share logarithmic
// buckets. `farthest`: the distance with the last bucket.
struct DistanceBuckets {
  int64_t span = 0;
  int64_t buckets = 0;  // 0: no shared buckets
  int64_t farthest = 0;
  bool operator==(const DistanceBuckets&) const = default;
};
// Row of the table for a query's position minus a key's. Never decreases. The arithmetic in fp32 is that of
// transformers; logarithms are rounded from fp64, so that all devices agree.
BRIM_HOST_DEVICE inline int64_t distance_bucket(const DistanceBuckets& b, int64_t distance) {
  const int64_t near = b.buckets / 2, size = distance < 0 ? -distance : distance;
  int64_t row = distance;
  if (b.buckets > 0 && size > near) {
    const auto log_of = [near](int64_t d) {
      return static_cast<float>(
          std::log(static_cast<double>(static_cast<float>(static_cast<double>(d) / static_cast<double>(near)))));
    };
    const float share = log_of(size) / log_of(b.farthest - 1) * static_cast<float>(near - 1);
    row = static_cast<int64_t>(std::ceil(share)) + near;
    if (distance < 0) row = -row;
  }
  row += b.span;
  return row < 0 ? 0 : row >= 2 * b.span ? 2 * b.span - 1 : row;
}

// y[u] = x[bucket of R - u], u = R + (key position - query position).
struct DistanceRowsArgs {
  TensorView x;  // [n,C], strided rows: buckets first .. first + n - 1
  TensorView y;  // [2R+1,C], same type
  DistanceBuckets buckets;
  int64_t first = 0;

  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {x, y}) f(v);
  }
};
void distance_rows(device::Stream& stream, const DistanceRowsArgs& args);

// d_x[b] = sum of d_y over the distances of bucket b.
struct DistanceRowsGradArgs {
  TensorView d_y;  // [2R+1,C] f32, strided rows
  TensorView d_x;  // [n,C], strided rows
  DistanceBuckets buckets;
  int64_t first = 0;

  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {d_y, d_x}) f(v);
  }
};
void distance_rows_grad(device::Stream& stream, const DistanceRowsGradArgs& args);

// y += x in fp32.
struct AccumulateArgs {
  TensorView x;  // [n,C] activation type
  TensorView y;  // [n,C] f32

  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {x, y}) f(v);
  }
};
void accumulate(device::Stream& stream, const AccumulateArgs& args);

}  // namespace brim::ops
