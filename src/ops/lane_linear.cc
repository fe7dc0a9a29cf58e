// SPDX-License-Identifier: Apache-2.0
#include "ops/lane_linear.h"

#include "ops/check.h"
#include "ops/kernel_table.h"

namespace brim::ops {

using tensor::DType;

namespace {

// Storage type of weights and lane inputs; the CPU rounds them while packing.
DType operand_type(const device::Stream& stream, Precision precision) {
  if (target_kind(stream) == device::DeviceKind::cpu) return DType::f32;
  return precision == Precision::bf16 ? DType::bf16 : precision == Precision::fp16 ? DType::f16 : DType::f32;
}

void check_lanes(const char* op, const char* name, const TensorView& view, DType dtype, int64_t G, int64_t rows,
                 int64_t cols) {
  check_view(op, name, view, dtype, {G, rows, cols});
  BRIM_CHECK(rows < 2 || view.stride[1] >= cols, "{}: {} has a row stride of {}, less than its {} columns", op, name,
             view.stride[1], cols);
}

void check_precision(const char* op, const device::Stream& stream, Precision precision) {
  const bool cpu = target_kind(stream) == device::DeviceKind::cpu;
  BRIM_CHECK(precision == Precision::fp32 || precision == Precision::bf16 ||
                 (!cpu && (precision == Precision::tf32 || precision == Precision::fp16)),
             "{}: {} is not supported {}", op, precision_name(precision), cpu ? "on a CPU" : "on CUDA");
}

// Which of two allowed types an operand has; the first one if neither, for the error message.
DType either(const TensorView& view, DType type, DType other) { return view.dtype == other ? other : type; }

}  // namespace

void lane_linear(device::Stream& stream, const LaneLinearArgs& a) {
  const char* op = "lane_linear";
  const int64_t G = a.y.rows(), B = a.y.dim[1], N = a.y.cols(), K = a.x.cols();
  check_precision(op, stream, a.precision);
  const DType type = operand_type(stream, a.precision), values = lane_value_type(stream, a.precision);
  const bool cpu = target_kind(stream) == device::DeviceKind::cpu;
  check_lanes(op, "x", a.x, either(a.x, type, values), G, B, K);
  check_lanes(op, "w", a.w, type, G, N, K);
  check_lanes(op, "y", a.y, either(a.y, DType::f32, values), G, B, N);
  check_optional(op, "bias", a.bias, cpu ? DType::f32 : a.y.dtype, {G, N});
  if (a.y.elements() == 0) return;
  dispatch(stream, a, lane_linear_work(a));
}

Work lane_linear_work(const LaneLinearArgs& a) {
  const double G = static_cast<double>(a.y.rows()), B = static_cast<double>(a.y.dim[1]),
               N = static_cast<double>(a.y.cols()), K = static_cast<double>(a.x.cols());
  return {2 * G * B * N * K, G * (B * K * dtype_bytes(a.x.dtype) + N * K * dtype_bytes(a.w.dtype) +
                                  B * N * dtype_bytes(a.y.dtype) + (a.bias ? N * dtype_bytes(a.bias.dtype) : 0))};
}

void lane_linear_grad(device::Stream& stream, const LaneLinearGradArgs& a) {
  const char* op = "lane_linear_grad";
  const int64_t G = a.d_y.rows(), B = a.d_y.dim[1], N = a.d_y.cols(), K = a.x.cols();
  check_precision(op, stream, a.precision);
  const DType type = operand_type(stream, a.precision), values = lane_value_type(stream, a.precision);
  const bool cpu = target_kind(stream) == device::DeviceKind::cpu;
  check_lanes(op, "x", a.x, either(a.x, type, values), G, B, K);
  check_lanes(op, "w", a.w, type, G, N, K);
  check_lanes(op, "d_y", a.d_y, either(a.d_y, type, values), G, B, N);
  if (a.d_x) check_lanes(op, "d_x", a.d_x, either(a.d_x, DType::f32, values), G, B, K);
  BRIM_CHECK(!cpu || !a.d_x ||
                 (a.d_x.dtype == DType::bf16 ? a.x_is_relu && a.x.dtype == DType::bf16
                                             : !a.x_is_relu || a.x.dtype == DType::f32),
             "{}: d_x must have the type of x if gated, else f32", op);
  BRIM_CHECK(!cpu || !a.d_bias || a.d_y.dtype == DType::f32, "{}: d_bias requires d_y in f32", op);
  if (a.d_w) check_lanes(op, "d_w", a.d_w, DType::f32, G, N, K);
  check_optional(op, "d_bias", a.d_bias, DType::f32, {G, N});
  check_optional(op, "d_x_sums", a.d_x_sums, DType::f32, {G, K});
  BRIM_CHECK(!a.d_x_sums || (a.d_x && a.x_is_relu), "lane_linear_grad: d_x_sums requires x_is_relu and d_x");
  BRIM_CHECK(!a.x_is_relu || a.d_x_write == GradWrite::overwrite,
             "lane_linear_grad: x_is_relu requires overwriting d_x");
  if (G == 0) return;
  dispatch(stream, a, lane_linear_grad_work(a));
}

Work lane_linear_grad_work(const LaneLinearGradArgs& a) {
  const double G = static_cast<double>(a.d_y.rows()), B = static_cast<double>(a.d_y.dim[1]),
               N = static_cast<double>(a.d_y.cols()), K = static_cast<double>(a.x.cols());
  const double products = (a.d_x ? 1 : 0) + (a.d_w ? 1 : 0);
  Work work{2 * G * B * N * K * products, G * B * N * dtype_bytes(a.d_y.dtype)};
  if (a.d_x)
    work.bytes += G * (N * K * dtype_bytes(a.w.dtype) +
                       B * K * dtype_bytes(a.d_x.dtype) * (a.d_x_write == GradWrite::accumulate ? 2 : 1));
  if (a.d_w)
    work.bytes += G * (B * K * dtype_bytes(a.x.dtype) + N * K * 4 * (a.write == GradWrite::accumulate ? 2 : 1));
  return work;
}

}  // namespace brim::ops
