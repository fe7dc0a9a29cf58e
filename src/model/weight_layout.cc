// SPDX-License-Identifier: Apache-2.0
#include "model/weight_layout.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "base/error.h"
#include "memory/placement.h"
#include "ops/amax.h"
#include "ops/int8.h"

namespace brim::model {

using device::DeviceKind;
using ops::Precision;
using tensor::DType;
using tensor::TensorView;

namespace {

DType matrix_type(Precision precision) {
  switch (precision) {
    case Precision::bf16:
      return DType::bf16;
    case Precision::fp16:
      return DType::f16;
    case Precision::fp8:
      return DType::f8e4m3;
    case Precision::int8:
      return DType::i8;
    default:
      return DType::f32;
  }
}

// Packs rows for the CPU, starting at `first_row`, as many as `w` has.
void pack_matrix(const StoredParam& s, int64_t first_row, const ops::LinearWeight& w, MatrixBuffer& buffer) {
  const int64_t begin = first_row * w.K, end = begin + w.N * w.K;
  const bool as_stored = s.dtype() == DType::i8 ? w.precision == Precision::int8 : s.dtype() != DType::f64;
  const DType type = as_stored ? s.dtype() : DType::f32;
  const TensorView rows(buffer.get((end - begin) * dtype_bytes(type)), type, {w.N, w.K});
  s.read_as(begin, end, rows.data, type);
  std::vector<float> scales(type == DType::i8 ? static_cast<size_t>(w.N) : 0);
  if (!scales.empty()) s.read_scales(first_row, first_row + w.N, scales.data());
  linear_pack(rows, scales.empty() ? TensorView() : TensorView(scales.data(), DType::f32, {w.N}), w.precision, w.isa,
              w.data.data, w.scale ? w.scale.as<float>() : nullptr, w.total ? w.total.as<float>() : nullptr);
}

// For a GPU: codes as stored, or quantised like those of a CPU.
void fill_codes(const StoredParam& s, int64_t first_row, const ops::LinearWeight& w, MatrixBuffer& buffer) {
  const int64_t begin = first_row * w.K, end = begin + w.N * w.K;
  auto* codes = static_cast<int8_t*>(w.data.data);
  if (s.dtype() == DType::i8) {
    s.read_as(begin, end, codes, DType::i8);
    return s.read_scales(first_row, first_row + w.N, w.scale.as<float>());
  }
  auto* wide = static_cast<float*>(buffer.get(4 * (end - begin)));
  s.read_wide(begin, end, wide);
  for (int64_t n = 0; n < w.N; ++n) w.scale.as<float>()[n] = ops::quantise_int8(wide + n * w.K, w.K, codes + n * w.K);
}

}  // namespace

Cutter::Cutter(void* base)
    : base_(base != nullptr ? static_cast<char*>(base) : reinterpret_cast<char*>(uintptr_t{1} << 20)) {}

TensorView Cutter::cut(DType dtype, std::initializer_list<int64_t> dims) {
  TensorView v(base_ + used_, dtype, dims);
  if (v.elements() == 0) return {};
  used_ += memory::align_up(v.bytes());
  return v;
}

ops::LinearWeight Cutter::cut_matrix(int64_t N, int64_t K, MatrixFormat format, DeviceKind target, device::Isa isa) {
  const Precision p = format.precision;
  ops::LinearWeight w;
  w.N = N;
  w.K = K;
  w.precision = p;
  w.isa = isa;
  w.data =
      target == DeviceKind::cpu ? cut(DType::u8, {linear_packed_bytes(N, K, p, isa)}) : cut(matrix_type(p), {N, K});
  if (p == Precision::int8) w.scale = cut(DType::f32, {N});
  if (format.centred) w.total = cut(DType::f32, {N});
  if (p == Precision::fp8) w.scale = cut(DType::f32, {1});
  return w;
}

void* MatrixBuffer::get(int64_t bytes) {
  BRIM_CHECK(bytes <= bytes_, "matrix has {} bytes, expected at most {}", bytes, bytes_);
  if (!data_) data_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes_));
  return data_.get();
}

void fill_matrix(const StoredParam& s, int64_t first_row, const ops::LinearWeight& w, DeviceKind target,
                 MatrixBuffer& buffer) {
  if (target == DeviceKind::cpu) return pack_matrix(s, first_row, w, buffer);
  if (w.precision == Precision::int8) return fill_codes(s, first_row, w, buffer);
  const int64_t begin = first_row * w.K, end = begin + w.N * w.K;
  if (w.precision != Precision::fp8) return s.read_as(begin, end, w.data.data, w.data.dtype);
  const std::span<float> wide(static_cast<float*>(buffer.get(4 * (end - begin))), static_cast<size_t>(end - begin));
  s.read_wide(begin, end, wide.data());
  float amax = 0;
  for (const float v : wide) amax = std::max(amax, std::abs(v));
  const float scale = amax > 0 ? amax / ops::kFp8Largest : 1.0f;
  *w.scale.as<float>() = scale;
  for (size_t i = 0; i < wide.size(); ++i) static_cast<uint8_t*>(w.data.data)[i] = ops::to_e4m3(wide[i] / scale);
}

}  // namespace brim::model
