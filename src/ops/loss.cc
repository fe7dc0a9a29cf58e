// SPDX-License-Identifier: Apache-2.0
#include "ops/loss.h"

#include "ops/check.h"
#include "ops/kernel_table.h"

namespace brim::ops {

using tensor::DType;

void cross_entropy(device::Stream& stream, const CrossEntropyArgs& a) {
  const char* op = "cross_entropy";
  const int64_t rows = a.logits.rows(), K = a.logits.cols();
  check_view(op, "logits", a.logits, DType::f32, {rows, K});
  if (a.multi_label)
    check_view(op, "targets", a.targets, DType::f32, {rows, K});
  else
    check_view(op, "targets", a.targets, DType::i32, {rows});
  check_optional(op, "class_weights", a.class_weights, DType::f32, {K});
  if (const int n = a.teachers(); n > 0) check_view(op, "teacher", a.teacher, DType::f32, {n * rows, K});
  BRIM_CHECK(a.teachers() <= kMostTeachers, "cross_entropy: {} teachers, at most {} are supported", a.teachers(),
             kMostTeachers);
  check_view(op, "loss", a.loss, DType::f32, {1});
  check_activation(op, "d_logits", stream, a.d_logits.dtype);
  check_view(op, "d_logits", a.d_logits, a.d_logits.dtype, {rows, K});
  BRIM_CHECK(a.label_smoothing >= 0 && a.label_smoothing < 1,
             "cross_entropy: label smoothing is {}, must be at least 0 and below 1", a.label_smoothing);
  BRIM_CHECK(a.temperature > 0, "cross_entropy: temperature is {}, must be above 0", a.temperature);
  BRIM_CHECK(a.soft_weight == 0 || a.teacher, "cross_entropy: soft weight is {}, but teacher logits are missing",
             a.soft_weight);
  if (rows == 0 || K == 0) return;
  Work work{20.0 * static_cast<double>(a.logits.elements()), 0};
  a.views([&](const tensor::TensorView& v) {
    if (v) work.bytes += static_cast<double>(v.bytes());
  });
  dispatch(stream, a, work);
}

void squared_error(device::Stream& stream, const SquaredErrorArgs& a) {
  const char* op = "squared_error";
  const int64_t rows = a.logits.rows(), K = a.logits.cols();
  check_view(op, "logits", a.logits, DType::f32, {rows, K});
  check_view(op, "targets", a.targets, DType::f32, {rows, K});
  check_view(op, "loss", a.loss, DType::f32, {1});
  check_activation(op, "d_logits", stream, a.d_logits.dtype);
  check_view(op, "d_logits", a.d_logits, a.d_logits.dtype, {rows, K});
  if (rows == 0 || K == 0) return;
  const double elements = static_cast<double>(a.logits.elements());
  dispatch(stream, a, Work{4 * elements, 12 * elements});
}

// One f64 per kLossRows rows.
int64_t cross_entropy_scratch_bytes(const device::Stream&, int64_t rows, int) {
  return (rows + kLossRows - 1) / kLossRows * static_cast<int64_t>(sizeof(double));
}

}  // namespace brim::ops
