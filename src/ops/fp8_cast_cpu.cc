// SPDX-License-Identifier: Apache-2.0
// Reference implementation of fp8_cast on the CPU, for comparison with the CUDA kernel; there is no fp8 training on
// CPUs.
#include <vector>

#include "ops/cpu/activations.h"
#include "ops/cpu/convert_args.h"
#include "ops/fp8_code.h"
#include "ops/kernel_table.h"

namespace brim::ops {

void fp8_cast_cpu(device::Stream& stream, const Fp8CastArgs& a) {
  const int64_t T = a.x.rows(), C = a.x.cols();
  const cpu::RowKernels& kernels = cpu::row_kernels_of(stream);
  const float scale = *a.scale.as<float>();
  std::vector<float> value(static_cast<size_t>(C)), at(static_cast<size_t>(C));
  float most = 0;
  for (int64_t t = 0; t < T; ++t) {
    const float* x = cpu::row_of<float>(a.x, t);
    if (a.gate) {
      const float* gate = cpu::row_of<float>(a.gate, t);
      if (slope_reads_output(a.activation)) {
        cpu::activation_row(kernels, a.activation)(gate, at.data(), C);
        gate = at.data();
      }
      cpu::activation_grad_row(kernels, a.activation)(gate, x, value.data(), C);
    } else {
      cpu::activation_row(kernels, a.activation)(x, value.data(), C);
    }
    for (int64_t c = 0; c < C; ++c) {
      const float v = value[static_cast<size_t>(c)];
      most = v != v ? std::numeric_limits<float>::infinity() : std::max(most, std::fabs(v));
      if (a.d_bias) a.d_bias.as<float>()[c] += v;
      const uint8_t code = to_e4m3(v * scale);
      if (a.rows) static_cast<uint8_t*>(a.rows.data)[t * a.rows.ld() + c] = code;
      if (a.columns) static_cast<uint8_t*>(a.columns.data)[c * a.columns.ld() + t] = code;
    }
  }
  for (int64_t c = 0; c < C && a.columns; ++c)
    std::fill_n(static_cast<uint8_t*>(a.columns.data) + c * a.columns.ld() + T, fp8_columns(T) - T, uint8_t{0});
  if (a.inverse) *a.inverse.as<float>() = 1 / scale;
  if (a.amax) *a.amax.as<float>() = std::max(*a.amax.as<float>(), most);
}

void fp8_cast_matrices_cpu(device::Stream& stream, const Fp8CastMatricesArgs& a) {
  const auto* places = static_cast<const Fp8MatrixPlace*>(a.places.data);
  for (int64_t i = 0; i < a.amax.rows(); ++i) {
    const Fp8MatrixPlace& m = places[i];
    const tensor::TensorView x(const_cast<void*>(m.x), tensor::DType::f32, {m.N, m.K}),
        most = a.amax.slice_rows(i, i + 1), scale = a.scale.slice_rows(i, i + 1);
    *most.as<float>() = 0;
    amax_cpu(stream, {.x = x, .amax = most});
    fp8_scale_cpu(stream, {.amax = most, .scale = scale, .inverse = a.inverse.slice_rows(i, i + 1)});
    Fp8CastArgs cast{.x = x, .scale = scale};
    cast.rows = tensor::TensorView(m.rows, tensor::DType::f8e4m3, {m.N, m.K});
    cast.columns = tensor::TensorView(m.columns, tensor::DType::f8e4m3, {m.K, m.N});
    fp8_cast_cpu(stream, cast);
  }
}

}  // namespace brim::ops
