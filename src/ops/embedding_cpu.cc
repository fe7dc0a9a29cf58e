// SPDX-License-Identifier: Apache-2.0
#include "base/token.h"
#include "ops/cpu/convert_args.h"
#include "ops/cpu/parallel.h"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

cpu::TableRow table_row(const tensor::TensorView& table, int64_t row) {
  return {static_cast<const char*>(table.data) + row * table.ld() * dtype_bytes(table.dtype),
          cpu::elem_of(table.dtype)};
}

// Vocabulary rows are scattered in memory: prefetch them while others are summed.
constexpr int64_t kAhead = 4;
void fetch_row(const tensor::TensorView& table, int64_t row) {
  if (row < 0 || row >= table.rows()) return;
  const char* at = static_cast<const char*>(table_row(table, row).values);
  for (int64_t i = 0; i < table.cols() * dtype_bytes(table.dtype); i += 64) __builtin_prefetch(at + i);
}

}  // namespace

void embedding_cpu(device::Stream& stream, const EmbeddingArgs& a) {
  const int64_t H = a.word.cols();
  const int32_t *ids = a.batch.ids.as<int32_t>(), *positions = a.batch.positions.as<int32_t>();
  const cpu::RowKernels& kernels = cpu::row_kernels_of(stream);
  parallel_pieces(stream, a.batch.T, rows_per_piece(H), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const int32_t id = id_of(ids[t]), type = type_of(ids[t]);
      BRIM_CHECK(id < a.word.rows(), "embedding: token {} has id {}, the table has {} rows", t, id, a.word.rows());
      if (t + kAhead < end) fetch_row(a.word, id_of(ids[t + kAhead]));
      cpu::TableRow rows[3] = {table_row(a.word, id)};
      int count = 1;
      if (a.position) {
        BRIM_CHECK(0 <= positions[t] && positions[t] < a.position.rows(),
                   "embedding: token {} has position {}, the table has {} rows", t, positions[t], a.position.rows());
        rows[count++] = table_row(a.position, positions[t]);
      }
      if (a.type) {
        BRIM_CHECK(0 <= type && type < a.type.rows(), "embedding: token {} has type {}, the table has {} rows", t, type,
                   a.type.rows());
        rows[count++] = table_row(a.type, type);
      }
      float* sum = a.sum ? cpu::row_of<float>(a.sum, t) : cpu::row_of<float>(a.y, t);
      kernels.add_table_rows(rows, count, sum, H);
      kernels.norm({.x = sum,
                    .residual = nullptr,
                    .y = cpu::row_of<float>(a.y, t),
                    .sum = nullptr,
                    .gamma = a.gamma.as<float>(),
                    .beta = a.beta.as<float>(),
                    .mean = cpu::row_of<float>(a.mean, t),
                    .rstd = cpu::row_of<float>(a.rstd, t),
                    .ld_x = H,
                    .ld_residual = 0,
                    .ld_y = H,
                    .ld_sum = 0,
                    .rows = 1,
                    .H = H,
                    .eps = a.eps,
                    .drop_in = {},
                    .drop_out = cpu::drop_rows(a.dropout, t)});
    }
  });
}

namespace {

// table[index[t] & mask] += d_sum[t] for tokens t in the given order, columns begin .. end.
void add_rows(const cpu::RowKernels& kernels, const EmbeddingGradArgs& a, const tensor::TensorView& table,
              const tensor::TensorView& order, const int32_t* index, int32_t mask, int64_t skipped, const char* name,
              int64_t begin, int64_t end) {
  const int32_t* tokens = order.as<int32_t>();
  for (int64_t i = 0; i < a.batch.T; ++i) {
    const int32_t t = tokens[i];
    BRIM_CHECK(0 <= t && t < a.batch.T, "embedding_grad: {} has token {}, the batch has {}", name, t, a.batch.T);
    const int32_t row = index[t] & mask;
    BRIM_CHECK(0 <= row && row < table.rows(), "embedding_grad: token {} has row {} of {}, which has {} rows", t, row,
               name, table.rows());
    if (row == skipped) continue;
    kernels.add(cpu::row_of<float>(table, row) + begin, cpu::row_of<float>(a.d_sum, t) + begin, end - begin);
  }
}

}  // namespace

// Threads divide the columns, each visiting the tokens in the given order, so the summation order does not depend on
// their number.
void embedding_grad_cpu(device::Stream& stream, const EmbeddingGradArgs& a) {
  const cpu::RowKernels& kernels = cpu::row_kernels_of(stream);
  parallel_pieces(stream, a.d_sum.cols(), 64, [&](int64_t begin, int64_t end, int) {
    add_rows(kernels, a, a.d_word, a.sorted, a.batch.ids.as<int32_t>(), kIdMask, a.padding_id, "word", begin, end);
    if (a.d_position)
      add_rows(kernels, a, a.d_position, a.sorted_positions, a.batch.positions.as<int32_t>(), -1, a.position_padding_id,
               "position", begin, end);
    if (!a.d_type) return;
    for (int64_t t = 0; t < a.batch.T; ++t)
      kernels.add(cpu::row_of<float>(a.d_type, type_of(a.batch.ids.as<int32_t>()[t])) + begin,
                  cpu::row_of<float>(a.d_sum, t) + begin, end - begin);
  });
}

}  // namespace brim::ops
