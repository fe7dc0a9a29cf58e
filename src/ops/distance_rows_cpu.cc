// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/cpu/convert_args.h"
#include "ops/cpu/parallel.h"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

constexpr int64_t kColumns = 256;  // per piece

}  // namespace

void distance_rows_cpu(device::Stream& stream, const DistanceRowsArgs& a) {
  const int64_t reach = a.y.rows() / 2, C = a.y.cols();
  parallel_pieces(stream, a.y.rows(), rows_per_piece(C), [&](int64_t begin, int64_t end, int) {
    for (int64_t u = begin; u < end; ++u)
      std::copy_n(cpu::row_of<float>(a.x, distance_bucket(a.buckets, reach - u) - a.first), C,
                  cpu::row_of<float>(a.y, u));
  });
}

void distance_rows_grad_cpu(device::Stream& stream, const DistanceRowsGradArgs& a) {
  const int64_t reach = a.d_y.rows() / 2;
  parallel_pieces(stream, a.d_x.cols(), kColumns, [&](int64_t begin, int64_t end, int) {
    for (int64_t b = 0; b < a.d_x.rows(); ++b) std::fill_n(cpu::row_of<float>(a.d_x, b) + begin, end - begin, 0.0f);
    for (int64_t u = 0; u < a.d_y.rows(); ++u) {
      const float* from = cpu::row_of<float>(a.d_y, u);
      float* to = cpu::row_of<float>(a.d_x, distance_bucket(a.buckets, reach - u) - a.first);
      for (int64_t i = begin; i < end; ++i) to[i] += from[i];
    }
  });
}

void accumulate_cpu(device::Stream& stream, const AccumulateArgs& a) {
  const cpu::RowKernels& kernels = cpu::row_kernels_of(stream);
  parallel_pieces(stream, a.x.rows(), rows_per_piece(a.x.cols()), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r)
      kernels.add(cpu::row_of<float>(a.y, r), cpu::row_of<float>(a.x, r), a.x.cols());
  });
}

}  // namespace brim::ops
