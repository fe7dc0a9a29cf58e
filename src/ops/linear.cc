// SPDX-License-Identifier: Apache-2.0
// Front end of linear: names, checks and work. Weights are packed in linear_pack.cc; the arithmetic is in linear_cpu.cc
// and linear_cuda.cu.
#include "ops/linear.h"

#include <array>

#include "base/units.h"
#include "ops/check.h"
#include "ops/gemm/kernels.h"
#include "ops/gemm_tuner.h"
#include "ops/kernel_table.h"

namespace brim::ops {

using tensor::DType;

namespace {

constexpr std::array kPrecisionNames = {"fp32", "tf32", "bf16", "fp16", "fp8", "int8"};

bool is_activation_type(const device::Stream& stream, DType dtype) {
  if (dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f8e4m3) return true;
  return target_kind(stream) == device::DeviceKind::cuda && (dtype == DType::f16 || dtype == DType::i8);
}

void check_linear(const device::Stream& stream, const LinearArgs& args) {
  const int64_t T = args.x.rows(), N = args.w.N, K = args.w.K;
  BRIM_CHECK(is_activation_type(stream, args.x.dtype), "linear: x is {}", args.x.shape_text());
  BRIM_CHECK(is_activation_type(stream, args.y.dtype), "linear: y is {}", args.y.shape_text());
  check_view("linear", "x", args.x, args.x.dtype, {T, K});
  check_view("linear", "y", args.y, args.y.dtype, {T, N});
  if (args.bias) check_view("linear", "bias", args.bias, args.bias.dtype, {N});
  if (args.residual) check_view("linear", "residual", args.residual, args.residual.dtype, {T, N});
  const bool codes = args.x.dtype == DType::i8, int8 = args.w.precision == Precision::int8;
  BRIM_CHECK(codes == int8 || target_kind(stream) == device::DeviceKind::cpu, "linear: x is {}, not supported in {}",
             args.x.shape_text(), precision_name(args.w.precision));
  if (target_kind(stream) != device::DeviceKind::cpu) return;
  if (args.w.precision == Precision::fp8) {  // reference for fp8 training
    check_view("linear", "x", args.x, DType::f8e4m3, {T, K});
    check_view("linear", "y", args.y, DType::f32, {T, N});
    check_view("linear", "w", args.w.data, DType::f8e4m3, {N, K});
    check_view("linear", "w.scale", args.w.scale, DType::f32, {1});
    check_view("linear", "x_scale", args.x_scale, DType::f32, {1});
    check_optional("linear", "bias", args.bias, DType::f32, {N});
    check_optional("linear", "residual", args.residual, DType::f32, {T, N});
    BRIM_CHECK(args.activation == Activation::none && !args.y_scale,
               "linear: fp8 on the CPU does not support activations");
    return;
  }
  BRIM_CHECK(args.x.dtype != DType::f8e4m3 && args.y.dtype != DType::f8e4m3,
             "linear: x is {} and y is {}, not supported in {}", args.x.shape_text(), args.y.shape_text(),
             precision_name(args.w.precision));
  const gemm::Kernel& kernel = gemm::kernel_for(args.w.isa, args.w.precision);
  if (args.bias) check_view("linear", "bias", args.bias, DType::f32, {N});
  if (args.residual) check_view("linear", "residual", args.residual, DType::f32, {T, N});
  BRIM_CHECK(args.x.dtype == DType::f32 || args.w.precision != Precision::fp32,
             "linear: x is {}, must be f32 for fp32 weights", args.x.shape_text());
  check_view("linear", "packed weights", args.w.data, DType::u8, {gemm::packed_bytes(kernel, N, K)});
  if (args.w.precision == Precision::int8) check_view("linear", "weight scales", args.w.scale, DType::f32, {N});
  check_optional("linear", "weight totals", args.w.total, DType::f32, {N});
}

}  // namespace

const char* precision_name(Precision precision) { return kPrecisionNames[static_cast<size_t>(precision)]; }

std::optional<Precision> precision_from_name(std::string_view name) {
  for (size_t i = 0; i < kPrecisionNames.size(); ++i)
    if (same_word(name, kPrecisionNames[i])) return static_cast<Precision>(i);
  return std::nullopt;
}

void linear(device::Stream& stream, const LinearArgs& args) {
  check_linear(stream, args);
  GemmTuning::meet(stream, args);
  dispatch(stream, args, linear_work(args));
}

Work linear_work(const LinearArgs& args) {
  const double T = static_cast<double>(args.x.rows()), N = static_cast<double>(args.w.N),
               K = static_cast<double>(args.w.K);
  const double y_bytes = T * N * dtype_bytes(args.y.dtype);
  const double w_bytes = N * K *
                         (args.w.precision == Precision::int8 || args.w.precision == Precision::fp8    ? 1
                          : args.w.precision == Precision::bf16 || args.w.precision == Precision::fp16 ? 2
                                                                                                       : 4);
  return {2 * T * N * K, T * K * dtype_bytes(args.x.dtype) + w_bytes + y_bytes + (args.residual ? y_bytes : 0) +
                             (args.bias ? N * dtype_bytes(args.bias.dtype) : 0)};
}

void linear_grad(device::Stream& stream, const LinearGradArgs& args) {
  const int64_t T = args.x.rows(), N = args.w_plain.rows(), K = args.w_plain.cols();
  const bool cpu = target_kind(stream) == device::DeviceKind::cpu;
  for (const tensor::TensorView& view : {args.x, args.w_plain, args.d_y})
    BRIM_CHECK(cpu ? view.dtype == DType::f32 : is_activation_type(stream, view.dtype),
               "linear_grad: an operand is {}, an unsupported type", view.shape_text());
  check_view("linear_grad", "x", args.x, args.x.dtype, {T, K});
  check_view("linear_grad", "w_plain", args.w_plain, args.w_plain.dtype, {N, K});
  check_view("linear_grad", "d_y", args.d_y, args.x.dtype, {T, N});
  check_optional("linear_grad", "d_x", args.d_x, args.x.dtype, {T, K});
  check_optional("linear_grad", "d_w", args.d_w, DType::f32, {N, K});
  check_optional("linear_grad", "d_bias", args.d_bias, DType::f32, {N});
  dispatch(stream, args, linear_grad_work(args));
}

Work linear_grad_work(const LinearGradArgs& args) {
  const double T = static_cast<double>(args.x.rows()), N = static_cast<double>(args.w_plain.rows()),
               K = static_cast<double>(args.w_plain.cols());
  const double size = dtype_bytes(args.x.dtype), products = (args.d_x ? 1 : 0) + (args.d_w ? 1 : 0);
  Work work{2 * T * N * K * products + (args.d_bias ? T * N : 0), T * N * size};
  if (args.d_x)
    work.bytes +=
        N * K * dtype_bytes(args.w_plain.dtype) + T * K * size * (args.d_x_write == GradWrite::accumulate ? 2 : 1);
  if (args.d_w) work.bytes += T * K * size + N * K * 4 * (args.d_w_write == GradWrite::accumulate ? 2 : 1);
  return work;
}

}  // namespace brim::ops
