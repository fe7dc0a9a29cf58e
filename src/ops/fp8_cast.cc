// SPDX-License-Identifier: Apache-2.0
#include "ops/fp8_cast.h"

#include "ops/check.h"
#include "ops/cuda/scratch.h"
#include "ops/kernel_table.h"

namespace brim::ops {

using tensor::DType;

void fp8_cast(device::Stream& stream, const Fp8CastArgs& a) {
  const int64_t T = a.x.rows(), C = a.x.cols();
  const DType type = target_kind(stream) == device::DeviceKind::cpu ? DType::f32 : DType::bf16;
  check_view("fp8_cast", "x", a.x, type, {T, C});
  check_optional("fp8_cast", "gate", a.gate, type, {T, C});
  check_optional("fp8_cast", "rows", a.rows, DType::f8e4m3, {T, C});
  check_optional("fp8_cast", "columns", a.columns, DType::f8e4m3, {C, fp8_columns(T)});
  check_view("fp8_cast", "scale", a.scale, DType::f32, {1});
  check_optional("fp8_cast", "inverse", a.inverse, DType::f32, {1});
  check_optional("fp8_cast", "amax", a.amax, DType::f32, {1});
  check_optional("fp8_cast", "d_bias", a.d_bias, DType::f32, {C});
  BRIM_CHECK(C % 16 == 0, "fp8_cast: rows have {} elements, must be a multiple of 16", C);
  if (a.d_bias) check_scratch("fp8_cast", a.scratch, fp8_cast_scratch_bytes(stream, T, C));
  if (a.x.elements() == 0) return;
  const auto bytes = [](const TensorView& v) { return v ? static_cast<double>(v.bytes()) : 0.0; };
  dispatch(
      stream, a,
      Work{2.0 * static_cast<double>(a.x.elements()), bytes(a.x) + bytes(a.gate) + bytes(a.rows) + bytes(a.columns)});
}

void fp8_cast_matrices(device::Stream& stream, const Fp8CastMatricesArgs& a) {
  const int64_t n = a.amax.rows();
  check_view("fp8_cast_matrices", "places", a.places, DType::u8, {n * static_cast<int64_t>(sizeof(Fp8MatrixPlace))});
  check_view("fp8_cast_matrices", "amax", a.amax, DType::f32, {n});
  check_view("fp8_cast_matrices", "scale", a.scale, DType::f32, {n});
  check_view("fp8_cast_matrices", "inverse", a.inverse, DType::f32, {n, 1});
  if (n == 0) return;
  const double read = target_kind(stream) == device::DeviceKind::cpu ? 8 : 4;  // read twice
  dispatch(stream, a, Work{3.0 * static_cast<double>(a.elements), (read + 2) * static_cast<double>(a.elements)});
}

void check_fp8_copy(const char* op, const Fp8Copy& copy, int64_t T, int64_t C) {
  if (!copy) return;
  check_optional(op, "fp8 rows", copy.rows, DType::f8e4m3, {T, C});
  check_optional(op, "fp8 columns", copy.columns, DType::f8e4m3, {C, fp8_columns(T)});
  check_view(op, "fp8 scale", copy.scale, DType::f32, {1});
  check_optional(op, "fp8 amax", copy.amax, DType::f32, {1});
  BRIM_CHECK(C % 16 == 0, "{}: rows of fp8 copies have {} elements, must be a multiple of 16", op, C);
}

void fp8_copy(device::Stream& stream, const tensor::TensorView& x, const Fp8Copy& copy) {
  if (!copy) return;
  Fp8CastArgs args{.x = x, .rows = copy.rows, .columns = copy.columns, .scale = copy.scale};
  args.amax = copy.amax;
  (kernels_of(stream).fp8_cast)(stream, args);
}

int64_t fp8_cast_scratch_bytes(const device::Stream& stream, int64_t T, int64_t C) {
  if (target_kind(stream) == device::DeviceKind::cpu) return 0;
  return cuda_fp8_cast_blocks(T) * C * static_cast<int64_t>(sizeof(float));
}

}  // namespace brim::ops
