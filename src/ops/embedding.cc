// SPDX-License-Identifier: Apache-2.0
#include "ops/embedding.h"

#include "ops/check.h"
#include "ops/cuda/scratch.h"
#include "ops/kernel_table.h"

namespace brim::ops {

using tensor::DType;

void embedding(device::Stream& stream, const EmbeddingArgs& a) {
  const char* op = "embedding";
  const int64_t T = a.batch.T, H = a.word.cols();
  const bool cuda = target_kind(stream) == device::DeviceKind::cuda;
  const DType type = a.y.dtype, gain = cuda ? type : DType::f32, table = cuda ? type : a.word.dtype;
  check_activation(op, "y", stream, type);
  BRIM_CHECK(table == DType::f32 || table == DType::f16 || table == DType::bf16,
             "embedding: word is {}, must be f32, f16 or bf16", dtype_name(table));
  check_view(op, "ids", a.batch.ids, DType::i32, {T});
  check_view(op, "positions", a.batch.positions, DType::i32, {T});
  check_view(op, "word", a.word, table, {a.word.rows(), H});
  check_optional(op, "position", a.position, cuda ? type : a.position.dtype, {a.position.rows(), H});
  check_optional(op, "type", a.type, cuda ? type : a.type.dtype, {a.type.rows(), H});
  check_norm(op, stream, a, type, gain, T, H);
  if (T == 0 || H == 0) return;
  dispatch(stream, a, embedding_work(a));
}

Work embedding_work(const EmbeddingArgs& a) {
  const double elements = static_cast<double>(a.batch.T * a.word.cols());
  Work work{10.0 * elements, 0};
  work.bytes = elements * (dtype_bytes(a.word.dtype) + (a.position ? dtype_bytes(a.position.dtype) : 0) +
                           dtype_bytes(a.y.dtype) * (a.sum ? 2 : 1)) +
               8.0 * static_cast<double>(a.batch.T);
  if (a.y_fp8) work.bytes += elements;
  return work;
}

void embedding_grad(device::Stream& stream, const EmbeddingGradArgs& a) {
  const char* op = "embedding_grad";
  const int64_t T = a.batch.T, H = a.d_sum.cols();
  check_activation(op, "d_sum", stream, a.d_sum.dtype);
  check_view(op, "d_sum", a.d_sum, a.d_sum.dtype, {T, H});
  check_view(op, "ids", a.batch.ids, DType::i32, {T});
  check_view(op, "positions", a.batch.positions, DType::i32, {T});
  check_view(op, "sorted", a.sorted, DType::i32, {T});
  check_view(op, "sorted_positions", a.sorted_positions, DType::i32, {T});
  check_view(op, "d_word", a.d_word, DType::f32, {a.d_word.rows(), H});
  check_optional(op, "d_position", a.d_position, DType::f32, {a.d_position.rows(), H});
  check_optional(op, "d_type", a.d_type, DType::f32, {a.d_type.rows(), H});
  if (T == 0 || H == 0) return;
  const double elements = static_cast<double>(a.d_sum.elements()),
               tables = 1 + (a.d_position ? 1 : 0) + (a.d_type ? 1 : 0);
  const Work work{tables * elements, elements * dtype_bytes(a.d_sum.dtype) * tables + 16.0 * elements};
  dispatch(stream, a, work);
}

// The CPU divides columns among threads and needs none.
int64_t embedding_grad_scratch_bytes(const device::Stream& stream, int64_t T, int64_t H, int64_t types) {
  return target_kind(stream) == device::DeviceKind::cuda ? cuda_lane_sums_bytes(types, T, H) : 0;
}

}  // namespace brim::ops
