// SPDX-License-Identifier: Apache-2.0
// Column sums of a matrix, accumulated in double because there may be many rows.
#pragma once
#include <vector>

#include "ops/cpu/convert_args.h"
#include "ops/cpu/parallel.h"
#include "ops/op.h"

namespace brim::ops {

inline void write_sums(const double* sums, const tensor::TensorView& to, GradWrite write) {
  for (int64_t c = 0; c < to.elements(); ++c) {
    float& out = to.as<float>()[c];
    out = static_cast<float>(sums[c] + (write == GradWrite::accumulate ? out : 0.0f));
  }
}

inline void sum_columns(const device::Stream& stream, const tensor::TensorView& x, const tensor::TensorView& sums,
                        GradWrite write) {
  constexpr int64_t kColumns = 64;
  const cpu::RowKernels& kernels = cpu::row_kernels_of(stream);
  // A single thread reads whole rows; several threads split the columns, so no sum is shared.
  parallel_pieces(
      stream, x.cols(), threads_of(stream) == 1 ? x.cols() : kColumns, [&](int64_t begin, int64_t end, int) {
        std::vector<double> sum(static_cast<size_t>(end - begin));
        for (int64_t t = 0; t < x.rows(); ++t)
          kernels.add_wide(sum.data(), x.as<float>() + t * x.ld() + begin, end - begin);
        write_sums(sum.data(), tensor::TensorView(sums.as<float>() + begin, tensor::DType::f32, {end - begin}), write);
      });
}

}  // namespace brim::ops
