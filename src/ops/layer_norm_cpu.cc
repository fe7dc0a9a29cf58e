// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/check.h"
#include "ops/cpu/column_sums.h"
#include "ops/cpu/convert_args.h"
#include "ops/cpu/parallel.h"
#include "ops/kernel_table.h"

namespace brim::ops {

void layer_norm_cpu(device::Stream& stream, const LayerNormArgs& a) {
  const int64_t H = a.x.cols();
  const cpu::RowKernels& kernels = cpu::row_kernels_of(stream);
  parallel_pieces(stream, a.x.rows(), rows_per_piece(H), [&](int64_t begin, int64_t end, int) {
    kernels.norm({.x = cpu::row_of<float>(a.x, begin),
                  .residual = cpu::row_of<float>(a.residual, begin),
                  .y = cpu::row_of<float>(a.y, begin),
                  .sum = cpu::row_of<float>(a.sum, begin),
                  .gamma = a.gamma.as<float>(),
                  .beta = a.beta.as<float>(),
                  .mean = cpu::row_of<float>(a.mean, begin),
                  .rstd = cpu::row_of<float>(a.rstd, begin),
                  .ld_x = a.x.ld(),
                  .ld_residual = a.residual.ld(),
                  .ld_y = a.y.ld(),
                  .ld_sum = a.sum.ld(),
                  .rows = end - begin,
                  .H = H,
                  .eps = a.eps,
                  .drop_in = cpu::drop_rows(a.dropout, begin),
                  .drop_out = {}});
  });
  fp8_copy(stream, a.y, a.train_fp8);
}

// Each run of rows adds its share of d_gamma and d_beta to a row of scratch; the rows are then added in order.
void layer_norm_grad_cpu(device::Stream& stream, const LayerNormGradArgs& a) {
  const int64_t T = a.d_y.rows(), H = a.d_y.cols();
  const int64_t scratch_bytes = layer_norm_grad_scratch_bytes(stream, T, H, threads_of(stream));
  check_scratch("layer_norm_grad", a.scratch, scratch_bytes);
  auto* partial = static_cast<float*>(a.scratch.data);
  const int64_t partials = scratch_bytes / (2 * H * static_cast<int64_t>(sizeof(float))),
                rows = (T + partials - 1) / partials;
  float* inverse_gain = nullptr;
  if (a.y) {
    inverse_gain = partial + partials * 2 * H;
    for (int64_t i = 0; i < H; ++i) {
      const float gamma = a.gamma.as<float>()[i], beta = a.beta ? a.beta.as<float>()[i] : 0.0f;
      const bool undone = std::fabs(gamma) >= std::max(kLeastGain, kLeastGainOfOffset * std::fabs(beta));
      inverse_gain[i] = undone ? 1.0f / gamma : 0.0f;
    }
  }
  const cpu::RowKernels& kernels = cpu::row_kernels_of(stream);
  parallel_pieces(stream, T, rows, [&](int64_t begin, int64_t end, int) {
    float* d_gamma = partial + begin / rows * 2 * H;
    std::memset(d_gamma, 0, static_cast<size_t>(2 * H) * sizeof(float));
    kernels.norm_grad({.x = cpu::row_of<float>(a.y ? a.y : a.sum, begin),
                       .mean = cpu::row_of<float>(a.mean, begin),
                       .beta = a.beta.as<float>(),
                       .inverse_gain = inverse_gain,
                       .rstd = cpu::row_of<float>(a.rstd, begin),
                       .gamma = a.gamma.as<float>(),
                       .d_y = cpu::row_of<float>(a.d_y, begin),
                       .d_sum = cpu::row_of<float>(a.d_sum, begin),
                       .d_x = cpu::row_of<float>(a.d_x, begin),
                       .d_gamma = d_gamma,
                       .d_beta = d_gamma + H,
                       .ld_x = a.y ? a.y.ld() : a.sum.ld(),
                       .ld_d_y = a.d_y.ld(),
                       .ld_d_sum = a.d_sum.ld(),
                       .ld_d_x = a.d_x.ld(),
                       .rows = end - begin,
                       .H = H,
                       .accumulate = a.d_sum_write == GradWrite::accumulate,
                       .drop = cpu::drop_rows(a.dropout, begin)});
  });
  for (int64_t i = 0; i * rows < T; ++i) {
    kernels.add(a.d_gamma.as<float>(), partial + i * 2 * H, H);
    if (a.d_beta) kernels.add(a.d_beta.as<float>(), partial + i * 2 * H + H, H);
  }
  const tensor::TensorView& of_x = a.d_x ? a.d_x : a.d_sum;
  if (a.d_bias) sum_columns(stream, of_x, a.d_bias, GradWrite::accumulate);
  fp8_copy(stream, of_x, a.train_fp8);
}

}  // namespace brim::ops
