// SPDX-License-Identifier: Apache-2.0
// Element types and host conversions. Device conversions are ops.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace brim::tensor {

enum class DType : uint8_t { f32, f16, bf16, f8e4m3, i8, u8, i32, i64, f64 };

int dtype_bytes(DType dtype);
const char* dtype_name(DType dtype);                                 // "f32" …
std::optional<DType> dtype_from_safetensors(std::string_view name);  // "F32", "BF16", "I8" …
const char* dtype_to_safetensors(DType dtype);

// Storage types for bf16 and fp16: two bytes each, without arithmetic.
struct bf16_t {
  uint16_t bits;
};
struct f16_t {
  uint16_t bits;
};

inline float to_float(float x) { return x; }
inline float to_float(bf16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
float to_float(f16_t x);

inline bf16_t to_bf16(float x) {  // round to nearest even; NaN stays NaN
  uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7FFFFFFF) > 0x7F800000) return {static_cast<uint16_t>(u >> 16 | 0x40)};
  u += 0x7FFF + (u >> 16 & 1);
  return {static_cast<uint16_t>(u >> 16)};
}
f16_t to_f16(float x);  // round to nearest even, overflow to infinity

// dst[i] = src[i] between any two of f32, f16, bf16, f64.
void convert_elements(const void* src, DType from, void* dst, DType to, int64_t count);

// The C++ type that stores a DType.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<bf16_t> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<f16_t> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::i8;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::i64;
};

}  // namespace brim::tensor
