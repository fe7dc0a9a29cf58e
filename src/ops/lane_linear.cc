// SPDX-License-Identifier: Apache-2.0
#include "ops/lane_linear.h"

#include "ops/check.h"
#include "ops/kernel_table.h"

namespace brim::ops {

using tensor::DType;

namespace {

// What operands are stored as; the CPU rounds them on their way into a product.
DType operand_type(const device::Stream& stream, Precision precision) {
  if (target_kind(stream) == device::DeviceKind::cpu) return DType::f32;
  return precision == Precision::bf16 ? DType::bf16 : precision == Precision::fp16 ? DType::f16 : DType::f32;
}

void check_lanes(const char* op, const char* name, const TensorView& view, DType dtype, int64_t G, int64_t rows,
                 int64_t cols) {
  check_view(op, name, view, dtype, {G, rows, cols});
  BRIM_CHECK(rows < 2 || view.stride[1] >= cols, "{}: {} has rows {} apart, {} long", op, name, view.stride[1], cols);
}

void check_precision(const char* op, const device::Stream& stream, Precision precision) {
  const bool cpu = target_kind(stream) == device::DeviceKind::cpu;
  BRIM_CHECK(precision == Precision::fp32 || precision == Precision::bf16 ||
                 (!cpu && (precision == Precision::tf32 || precision == Precision::fp16)),
             "{}: lanes are not computed in {} {}", op, precision_name(precision), cpu ? "on a CPU" : "on CUDA");
}

}  // namespace

void lane_linear(device::Stream& stream, const LaneLinearArgs& a) {
  const char* op = "lane_linear";
  const int64_t G = a.y.rows(), B = a.y.dim[1], N = a.y.cols(), K = a.x.cols();
  const DType type = operand_type(stream, a.precision);
  check_precision(op, stream, a.precision);
  check_lanes(op, "x", a.x, type, G, B, K);
  check_lanes(op, "w", a.w, type, G, N, K);
  check_lanes(op, "y", a.y, a.y.dtype == type ? type : DType::f32, G, B, N);
  check_optional(op, "bias", a.bias, a.y.dtype, {G, N});
  if (a.y.elements() == 0) return;
  dispatch(stream, Zone::linear, a, lane_linear_work(a), &KernelTable::lane_linear);
}

Work lane_linear_work(const LaneLinearArgs& a) {
  const double G = static_cast<double>(a.y.rows()), B = static_cast<double>(a.y.dim[1]),
               N = static_cast<double>(a.y.cols()), K = static_cast<double>(a.x.cols());
  return {2 * G * B * N * K,
          G * ((B * K + N * K) * dtype_bytes(a.x.dtype) + (B * N + (a.bias ? N : 0)) * dtype_bytes(a.y.dtype))};
}

void lane_linear_grad(device::Stream& stream, const LaneLinearGradArgs& a) {
  const char* op = "lane_linear_grad";
  const int64_t G = a.d_y.rows(), B = a.d_y.dim[1], N = a.d_y.cols(), K = a.x.cols();
  const DType type = operand_type(stream, a.precision);
  check_precision(op, stream, a.precision);
  check_lanes(op, "x", a.x, type, G, B, K);
  check_lanes(op, "w", a.w, type, G, N, K);
  check_lanes(op, "d_y", a.d_y, type, G, B, N);
  if (a.d_x) check_lanes(op, "d_x", a.d_x, a.d_x.dtype == type ? type : DType::f32, G, B, K);
  if (a.d_w) check_lanes(op, "d_w", a.d_w, DType::f32, G, N, K);
  check_optional(op, "d_bias", a.d_bias, DType::f32, {G, N});
  check_optional(op, "d_x_sums", a.d_x_sums, DType::f32, {G, K});
  BRIM_CHECK(!a.d_x_sums || (a.d_x && a.x_is_relu), "lane_linear_grad: sums of a gated d_x need the gate and d_x");
  BRIM_CHECK(!a.x_is_relu || a.d_x_write == GradWrite::overwrite, "lane_linear_grad: a gated d_x is not added to");
  if (G == 0) return;
  dispatch(stream, Zone::linear, a, lane_linear_grad_work(a), &KernelTable::lane_linear_grad);
}

Work lane_linear_grad_work(const LaneLinearGradArgs& a) {
  const double G = static_cast<double>(a.d_y.rows()), B = static_cast<double>(a.d_y.dim[1]),
               N = static_cast<double>(a.d_y.cols()), K = static_cast<double>(a.x.cols());
  const double size = dtype_bytes(a.x.dtype), products = (a.d_x ? 1 : 0) + (a.d_w ? 1 : 0);
  Work work{2 * G * B * N * K * products, G * B * N * size};
  if (a.d_x)
    work.bytes +=
        G * (N * K * size + B * K * dtype_bytes(a.d_x.dtype) * (a.d_x_write == GradWrite::accumulate ? 2 : 1));
  if (a.d_w) work.bytes += G * (B * K * size + N * K * 4 * (a.write == GradWrite::accumulate ? 2 : 1));
  return work;
}

}  // namespace brim::ops
