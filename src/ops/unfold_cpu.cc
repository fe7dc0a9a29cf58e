// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/convert_args.h"
#include "ops/cpu/parallel.h"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

// Row `offset` rows from t if it belongs to the same sequence; else -1.
int64_t neighbour(const int32_t* positions, int64_t T, int64_t t, int64_t offset) {
  const int64_t at = t + offset;
  return at >= 0 && at < T && positions[at] - positions[t] == offset ? at : -1;
}

}  // namespace

void unfold_cpu(device::Stream& stream, const UnfoldArgs& a) {
  const int64_t T = a.x.rows(), C = a.x.cols(), width = a.width;
  const int32_t* positions = a.positions.as<int32_t>();
  parallel_pieces(stream, T, rows_per_piece(C * width), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t i = 0; i < width; ++i) {
        const int64_t from = neighbour(positions, T, t, i - width / 2);
        float* y = cpu::row_of<float>(a.y, t) + i;
        const float* x = from < 0 ? nullptr : cpu::row_of<float>(a.x, from);
        for (int64_t c = 0; c < C; ++c) y[c * width] = x == nullptr ? 0.0f : x[c];
      }
  });
}

void unfold_grad_cpu(device::Stream& stream, const UnfoldGradArgs& a) {
  const int64_t T = a.d_x.rows(), C = a.d_x.cols(), width = a.width;
  const int32_t* positions = a.positions.as<int32_t>();
  parallel_pieces(stream, T, rows_per_piece(C * width), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t i = 0; i < width; ++i) {
        const int64_t to = neighbour(positions, T, t, width / 2 - i);
        if (to < 0) continue;
        const float* d_y = cpu::row_of<float>(a.d_y, to) + i;
        float* d_x = cpu::row_of<float>(a.d_x, t);
        for (int64_t c = 0; c < C; ++c) d_x[c] += d_y[c * width];
      }
  });
}

}  // namespace brim::ops
