// SPDX-License-Identifier: Apache-2.0
#include "ops/rows.h"

#include "ops/check.h"
#include "ops/cuda/scratch.h"
#include "ops/kernel_table.h"

namespace brim::ops {

using device::Stream;
using tensor::DType;

namespace {

template <class Args>
Work bytes_of(const Args& args, double flops) {
  Work work{flops, 0};
  args.views([&](const tensor::TensorView& v) {
    if (v) work.bytes += static_cast<double>(v.bytes());
  });
  return work;
}

}  // namespace

void gather_rows(Stream& stream, const GatherRowsArgs& a) {
  const int64_t B = a.rows.rows(), H = a.x.cols();
  check_view("gather_rows", "x", a.x, a.x.dtype, {a.x.rows(), H});
  check_view("gather_rows", "rows", a.rows, DType::i32, {B});
  check_view("gather_rows", "y", a.y, a.x.dtype, {B, H});
  if (B == 0 || H == 0) return;
  const double moved = static_cast<double>(a.y.bytes());
  dispatch(stream, a, Work{0, 2 * moved + 4.0 * static_cast<double>(B)});
}

void pool_mean(Stream& stream, const PoolMeanArgs& a) {
  const int64_t B = a.batch.B, H = a.x.cols();
  check_activation("pool_mean", "x", stream, a.x.dtype);
  check_view("pool_mean", "x", a.x, a.x.dtype, {a.batch.T, H});
  check_view("pool_mean", "starts", a.batch.starts, DType::i32, {B + 1});
  check_view("pool_mean", "y", a.y, DType::f32, {B, H});
  if (B == 0 || H == 0) return;
  dispatch(stream, a, bytes_of(a, static_cast<double>(a.x.elements())));
}

void pool_mean_grad(Stream& stream, const PoolMeanGradArgs& a) {
  const int64_t B = a.batch.B, H = a.d_x.cols();
  check_activation("pool_mean_grad", "d_x", stream, a.d_x.dtype);
  check_view("pool_mean_grad", "d_x", a.d_x, a.d_x.dtype, {a.batch.T, H});
  check_view("pool_mean_grad", "starts", a.batch.starts, DType::i32, {B + 1});
  check_view("pool_mean_grad", "d_y", a.d_y, a.d_x.dtype, {B, H});
  if (B == 0 || H == 0) return;
  dispatch(stream, a, bytes_of(a, static_cast<double>(a.d_x.elements())));
}

void softmax(Stream& stream, const SoftmaxArgs& a) {
  const int64_t rows = a.x.rows(), K = a.x.cols();
  check_activation("softmax", "x", stream, a.x.dtype);
  check_view("softmax", "x", a.x, a.x.dtype, {rows, K});
  check_view("softmax", "y", a.y, DType::f32, {rows, K});
  if (rows == 0 || K == 0) return;
  dispatch(stream, a, bytes_of(a, 5.0 * static_cast<double>(a.x.elements())));
}

void convert(Stream& stream, const ConvertArgs& a) {
  const auto half_or_float = [](DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; };
  const bool to_fp8 = a.y.dtype == DType::f8e4m3, to_int8 = a.y.dtype == DType::i8;
  BRIM_CHECK(half_or_float(a.x.dtype), "convert: x is {}, must be f32, f16 or bf16", dtype_name(a.x.dtype));
  BRIM_CHECK(half_or_float(a.y.dtype) || ((to_fp8 || to_int8) && target_kind(stream) == device::DeviceKind::cuda),
             "convert: y is {}, must be f32, f16 or bf16 (or f8e4m3 or i8 on CUDA)", dtype_name(a.y.dtype));
  BRIM_CHECK(a.x.elements() == a.y.elements(), "convert: x has {} elements, y has {}", a.x.elements(), a.y.elements());
  BRIM_CHECK(a.x.contiguous() && a.y.contiguous(), "convert: x {} and y {} must be contiguous", a.x.shape_text(),
             a.y.shape_text());
  BRIM_CHECK(!to_fp8 || a.scale, "convert: f8e4m3 requires a scale");
  if (to_int8) check_view("convert", "scale", a.scale, DType::f32, {a.x.rows()});
  if (a.x.elements() == 0) return;
  dispatch(stream, a, bytes_of(a, 0));
}

void activate(Stream& stream, const ActivationArgs& a) {
  check_activation("activate", "x", stream, a.x.dtype);
  check_view("activate", "x", a.x, a.x.dtype, {a.x.rows(), a.x.cols()});
  check_view("activate", "y", a.y, a.x.dtype, {a.x.rows(), a.x.cols()});
  if (a.x.elements() == 0) return;
  dispatch(stream, a, bytes_of(a, 20.0 * static_cast<double>(a.x.elements())));
}

void scatter_rows(Stream& stream, const ScatterRowsArgs& a) {
  const int64_t B = a.rows.rows(), H = a.d_x.cols();
  check_activation("scatter_rows", "d_x", stream, a.d_x.dtype);
  check_view("scatter_rows", "d_x", a.d_x, a.d_x.dtype, {a.d_x.rows(), H});
  check_view("scatter_rows", "rows", a.rows, DType::i32, {B});
  check_view("scatter_rows", "d_y", a.d_y, a.d_x.dtype, {B, H});
  if (B == 0 || H == 0) return;
  const double elements = static_cast<double>(a.d_y.elements());
  dispatch(stream, a, Work{elements, 3 * static_cast<double>(a.d_y.bytes()) + 4.0 * static_cast<double>(B)});
}

void activate_grad(Stream& stream, const ActivationGradArgs& a) {
  const int64_t rows = a.x.rows(), H = a.x.cols();
  check_activation("activate_grad", "x", stream, a.x.dtype);
  check_view("activate_grad", "x", a.x, a.x.dtype, {rows, H});
  check_view("activate_grad", "d_y", a.d_y, a.x.dtype, {rows, H});
  check_view("activate_grad", "d_x", a.d_x, a.x.dtype, {rows, H});
  check_optional("activate_grad", "y", a.y, a.x.dtype, {rows, H});
  check_optional("activate_grad", "d_bias", a.d_bias, DType::f32, {H});
  BRIM_CHECK(!a.d_bias || a.d_y.data == a.d_x.data, "activate_grad: d_bias requires d_x in the memory of d_y");
  if (a.x.elements() == 0) return;
  dispatch(stream, a, bytes_of(a, 25.0 * static_cast<double>(a.x.elements())));
}
int64_t activate_grad_scratch_bytes(const Stream& stream, int64_t rows, int64_t H) {
  return target_kind(stream) == device::DeviceKind::cuda ? cuda_lane_sums_bytes(1, rows, H) : 0;
}

void dropout_rows(Stream& stream, const DropoutArgs& a) {
  const int64_t rows = a.x.rows(), H = a.x.cols();
  check_activation("dropout_rows", "x", stream, a.x.dtype);
  check_view("dropout_rows", "x", a.x, a.x.dtype, {rows, H});
  check_view("dropout_rows", "y", a.y, a.x.dtype, {rows, H});
  BRIM_CHECK(a.dropout.probability >= 0 && a.dropout.probability < 1,
             "dropout_rows: probability is {}, must be at least 0 and below 1", a.dropout.probability);
  if (a.x.elements() == 0) return;
  dispatch(stream, a, bytes_of(a, static_cast<double>(a.x.elements())));
}

}  // namespace brim::ops
