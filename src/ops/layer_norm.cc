// SPDX-License-Identifier: Apache-2.0
#include "ops/layer_norm.h"

#include <algorithm>

#include "ops/check.h"
#include "ops/cuda/scratch.h"
#include "ops/kernel_table.h"

namespace brim::ops {

using tensor::DType;

void layer_norm(device::Stream& stream, const LayerNormArgs& a) {
  const char* op = "layer_norm";
  const int64_t T = a.x.rows(), H = a.x.cols();
  const DType type = a.x.dtype, gain = target_kind(stream) == device::DeviceKind::cuda ? type : DType::f32;
  check_activation(op, "x", stream, type);
  check_view(op, "x", a.x, type, {T, H});
  check_optional(op, "residual", a.residual, type, {T, H});
  check_norm(op, stream, a, type, gain, T, H);
  check_fp8_copy(op, a.train_fp8, T, H);
  if (T == 0 || H == 0) return;
  dispatch(stream, a, layer_norm_work(a));
}

Work layer_norm_work(const LayerNormArgs& a) {
  Work work;
  work.flops = 8.0 * static_cast<double>(a.x.elements());
  a.views([&](const tensor::TensorView& v) {
    if (v) work.bytes += static_cast<double>(v.bytes());
  });
  return work;
}

void layer_norm_grad(device::Stream& stream, const LayerNormGradArgs& a) {
  const char* op = "layer_norm_grad";
  const int64_t T = a.d_y.rows(), H = a.d_y.cols();
  const DType type = a.d_y.dtype, gain = target_kind(stream) == device::DeviceKind::cuda ? type : DType::f32;
  check_activation(op, "d_y", stream, type);
  BRIM_CHECK(static_cast<bool>(a.sum) != static_cast<bool>(a.y),
             "layer_norm_grad: exactly one of sum and y is required");
  check_optional(op, "y", a.y, type, {T, H});
  check_optional(op, "beta", a.beta, gain, {H});
  check_optional(op, "sum", a.sum, type, {T, H});
  if (a.sum) check_view(op, "mean", a.mean, DType::f32, {T});
  check_view(op, "rstd", a.rstd, DType::f32, {T});
  check_view(op, "gamma", a.gamma, gain, {H});
  check_view(op, "d_y", a.d_y, type, {T, H});
  check_view(op, "d_sum", a.d_sum, type, {T, H});
  check_optional(op, "d_x", a.d_x, type, {T, H});
  check_view(op, "d_gamma", a.d_gamma, DType::f32, {H});
  check_optional(op, "d_beta", a.d_beta, DType::f32, {H});
  check_optional(op, "d_bias", a.d_bias, DType::f32, {H});
  check_fp8_copy(op, a.train_fp8, T, H);
  BRIM_CHECK(!a.dropout.on() || a.d_x || (a.train_fp8 && !layer_norm_grad_stores_d_x(stream, type, H)),
             "layer_norm_grad: dropout is {} but d_x is missing", a.dropout.probability);
  if (T == 0 || H == 0) return;
  Work work{14.0 * static_cast<double>(a.d_y.elements()), 0};
  a.views([&](const tensor::TensorView& v) {
    if (v) work.bytes += static_cast<double>(v.bytes());
  });
  dispatch(stream, a, work);
}

bool layer_norm_grad_stores_d_x(const device::Stream& stream, DType type, int64_t H) {
  return target_kind(stream) == device::DeviceKind::cpu || type != DType::bf16 || H > kCudaNormFp8Longest;
}

int64_t layer_norm_grad_scratch_bytes(const device::Stream& stream, int64_t T, int64_t H, int) {
  if (target_kind(stream) == device::DeviceKind::cuda) return cuda_layer_norm_grad_scratch_bytes(T, H);
  // Monotonic in T, because a plan for the largest batch must cover smaller ones; at most 64 partials. Then the inverse
  // gains.
  return (std::min<int64_t>(64, (T + 15) / 16) * 2 + 1) * H * static_cast<int64_t>(sizeof(float));
}

}  // namespace brim::ops
