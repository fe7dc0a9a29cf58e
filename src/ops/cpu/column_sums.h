// SPDX-License-Identifier: Apache-2.0
// Column sums of a matrix, in double: there may be many rows, and a sum is read once.
#pragma once
#include "ops/cpu/parallel.h"
#include "ops/op.h"

namespace brim::ops {

inline void sum_columns(const device::Stream& stream, const tensor::TensorView& x, const tensor::TensorView& sums,
                        GradWrite write) {
  constexpr int64_t kColumns = 64;
  parallel_pieces(stream, x.cols(), kColumns, [&](int64_t begin, int64_t end, int) {
    double sum[kColumns] = {};
    for (int64_t t = 0; t < x.rows(); ++t) {
      const float* row = x.as<float>() + t * x.ld();
      for (int64_t c = begin; c < end; ++c) sum[c - begin] += row[c];
    }
    for (int64_t c = begin; c < end; ++c) {
      float& out = sums.as<float>()[c];
      out = static_cast<float>(sum[c - begin] + (write == GradWrite::accumulate ? out : 0.0f));
    }
  });
}

}  // namespace brim::ops
