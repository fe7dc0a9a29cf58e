// SPDX-License-Identifier: Apache-2.0
#include "ops/relative_bias.h"

#include "ops/check.h"
#include "ops/kernel_table.h"

namespace brim::ops {

using tensor::DType;

namespace {

void check_sizes(const char* op, const char* name, const TensorView& table, DType dtype, const char* bias_name,
                 const TensorView& bias) {
  check_view(op, name, table, dtype, {table.rows(), table.cols()});
  check_view(op, bias_name, bias, DType::f32, {table.cols(), kRelativeWidth});
  BRIM_CHECK(table.rows() >= kRelativeBuckets, "{}: {} has {} buckets, must have at least {}", op, name, table.rows(),
             kRelativeBuckets);
}
Work relative_bias_work(const TensorView& bias) { return {0, 2.0 * static_cast<double>(bias.bytes())}; }

}  // namespace

void relative_bias(device::Stream& stream, const RelativeBiasArgs& a) {
  const DType type = a.table.dtype;
  BRIM_CHECK(type == DType::f32 || type == DType::f16 || type == DType::bf16,
             "relative_bias: the table is {}, must be f32, f16 or bf16", dtype_name(type));
  check_sizes("relative_bias", "table", a.table, type, "bias", a.bias);
  dispatch(stream, a, relative_bias_work(a.bias));
}

void relative_bias_grad(device::Stream& stream, const RelativeBiasGradArgs& a) {
  check_sizes("relative_bias_grad", "d_table", a.d_table, DType::f32, "d_bias", a.d_bias);
  dispatch(stream, a, relative_bias_work(a.d_bias));
}

}  // namespace brim::ops
