// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/cpu/parallel.h"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

constexpr int64_t kFoldRows = 8;  // rows of the result per piece

// y[w] (+)= sum over i of factors[i * step] * rows[i * ld + w], in order of i. Half of a basis is zeros.
void weighted_rows(const float* factors, int64_t step, int64_t count, const float* rows, int64_t ld, float* y,
                   int64_t W) {
  for (int64_t i = 0; i < count; ++i) {
    const float factor = factors[i * step];
    if (factor == 0.0f) continue;
    const float* row = rows + i * ld;
    for (int64_t w = 0; w < W; ++w) y[w] += factor * row[w];
  }
}

}  // namespace

void basis_fold_cpu(device::Stream& stream, const BasisFoldArgs& a) {
  const int64_t G = a.theta.rows(), P = a.theta.dim[1], W = a.theta.cols(), N = a.basis.cols();
  const int64_t pieces = (N + kFoldRows - 1) / kFoldRows;
  parallel_pieces(stream, G * pieces, 1, [&](int64_t piece, int64_t, int) {
    const int64_t g = piece / pieces, begin = piece % pieces * kFoldRows, end = std::min(N, begin + kFoldRows);
    const float *basis = a.basis.as<float>() + g * a.basis.stride[0],
                *theta = a.theta.as<float>() + g * a.theta.stride[0];
    for (int64_t n = begin; n < end; ++n) {
      float* v = a.v.as<float>() + g * a.v.stride[0] + n * a.v.stride[1];
      std::fill_n(v, W, 0.0f);
      weighted_rows(basis + n, a.basis.stride[1], P, theta, a.theta.stride[1], v, W);
    }
  });
}

void basis_fold_grad_cpu(device::Stream& stream, const BasisFoldGradArgs& a) {
  const int64_t G = a.d_theta.rows(), P = a.d_theta.dim[1], W = a.d_theta.cols(), N = a.basis.cols();
  parallel_pieces(stream, G * P, 1, [&](int64_t piece, int64_t, int) {
    const int64_t g = piece / P, p = piece % P;
    float* d_theta = a.d_theta.as<float>() + g * a.d_theta.stride[0] + p * a.d_theta.stride[1];
    if (a.d_theta_write == GradWrite::overwrite) std::fill_n(d_theta, W, 0.0f);
    weighted_rows(a.basis.as<float>() + g * a.basis.stride[0] + p * a.basis.stride[1], 1, N,
                  a.d_v.as<float>() + g * a.d_v.stride[0], a.d_v.stride[1], d_theta, W);
  });
}

}  // namespace brim::ops
