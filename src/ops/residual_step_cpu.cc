// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/cpu/convert_args.h"
#include "ops/cpu/parallel.h"
#include "ops/kernel_table.h"

namespace brim::ops {

void residual_step_cpu(device::Stream& stream, const ResidualStepArgs& a) {
  const int64_t rows = a.r.rows() * a.r.dim[1], L = a.r.cols(), F = a.f.cols();
  const cpu::RowKernels& kernels = cpu::row_kernels_of(stream);
  parallel_pieces(stream, rows, rows_per_piece(L + F), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const float *r = a.r.as<float>() + row * L, *o = a.o.as<float>() + row * (L + F);
      float* f = a.f.as<float>() + row * F;
      if (a.f_write == GradWrite::overwrite)
        std::copy_n(o + L, F, f);
      else
        for (int64_t h = 0; h < F; ++h) f[h] += o[L + h];
      if (!a.r_next) continue;
      const uint8_t* mask = a.mask.as<uint8_t>() + row * L;
      float* next = a.r_next.as<float>() + row * L;
      for (int64_t j = 0; j < L; ++j) next[j] = mask[j] != 0 ? r[j] - o[j] : 0.0f;
      if (a.r_half)
        kernels.narrow(next, static_cast<char*>(a.r_half.data) + row * L * dtype_bytes(a.r_half.dtype),
                       cpu::elem_of(a.r_half.dtype), L);
    }
  });
}

void residual_step_grad_cpu(device::Stream& stream, const ResidualStepGradArgs& a) {
  const int64_t rows = a.d_r.rows() * a.d_r.dim[1], L = a.d_r.cols(), F = a.d_f.cols();
  parallel_pieces(stream, rows, rows_per_piece(L + F), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      float *d_r = a.d_r.as<float>() + row * L, *d_o = a.d_o.as<float>() + row * (L + F);
      const uint8_t* mask = a.mask.as<uint8_t>() + row * L;
      for (int64_t j = 0; j < L; ++j) {
        d_r[j] = a.last || mask[j] == 0 ? 0.0f : d_r[j];
        d_o[j] = -d_r[j];
      }
      std::copy_n(a.d_f.as<float>() + row * F, F, d_o + L);
    }
  });
}

}  // namespace brim::ops
