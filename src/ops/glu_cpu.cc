// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/activations.h"
#include "ops/cpu/convert_args.h"
#include "ops/cpu/parallel.h"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

constexpr int64_t kPiece = 512;  // columns at a time, to stay in L1

void multiply(float* y, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] *= x[i];
}

// Calls fn(row, first column, columns) for pieces of the rows.
template <class Fn>
void for_pieces(const device::Stream& stream, int64_t T, int64_t F, Fn&& fn) {
  parallel_pieces(stream, T, rows_per_piece(2 * F), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t i = 0; i < F; i += kPiece) fn(t, i, std::min(kPiece, F - i));
  });
}

}  // namespace

void glu_cpu(device::Stream& stream, const GluArgs& a) {
  const int64_t F = a.y.cols();
  const cpu::RowKernels& kernels = cpu::row_kernels_of(stream);
  const cpu::ActivationRow activate = cpu::activation_row(kernels, a.activation);
  if (a.x.dtype == tensor::DType::f32) {
    for_pieces(stream, a.x.rows(), F, [&](int64_t t, int64_t i, int64_t n) {
      const float* x = cpu::row_of<float>(a.x, t) + i;
      float* y = cpu::row_of<float>(a.y, t) + i;
      activate(x, y, n);
      multiply(y, x + F, n);
    });
    return;
  }
  for_pieces(stream, a.x.rows(), F, [&](int64_t t, int64_t i, int64_t n) {
    float active[kPiece], gate[kPiece];
    const auto* x = static_cast<const uint16_t*>(a.x.data) + t * a.x.ld() + i;
    kernels.widen(x, cpu::Elem::bf16, active, n);
    kernels.widen(x + F, cpu::Elem::bf16, gate, n);
    activate(active, active, n);
    multiply(active, gate, n);
    kernels.narrow(active, static_cast<uint16_t*>(a.y.data) + t * a.y.ld() + i, cpu::Elem::bf16, n);
  });
}

void glu_grad_cpu(device::Stream& stream, const GluGradArgs& a) {
  const int64_t F = a.d_y.cols();
  const cpu::RowKernels& kernels = cpu::row_kernels_of(stream);
  const cpu::ActivationRow activate = cpu::activation_row(kernels, a.activation);
  const cpu::ActivationGradRow slope = cpu::activation_grad_row(kernels, a.activation);
  for_pieces(stream, a.x.rows(), F, [&](int64_t t, int64_t i, int64_t n) {
    const float *x = cpu::row_of<float>(a.x, t) + i, *d_y = cpu::row_of<float>(a.d_y, t) + i;
    float* d_x = cpu::row_of<float>(a.d_x, t) + i;
    float active[kPiece], upper[kPiece];
    activate(x, active, n);
    for (int64_t j = 0; j < n; ++j) upper[j] = d_y[j] * x[F + j];
    slope(slope_reads_output(a.activation) ? active : x, upper, d_x, n);
    float* y = a.y ? cpu::row_of<float>(a.y, t) + i : nullptr;
    for (int64_t j = 0; j < n; ++j) {  // inputs and results may overlap
      const float d = d_y[j] * active[j];
      if (y != nullptr) y[j] = active[j] * x[F + j];
      d_x[F + j] = d;
    }
  });
}

}  // namespace brim::ops
