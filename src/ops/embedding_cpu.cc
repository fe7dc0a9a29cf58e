// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/convert_args.h"
#include "ops/cpu/parallel.h"
#include "ops/kernel_table.h"

namespace brim {
namespace {

cpu::TableRow table_row(const TensorView& table, int64_t row) {
  return {static_cast<const char*>(table.data) + row * table.ld() * dtype_bytes(table.dtype), cpu::elem_of(table.dtype)};
}

}  // namespace

void embedding_cpu(Stream& stream, const EmbeddingArgs& a) {
  const int64_t H = a.word.cols();
  const int32_t *ids = a.batch.ids.as<int32_t>(), *positions = a.batch.positions.as<int32_t>();
  const cpu::RowKernels& kernels = cpu::row_kernels_of(stream);
  parallel_pieces(stream, a.batch.T, rows_per_piece(H), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      BRIM_CHECK(0 <= ids[t] && ids[t] < a.word.rows(), "embedding: token {} has id {}, the table has {} rows", t, ids[t], a.word.rows());
      BRIM_CHECK(0 <= positions[t] && positions[t] < a.position.rows(), "embedding: token {} has position {}, the table has {} rows", t,
                 positions[t], a.position.rows());
      cpu::TableRow rows[3] = {table_row(a.word, ids[t]), table_row(a.position, positions[t])};
      int count = 2;
      if (a.type) rows[count++] = table_row(a.type, 0);
      float* sum = a.sum ? cpu::row_of<float>(a.sum, t) : cpu::row_of<float>(a.y, t);
      kernels.add_table_rows(rows, count, sum, H);
      kernels.norm({.x = sum, .residual = nullptr, .y = cpu::row_of<float>(a.y, t), .sum = nullptr,
                    .gamma = a.gamma.as<float>(), .beta = a.beta.as<float>(),
                    .mean = cpu::row_of<float>(a.mean, t), .rstd = cpu::row_of<float>(a.rstd, t),
                    .ld_x = H, .ld_residual = 0, .ld_y = H, .ld_sum = 0,
                    .rows = 1, .H = H, .eps = a.eps, .drop_in = {}, .drop_out = cpu::drop_rows(a.dropout, t)});
    }
  });
}

}  // namespace brim
