// SPDX-License-Identifier: Apache-2.0
// relative_bias: expands a table of biases by distance bucket to biases by distance, as read by attention. Distances up
// to 7 have a bucket each, then buckets grow, with the last one holding all distances from 91; keys after the query use
// the second half of the buckets.
#pragma once
#include "ops/op.h"

namespace brim::ops {

using tensor::TensorView;

constexpr int64_t kRelativeBuckets = 32, kRelativeReach = 91, kRelativeWidth = 2 * kRelativeReach + 1;

// Bucket of (key position - query position). The bounds match the fp32 logarithm of transformers.
constexpr int relative_bucket(int64_t distance) {
  constexpr int bounds[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91};
  const int64_t away = distance < 0 ? -distance : distance;
  int bucket = distance > 0 ? static_cast<int>(kRelativeBuckets / 2) : 0;
  for (const int bound : bounds) bucket += away >= bound ? 1 : 0;
  return bucket;
}

struct RelativeBiasArgs {
  TensorView table;  // [buckets,N], at least 32 buckets, of which 32 are used. f32, f16 or bf16
  TensorView bias;   // [N,kRelativeWidth] f32

  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {table, bias}) f(v);
  }
};
void relative_bias(device::Stream& stream, const RelativeBiasArgs& args);

struct RelativeBiasGradArgs {
  TensorView d_bias;   // [N,kRelativeWidth] f32
  TensorView d_table;  // [buckets,N] f32, accumulated

  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {d_bias, d_table}) f(v);
  }
};
void relative_bias_grad(device::Stream& stream, const RelativeBiasGradArgs& args);

}  // namespace brim::ops
