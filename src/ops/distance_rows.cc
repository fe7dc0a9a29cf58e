// SPDX-License-Identifier: Apache-2.0
#include "ops/distance_rows.h"

#include "ops/check.h"
#include "ops/kernel_table.h"

namespace brim::ops {

using tensor::DType;

namespace {

// `rows` distances, `table` the rows of the buckets from `first`.
void check_buckets(const char* op, const DistanceBuckets& b, int64_t first, int64_t table, int64_t rows) {
  BRIM_CHECK(rows % 2 == 1, "{}: {} distances, must be an odd number", op, rows);
  BRIM_CHECK(b.span > 0 && (b.buckets == 0 || (b.buckets >= 2 && b.farthest - 1 > b.buckets / 2)),
             "{}: span {}, {} buckets up to a distance of {}", op, b.span, b.buckets, b.farthest);
  const int64_t least = distance_bucket(b, -(rows / 2)), most = distance_bucket(b, rows / 2);
  BRIM_CHECK(first <= least && most < first + table, "{}: distances need buckets {} to {}, given are {} to {}", op,
             least, most, first, first + table - 1);
}

}  // namespace

void distance_rows(device::Stream& stream, const DistanceRowsArgs& a) {
  const char* op = "distance_rows";
  check_activation(op, "x", stream, a.x.dtype);
  check_view(op, "x", a.x, a.x.dtype, {a.x.rows(), a.x.cols()});
  check_view(op, "y", a.y, a.x.dtype, {a.y.rows(), a.x.cols()});
  check_buckets(op, a.buckets, a.first, a.x.rows(), a.y.rows());
  dispatch(stream, a, {0, 2.0 * static_cast<double>(a.y.bytes())});
}

void distance_rows_grad(device::Stream& stream, const DistanceRowsGradArgs& a) {
  const char* op = "distance_rows_grad";
  check_activation(op, "d_x", stream, a.d_x.dtype);
  check_view(op, "d_y", a.d_y, DType::f32, {a.d_y.rows(), a.d_x.cols()});
  check_view(op, "d_x", a.d_x, a.d_x.dtype, {a.d_x.rows(), a.d_x.cols()});
  check_buckets(op, a.buckets, a.first, a.d_x.rows(), a.d_y.rows());
  const Work work{static_cast<double>(a.d_y.elements()), 2.0 * static_cast<double>(a.d_y.bytes())};
  dispatch(stream, a, work);
}

void accumulate(device::Stream& stream, const AccumulateArgs& a) {
  check_activation("accumulate", "x", stream, a.x.dtype);
  check_view("accumulate", "x", a.x, a.x.dtype, {a.x.rows(), a.x.cols()});
  check_view("accumulate", "y", a.y, DType::f32, {a.x.rows(), a.x.cols()});
  if (a.x.elements() == 0) return;
  const Work work{static_cast<double>(a.x.elements()), 3.0 * static_cast<double>(a.y.bytes())};
  dispatch(stream, a, work);
}

}  // namespace brim::ops
