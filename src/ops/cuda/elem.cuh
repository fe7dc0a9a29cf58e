// SPDX-License-Identifier: Apache-2.0
// Element types on the device: eight at a time through 16-byte accesses, arithmetic in fp32; and warp-wide sums.
#pragma once
#include <initializer_list>
#include <utility>

#include "ops/cuda/ptx.cuh"
#include "ops/dropout.h"

namespace brim::ops {

// Views with their names, for checks. Has a name because nvcc 12.4 cannot deduce it in a range-based for.
using NamedViews = std::initializer_list<std::pair<const char*, tensor::TensorView>>;

template <class Elem>
struct ElemTag {
  using type = Elem;
};

// Calls f(ElemTag<Elem>) for an activation type.
template <class F>
void dispatch_elem(tensor::DType dtype, F&& f) {
  switch (dtype) {
    case tensor::DType::f32:
      return f(ElemTag<float>{});
    case tensor::DType::f16:
      return f(ElemTag<__half>{});
    case tensor::DType::bf16:
      return f(ElemTag<__nv_bfloat16>{});
    default:
      fail(ErrorCode::internal, "no CUDA kernel for activations of type {}", dtype_name(dtype));
  }
}

template <class Elem>
__device__ __forceinline__ uint32_t pack2(float a, float b) {
  uint32_t r;
  if constexpr (std::is_same_v<Elem, __half>) {
    const __half2 h = __floats2half2_rn(a, b);
    memcpy(&r, &h, 4);
  } else {
    const __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
    memcpy(&r, &h, 4);
  }
  return r;
}
template <class Elem>
__device__ __forceinline__ float2 unpack2(uint32_t word) {
  if constexpr (std::is_same_v<Elem, __half>) {
    __half2 h;
    memcpy(static_cast<void*>(&h), &word, 4);
    return __half22float2(h);
  } else {
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000u));
  }
}
template <class Elem>
__device__ __forceinline__ float to_f32(Elem x) {
  return static_cast<float>(x);
}
template <class Elem>
__device__ __forceinline__ Elem from_f32(float x) {
  if constexpr (std::is_same_v<Elem, float>)
    return x;
  else if constexpr (std::is_same_v<Elem, __half>)
    return __float2half_rn(x);
  else
    return __float2bfloat16_rn(x);
}

// Eight elements as loaded: one 16-byte access, two for fp32.
template <class Elem>
struct Raw8 {
  uint4 v;
};
template <>
struct Raw8<float> {
  float4 lo, hi;
};

template <class Elem>
__device__ __forceinline__ Raw8<Elem> load_raw8(const Elem* p) {
  if constexpr (std::is_same_v<Elem, float>)
    return {reinterpret_cast<const float4*>(p)[0], reinterpret_cast<const float4*>(p)[1]};
  else
    return {*reinterpret_cast<const uint4*>(p)};
}
// For data that is read once and need not stay in the cache.
template <class Elem>
__device__ __forceinline__ Raw8<Elem> stream_raw8(const Elem* p) {
  if constexpr (std::is_same_v<Elem, float>)
    return {__ldcs(reinterpret_cast<const float4*>(p)), __ldcs(reinterpret_cast<const float4*>(p) + 1)};
  else
    return {__ldcs(reinterpret_cast<const uint4*>(p))};
}
template <class Elem>
__device__ __forceinline__ void unpack8(const Raw8<Elem>& raw, float (&f)[8]) {
  if constexpr (std::is_same_v<Elem, float>) {
    f[0] = raw.lo.x;
    f[1] = raw.lo.y;
    f[2] = raw.lo.z;
    f[3] = raw.lo.w;
    f[4] = raw.hi.x;
    f[5] = raw.hi.y;
    f[6] = raw.hi.z;
    f[7] = raw.hi.w;
  } else {
    const uint32_t w[4] = {raw.v.x, raw.v.y, raw.v.z, raw.v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = unpack2<Elem>(w[i]);
      f[2 * i] = two.x;
      f[2 * i + 1] = two.y;
    }
  }
}
template <class Elem>
__device__ __forceinline__ void load8(const Elem* p, float (&f)[8]) {
  unpack8<Elem>(load_raw8(p), f);
}
template <class Elem>
__device__ __forceinline__ void store8(Elem* p, const float (&f)[8]) {
  if constexpr (std::is_same_v<Elem, float>) {
#pragma unroll
    for (int i = 0; i < 8; i += 4)
      store_global16(p + i, make_uint4(__float_as_uint(f[i]), __float_as_uint(f[i + 1]), __float_as_uint(f[i + 2]),
                                       __float_as_uint(f[i + 3])));
  } else {
    store_global16(p, make_uint4(pack2<Elem>(f[0], f[1]), pack2<Elem>(f[2], f[3]), pack2<Elem>(f[4], f[5]),
                                 pack2<Elem>(f[6], f[7])));
  }
}

// e4m3, saturating at 448.
__device__ __forceinline__ uint32_t pack2_fp8(float a, float b) {
  return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
}
__device__ __forceinline__ uint32_t pack4_fp8(float a, float b, float c, float d) {
  return pack2_fp8(a, b) | pack2_fp8(c, d) << 16;
}
__device__ __forceinline__ uint2 pack8_fp8(const float (&f)[8]) {
  return make_uint2(pack4_fp8(f[0], f[1], f[2], f[3]), pack4_fp8(f[4], f[5], f[6], f[7]));
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
  return v;
}

// Dropout of eight neighbouring columns starting at a multiple of eight: kept ones times `scale`, the rest zero.
struct DropoutMask {
  uint64_t seed, first_row;
  uint32_t site, threshold;
  float scale;
};
inline DropoutMask dropout_mask(const Dropout& d) {
  return {d.seed, static_cast<uint64_t>(d.first_row), d.site, d.on() ? dropout_threshold(d.probability) : 0,
          d.on() ? d.scale() : 1.0f};
}
// An element is kept if its 16 bits, in the upper half of a word, are above this.
__device__ __forceinline__ uint32_t drop_limit(const DropoutMask& mask) { return (mask.threshold << 16) - 1; }
__device__ __forceinline__ void drop8(const DropoutMask& mask, uint64_t row, uint32_t column, float (&f)[8]) {
  const uint64_t of_row = dropout_row(mask.seed, mask.first_row + row), first = dropout_columns(mask.site, column / 4);
  const uint32_t limit = drop_limit(mask);
#pragma unroll
  for (int quad = 0; quad < 2; ++quad) {
    const uint64_t bits = dropout_mix(of_row, first + (quad == 0 ? 0 : kDropoutQuad));
    const uint32_t words[2] = {static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32)};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = i % 2 == 0 ? words[i / 2] << 16 : words[i / 2];
      float& x = f[4 * quad + i];
      x = word > limit ? x * mask.scale : 0.0f;
    }
  }
}

}  // namespace brim::ops
