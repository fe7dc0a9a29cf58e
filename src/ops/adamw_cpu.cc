// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/check.h"
#include "ops/cpu/convert_args.h"
#include "ops/cpu/parallel.h"
#include "ops/kernel_table.h"

namespace brim::ops {

void adamw_cpu(device::Stream& stream, const AdamWArgs& a) {
  const LaneSlab slab = lane_slab(a.master);
  const cpu::RowKernels& kernels = cpu::row_kernels_of(stream);
  const bool bytes = a.m.dtype == tensor::DType::u8;
  const int64_t due = a.table.step ? *a.table.step.as<int64_t>() % a.table.rows.rows() : 0;
  const float* table = a.table.rows.as<float>() + due * slab.lanes * kAdamWRowFloats;
  constexpr int64_t kPiece = 16 * kAdamBlock;
  const int64_t pieces = (slab.n + kPiece - 1) / kPiece;
  const auto at = [](const TensorView& v, int64_t lane) { return lane_slab(v).stride * lane; };
  parallel_pieces(stream, slab.lanes * pieces, 1, [&](int64_t piece, int64_t, int) {
    const int64_t lane = piece / pieces, begin = piece % pieces * kPiece, end = std::min(slab.n, begin + kPiece);
    const float factor = a.grad_factor ? a.grad_factor.as<float>()[lane] : 1.0f;
    if (!std::isfinite(factor)) return;  // gradients overflowed: skip this step
    AdamWRow row;
    std::memcpy(static_cast<void*>(&row), table + lane * kAdamWRowFloats, sizeof row);
    cpu::AdamWRange r{};
    r.master = a.master.as<float>() + at(a.master, lane) + begin;
    r.grad = a.grad.as<float>() + at(a.grad, lane) + begin;
    if (bytes) {
      r.m8 = a.m.as<uint8_t>() + at(a.m, lane) + begin;
      r.v8 = a.v.as<uint8_t>() + at(a.v, lane) + begin;
      r.m_scale = a.m_scale.as<float>() + at(a.m_scale, lane) + begin / kAdamBlock;
      r.v_scale = a.v_scale.as<float>() + at(a.v_scale, lane) + begin / kAdamBlock;
    } else {
      r.m = a.m.as<float>() + at(a.m, lane) + begin;
      r.v = a.v.as<float>() + at(a.v, lane) + begin;
    }
    if (a.copy) {
      r.copy = static_cast<uint16_t*>(a.copy.data) + at(a.copy, lane) + begin;
      r.copy_type = cpu::elem_of(a.copy.dtype);
    }
    r.n = end - begin;
    r.grad_factor = factor;
    r.beta1 = row.beta1;
    r.beta2 = row.beta2;
    r.eps = row.eps;
    r.step_size = row.step_size;
    r.inv_sqrt_correction2 = row.correction;
    r.keep = a.decayed ? row.keep : 1.0f;
    (bytes ? kernels.adamw8 : kernels.adamw)(r);
  });
}

void set_step_cpu(device::Stream&, const SetStepArgs& a) {
  for (int64_t i = 0; i < a.rows.elements() / kAdamWRowFloats; ++i)
    std::memcpy(a.rows.as<float>() + i * kAdamWRowFloats, &a.row, sizeof a.row);
}

void advance_step_cpu(device::Stream&, const AdvanceStepArgs& a) { ++*a.step.as<int64_t>(); }

void grad_norm_cpu(device::Stream& stream, const GradNormArgs& a) {
  const LaneSlab slab = lane_slab(a.grad);
  check_scratch("grad_norm", a.scratch, grad_norm_scratch_bytes(slab.n, slab.lanes));
  auto* partial = static_cast<double*>(a.scratch.data);
  const cpu::RowKernels& kernels = cpu::row_kernels_of(stream);
  const int64_t pieces = (slab.n + kNormElements - 1) / kNormElements;
  parallel_pieces(stream, slab.lanes * pieces, 1, [&](int64_t piece, int64_t, int) {
    const int64_t begin = piece % pieces * kNormElements, end = std::min(slab.n, begin + kNormElements);
    partial[piece] = kernels.sum_squares(a.grad.as<float>() + piece / pieces * slab.stride + begin, end - begin);
  });
  float* norms = a.norm.as<float>() + (a.step ? *a.step.as<int64_t>() % a.norm.rows() * slab.lanes : 0);
  for (int64_t lane = 0; lane < slab.lanes; ++lane) {
    double total = 0;
    for (int64_t i = 0; i < pieces; ++i) total += partial[lane * pieces + i];
    const double scale = a.grad_scale, norm = std::sqrt(total) * std::fabs(scale);
    const double shrink = a.max_norm > 0 ? std::min(1.0, static_cast<double>(a.max_norm) / (norm + 1e-6)) : 1.0;
    norms[lane] = static_cast<float>(norm);
    a.factor.as<float>()[lane] =
        std::isfinite(norm) ? static_cast<float>(scale * shrink) : std::numeric_limits<float>::quiet_NaN();
  }
}

}  // namespace brim::ops
