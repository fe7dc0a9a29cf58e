// SPDX-License-Identifier: Apache-2.0
#include "tensor/dtype.h"

#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"

namespace brim::tensor {
namespace {

constexpr std::pair<std::string_view, DType> kSafetensorsNames[] = {
    {"F32", DType::f32}, {"F16", DType::f16}, {"BF16", DType::bf16}, {"F8_E4M3", DType::f8e4m3}, {"I8", DType::i8},
    {"U8", DType::u8},   {"I32", DType::i32}, {"I64", DType::i64},   {"F64", DType::f64},
};

// No infinities: the largest code of either sign is NaN.
double from_e4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  if (exponent == 15 && fraction == 7) return std::numeric_limits<double>::quiet_NaN();
  const double size = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return (bits & 0x80) != 0 ? -size : size;
}

double load(const void* p, DType t, int64_t i) {
  switch (t) {
    case DType::f32:
      return static_cast<const float*>(p)[i];
    case DType::f64:
      return static_cast<const double*>(p)[i];
    case DType::f16:
      return to_float(static_cast<const f16_t*>(p)[i]);
    case DType::bf16:
      return to_float(static_cast<const bf16_t*>(p)[i]);
    case DType::f8e4m3:
      return from_e4m3(static_cast<const uint8_t*>(p)[i]);
    default:
      fail(ErrorCode::internal, "convert_elements: cannot read {}", dtype_name(t));
  }
}

void store(void* p, DType t, int64_t i, double v) {
  switch (t) {
    case DType::f32:
      static_cast<float*>(p)[i] = static_cast<float>(v);
      return;
    case DType::f64:
      static_cast<double*>(p)[i] = v;
      return;
    case DType::f16:
      static_cast<f16_t*>(p)[i] = to_f16(static_cast<float>(v));
      return;
    case DType::bf16:
      static_cast<bf16_t*>(p)[i] = to_bf16(static_cast<float>(v));
      return;
    default:
      fail(ErrorCode::internal, "convert_elements: cannot write {}", dtype_name(t));
  }
}

uint32_t choose(bool first, uint32_t a, uint32_t b) {
  const uint32_t mask = 0u - static_cast<uint32_t>(first);
  return (a & mask) | (b & ~mask);
}

}  // namespace

int dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::f8e4m3:
    case DType::i8:
    case DType::u8:
      return 1;
  }
  return 0;
}

const char* dtype_name(DType dtype) {
  static const char* const names[] = {"f32", "f16", "bf16", "f8e4m3", "i8", "u8", "i32", "i64", "f64"};
  return names[static_cast<int>(dtype)];
}

std::optional<DType> dtype_from_safetensors(std::string_view name) {
  for (const auto& [text, dtype] : kSafetensorsNames)
    if (text == name) return dtype;
  return std::nullopt;
}

const char* dtype_to_safetensors(DType dtype) {
  for (const auto& [text, candidate] : kSafetensorsNames)
    if (candidate == dtype) return text.data();
  return "F32";
}

float to_float(f16_t x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16, exponent = x.bits >> 10 & 31,
                 fraction = x.bits & 0x3FF;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000 | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;  // subnormal
  return sign != 0 ? -magnitude : magnitude;
}

// Computes all cases and selects one without branches, so that loops vectorise.
f16_t to_f16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x), sign = u >> 16 & 0x8000, magnitude = u & 0x7FFFFFFF;
  const uint32_t normal = (magnitude + 0xFFF + (magnitude >> 13 & 1) - 0x38000000) >> 13;
  const uint32_t subnormal =  // rounded by the FPU
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000;
  uint32_t bits = choose(magnitude < 0x38800000, subnormal, normal);
  bits = choose(magnitude >= 0x477FF000, 0x7C00, bits);  // rounds past 65504
  bits = choose(magnitude > 0x7F800000, 0x7E00, bits);
  return {static_cast<uint16_t>(sign | bits)};
}

void convert_elements(const void* src, DType from, void* dst, DType to, int64_t count) {
  if (from == to) {
    std::memcpy(dst, src, static_cast<size_t>(count * dtype_bytes(from)));
    return;
  }
  if (from == DType::f16 && to == DType::f32) {
    for (int64_t i = 0; i < count; ++i) static_cast<float*>(dst)[i] = to_float(static_cast<const f16_t*>(src)[i]);
  } else if (from == DType::bf16 && to == DType::f32) {
    for (int64_t i = 0; i < count; ++i) static_cast<float*>(dst)[i] = to_float(static_cast<const bf16_t*>(src)[i]);
  } else if (from == DType::f32 && to == DType::bf16) {
    for (int64_t i = 0; i < count; ++i) static_cast<bf16_t*>(dst)[i] = to_bf16(static_cast<const float*>(src)[i]);
  } else if (from == DType::f32 && to == DType::f16) {
    for (int64_t i = 0; i < count; ++i) static_cast<f16_t*>(dst)[i] = to_f16(static_cast<const float*>(src)[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) store(dst, to, i, load(src, from, i));
  }
}

}  // namespace brim::tensor
