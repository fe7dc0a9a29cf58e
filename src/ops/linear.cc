// SPDX-License-Identifier: Apache-2.0
// linear's front end: names, checks, work, sizes and the packing of weights. The arithmetic is in linear_cpu.cc and
// linear_cuda.cu.
#include "ops/linear.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "ops/check.h"
#include "ops/gemm/kernels.h"
#include "ops/gemm_tuner.h"
#include "ops/kernel_table.h"

namespace brim {
namespace {

constexpr std::array kPrecisionNames = {"fp32", "tf32", "bf16", "fp16", "fp8", "int8"};

bool is_activation_type(const Stream& stream, DType dtype) {
  if (dtype == DType::f32 || dtype == DType::bf16) return true;
  return target_kind(stream) == DeviceKind::cuda && (dtype == DType::f16 || dtype == DType::f8e4m3);
}

void check_linear(const Stream& stream, const LinearArgs& args) {
  const int64_t T = args.x.rows(), N = args.w.N, K = args.w.K;
  BRIM_CHECK(is_activation_type(stream, args.x.dtype), "linear: x is {}", args.x.shape_text());
  BRIM_CHECK(is_activation_type(stream, args.y.dtype), "linear: y is {}", args.y.shape_text());
  check_view("linear", "x", args.x, args.x.dtype, {T, K});
  check_view("linear", "y", args.y, args.y.dtype, {T, N});
  if (args.bias) check_view("linear", "bias", args.bias, args.bias.dtype, {N});
  if (args.residual) check_view("linear", "residual", args.residual, args.residual.dtype, {T, N});
  if (target_kind(stream) != DeviceKind::cpu) return;
  const gemm::Kernel& kernel = gemm::kernel_for(args.w.isa, args.w.precision);
  if (args.bias) check_view("linear", "bias", args.bias, DType::f32, {N});
  if (args.residual) check_view("linear", "residual", args.residual, DType::f32, {T, N});
  BRIM_CHECK(args.x.dtype == DType::f32 || args.w.precision != Precision::fp32, "linear: x is {} in fp32 arithmetic", args.x.shape_text());
  check_view("linear", "packed weights", args.w.data, DType::u8, {gemm::packed_bytes(kernel, N, K)});
  if (args.w.precision == Precision::int8) check_view("linear", "weight scales", args.w.scale, DType::f32, {N});
}

}  // namespace

const char* precision_name(Precision precision) { return kPrecisionNames[static_cast<size_t>(precision)]; }

std::optional<Precision> precision_from_name(std::string_view name) {
  for (size_t i = 0; i < kPrecisionNames.size(); ++i)
    if (name == kPrecisionNames[i]) return static_cast<Precision>(i);
  return std::nullopt;
}

void linear(Stream& stream, const LinearArgs& args) {
  check_linear(stream, args);
  GemmTuning::meet(stream, args);
  dispatch(stream, Zone::linear, args, linear_work(args), &KernelTable::linear);
}

Work linear_work(const LinearArgs& args) {
  const double T = static_cast<double>(args.x.rows()), N = static_cast<double>(args.w.N), K = static_cast<double>(args.w.K);
  const double y_bytes = T * N * dtype_bytes(args.y.dtype);
  const double w_bytes = N * K * (args.w.precision == Precision::int8 || args.w.precision == Precision::fp8 ? 1
                                  : args.w.precision == Precision::bf16 || args.w.precision == Precision::fp16 ? 2 : 4);
  return {2 * T * N * K, T * K * dtype_bytes(args.x.dtype) + w_bytes + y_bytes + (args.residual ? y_bytes : 0) +
                             (args.bias ? N * dtype_bytes(args.bias.dtype) : 0)};
}

void linear_grad(Stream& stream, const LinearGradArgs& args) {
  const int64_t T = args.x.rows(), N = args.w_plain.rows(), K = args.w_plain.cols();
  const bool cpu = target_kind(stream) == DeviceKind::cpu;
  for (const TensorView& view : {args.x, args.w_plain, args.d_y})
    BRIM_CHECK(cpu ? view.dtype == DType::f32 : is_activation_type(stream, view.dtype), "linear_grad: an operand is {}", view.shape_text());
  check_view("linear_grad", "x", args.x, args.x.dtype, {T, K});
  check_view("linear_grad", "w_plain", args.w_plain, args.w_plain.dtype, {N, K});
  check_view("linear_grad", "d_y", args.d_y, args.x.dtype, {T, N});
  check_optional("linear_grad", "d_x", args.d_x, args.x.dtype, {T, K});
  check_optional("linear_grad", "d_w", args.d_w, DType::f32, {N, K});
  check_optional("linear_grad", "d_bias", args.d_bias, DType::f32, {N});
  dispatch(stream, Zone::linear, args, linear_grad_work(args), &KernelTable::linear_grad);
}

Work linear_grad_work(const LinearGradArgs& args) {
  const double T = static_cast<double>(args.x.rows()), N = static_cast<double>(args.w_plain.rows()), K = static_cast<double>(args.w_plain.cols());
  const double size = dtype_bytes(args.x.dtype), products = (args.d_x ? 1 : 0) + (args.d_w ? 1 : 0);
  Work work{2 * T * N * K * products + (args.d_bias ? T * N : 0), T * N * size};
  if (args.d_x) work.bytes += N * K * dtype_bytes(args.w_plain.dtype) + T * K * size * (args.d_x_write == GradWrite::accumulate ? 2 : 1);
  if (args.d_w) work.bytes += T * K * size + N * K * 4 * (args.d_w_write == GradWrite::accumulate ? 2 : 1);
  return work;
}

int64_t linear_packed_bytes(int64_t N, int64_t K, Precision precision, Isa isa) {
  return gemm::packed_bytes(gemm::kernel_for(isa, precision), N, K);
}

namespace {

// Writes one row of weights to its place in the panels: kr neighbours together, nr * kr elements from group to group.
template <class Elem, class Source, class Convert>
void scatter_row(const Source* row, int64_t K, int kr, int64_t group, Elem* to, Convert&& convert) {
  int64_t k = 0;
  for (; k + kr <= K; k += kr, to += group)
    for (int i = 0; i < kr; ++i) to[i] = convert(row[k + i]);
  for (int i = 0; k < K; ++k, ++i) to[i] = convert(row[k]);
}

struct Quantised {
  float scale;
  float inverse;  // 0 where the row is zero or not finite: then the scale says it (0, infinite or NaN)
};
Quantised quantise_row(const float* row, int64_t K) {
  float most = 0;
  for (int64_t k = 0; k < K; ++k) {
    const float x = std::fabs(row[k]);
    if (x > most || x != x) most = x;  // a NaN stays
  }
  return {most / 127, most > 0 && std::isfinite(most) ? 127 / most : 0};
}

}  // namespace

void linear_pack(const TensorView& source, const TensorView& source_scale, Precision precision, Isa isa, void* packed, float* scale) {
  const gemm::Kernel& kernel = gemm::kernel_for(isa, precision);
  const int64_t N = source.rows(), K = source.cols();
  const bool from_int8 = source.dtype == DType::i8;
  check_view("linear_pack", "source", source, source.dtype, {N, K});
  if (from_int8) check_view("linear_pack", "source_scale", source_scale, DType::f32, {N});
  BRIM_CHECK(scale != nullptr || precision != Precision::int8, "linear_pack: int8 without a place for the scales");
  const int64_t padded = gemm::round_up(K, kernel.k_multiple), group = static_cast<int64_t>(kernel.nr) * kernel.kr;
  std::memset(packed, 0, static_cast<size_t>(gemm::packed_bytes(kernel, N, K)));
  auto* sums = reinterpret_cast<int32_t*>(static_cast<char*>(packed) + gemm::panel_bytes(kernel, N, K));
  std::vector<float> buffer(static_cast<size_t>(K));
  for (int64_t n = 0; n < N; ++n) {
    const int64_t start = n / kernel.nr * kernel.nr * padded + n % kernel.nr * kernel.kr;
    const char* raw = static_cast<const char*>(source.data) + n * source.ld() * dtype_bytes(source.dtype);
    if (from_int8 && precision == Precision::int8) {
      const auto* row = reinterpret_cast<const int8_t*>(raw);
      scatter_row(row, K, kernel.kr, group, static_cast<int8_t*>(packed) + start, [](int8_t q) { return q; });
      scale[n] = source_scale.as<float>()[n];
      if (kernel.column_sums)
        for (int64_t k = 0; k < K; ++k) sums[n] += 128 * row[k];
      continue;
    }
    const float* row = reinterpret_cast<const float*>(raw);
    if (from_int8) {
      for (int64_t k = 0; k < K; ++k) buffer[k] = static_cast<float>(reinterpret_cast<const int8_t*>(raw)[k]) * source_scale.as<float>()[n];
      row = buffer.data();
    } else if (source.dtype != DType::f32) {
      convert_elements(raw, source.dtype, buffer.data(), DType::f32, K);
      row = buffer.data();
    }
    if (precision == Precision::fp32) {
      scatter_row(row, K, kernel.kr, group, static_cast<float*>(packed) + start, [](float x) { return x; });
    } else if (precision == Precision::bf16) {
      scatter_row(row, K, kernel.kr, group, static_cast<bf16_t*>(packed) + start, [](float x) { return to_bf16(x); });
    } else {
      const Quantised q = quantise_row(row, K);
      scale[n] = q.scale;
      int32_t sum = 0;
      scatter_row(row, K, kernel.kr, group, static_cast<int8_t*>(packed) + start, [&](float x) {
        const auto v = static_cast<int8_t>(q.inverse == 0 ? 0 : std::nearbyint(x * q.inverse));
        sum += v;
        return v;
      });
      if (kernel.column_sums) sums[n] = 128 * sum;
    }
  }
}

}  // namespace brim
