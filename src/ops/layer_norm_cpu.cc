// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/convert_args.h"
#include "ops/cpu/parallel.h"
#include "ops/kernel_table.h"

namespace brim {

void layer_norm_cpu(Stream& stream, const LayerNormArgs& a) {
  const int64_t H = a.x.cols();
  const cpu::RowKernels& kernels = cpu::row_kernels_of(stream);
  parallel_pieces(stream, a.x.rows(), rows_per_piece(H), [&](int64_t begin, int64_t end, int) {
    kernels.norm({.x = cpu::row_of<float>(a.x, begin), .residual = cpu::row_of<float>(a.residual, begin),
                  .y = cpu::row_of<float>(a.y, begin), .sum = cpu::row_of<float>(a.sum, begin),
                  .gamma = a.gamma.as<float>(), .beta = a.beta.as<float>(),
                  .mean = cpu::row_of<float>(a.mean, begin), .rstd = cpu::row_of<float>(a.rstd, begin),
                  .ld_x = a.x.ld(), .ld_residual = a.residual.ld(), .ld_y = a.y.ld(), .ld_sum = a.sum.ld(),
                  .rows = end - begin, .H = H, .eps = a.eps, .drop_in = cpu::drop_rows(a.dropout, begin), .drop_out = {}});
  });
}

}  // namespace brim
