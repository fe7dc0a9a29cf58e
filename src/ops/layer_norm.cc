// SPDX-License-Identifier: Apache-2.0
#include "ops/layer_norm.h"

#include "ops/check.h"
#include "ops/kernel_table.h"

namespace brim {

void layer_norm(Stream& stream, const LayerNormArgs& a) {
  const char* op = "layer_norm";
  const int64_t T = a.x.rows(), H = a.x.cols();
  const DType type = a.x.dtype, gain = target_kind(stream) == DeviceKind::cuda ? type : DType::f32;
  check_activation(op, "x", stream, type);
  check_view(op, "x", a.x, type, {T, H});
  check_optional(op, "residual", a.residual, type, {T, H});
  check_view(op, "gamma", a.gamma, gain, {H});
  check_view(op, "beta", a.beta, gain, {H});
  check_view(op, "y", a.y, type, {T, H});
  check_optional(op, "sum", a.sum, type, {T, H});
  check_optional(op, "mean", a.mean, DType::f32, {T});
  check_optional(op, "rstd", a.rstd, DType::f32, {T});
  check_optional(op, "y_fp8", a.y_fp8, DType::f8e4m3, {T, H});
  check_no_fp8_on_cpu(op, stream, a.y_fp8, a.fp8_scale);
  BRIM_CHECK(a.eps > 0, "layer_norm: eps is {}, must be above 0", a.eps);
  if (T == 0 || H == 0) return;
  dispatch(stream, Zone::layer_norm, a, layer_norm_work(a), &KernelTable::layer_norm);
}

Work layer_norm_work(const LayerNormArgs& a) {
  Work work;
  work.flops = 8.0 * static_cast<double>(a.x.elements());
  a.views([&](const TensorView& v) { if (v) work.bytes += static_cast<double>(v.bytes()); });
  return work;
}

}  // namespace brim
