// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "ops/check.h"
#include "ops/cpu/convert_args.h"
#include "ops/cpu/parallel.h"
#include "ops/kernel_table.h"

namespace brim::ops {

void adamw_cpu(device::Stream& stream, const AdamWArgs& a) {
  const float factor = a.grad_factor ? *a.grad_factor.as<float>() : 1.0f;
  if (!std::isfinite(factor)) return;  // gradients overflowed: this step is skipped
  const auto step = static_cast<double>(a.step);
  const double correction1 = 1 - std::pow(static_cast<double>(a.beta1), step),
               correction2 = 1 - std::pow(static_cast<double>(a.beta2), step);
  const cpu::RowKernels& kernels = cpu::row_kernels_of(stream);
  const bool bytes = a.m.dtype == tensor::DType::u8;
  constexpr int64_t kPiece = 16 * kAdamBlock;
  parallel_pieces(stream, a.master.rows(), kPiece, [&](int64_t begin, int64_t end, int) {
    cpu::AdamWRange r{};
    r.master = a.master.as<float>() + begin;
    r.grad = a.grad.as<float>() + begin;
    if (bytes) {
      r.m8 = a.m.as<uint8_t>() + begin;
      r.v8 = a.v.as<uint8_t>() + begin;
      r.m_scale = a.m_scale.as<float>() + begin / kAdamBlock;
      r.v_scale = a.v_scale.as<float>() + begin / kAdamBlock;
    } else {
      r.m = a.m.as<float>() + begin;
      r.v = a.v.as<float>() + begin;
    }
    if (a.copy) {
      r.copy = static_cast<uint16_t*>(a.copy.data) + begin;
      r.copy_type = cpu::elem_of(a.copy.dtype);
    }
    r.n = end - begin;
    r.grad_factor = factor;
    r.beta1 = a.beta1;
    r.beta2 = a.beta2;
    r.eps = a.eps;
    r.step_size = static_cast<float>(static_cast<double>(a.lr) / correction1);
    r.inv_sqrt_correction2 = static_cast<float>(1 / std::sqrt(correction2));
    r.keep = static_cast<float>(1 - static_cast<double>(a.lr) * static_cast<double>(a.weight_decay));
    (bytes ? kernels.adamw8 : kernels.adamw)(r);
  });
}

void grad_norm_cpu(device::Stream& stream, const GradNormArgs& a) {
  const int64_t n = a.grad.rows();
  check_scratch("grad_norm", a.scratch, grad_norm_scratch_bytes(n));
  auto* partial = static_cast<double*>(a.scratch.data);
  const cpu::RowKernels& kernels = cpu::row_kernels_of(stream);
  parallel_pieces(stream, n, kNormElements, [&](int64_t begin, int64_t end, int) {
    partial[begin / kNormElements] = kernels.sum_squares(a.grad.as<float>() + begin, end - begin);
  });
  double total = 0;
  for (int64_t i = 0; i * kNormElements < n; ++i) total += partial[i];
  const double scale = a.grad_scale, norm = std::sqrt(total) * std::fabs(scale);
  const double shrink = a.max_norm > 0 ? std::min(1.0, static_cast<double>(a.max_norm) / (norm + 1e-6)) : 1.0;
  *a.norm.as<float>() = static_cast<float>(norm);
  *a.factor.as<float>() =
      std::isfinite(norm) ? static_cast<float>(scale * shrink) : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace brim::ops
