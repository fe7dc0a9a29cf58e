// SPDX-License-Identifier: Apache-2.0
// A float vector of the instruction set a file is compiled for, with the same names everywhere, so that the epilogue of
// a product (bias, activation, residual, rounding) is written once. All names have internal linkage.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define BRIM_INLINE inline __attribute__((always_inline))
// For loops over registers: unrolls early enough that an array of them is never spilled to memory.
#if defined(__clang__)
#define BRIM_UNROLL _Pragma("unroll")
#else
#define BRIM_UNROLL _Pragma("GCC unroll 16")
#endif

namespace brim::ops::gemm {
namespace {

#if defined(__AVX512F__)

using F = __m512;
using I = __m512i;
constexpr int kLanes = 16;
struct Tail {
  __mmask16 mask;
};  // the first n lanes

BRIM_INLINE Tail tail(int n) { return {static_cast<__mmask16>((1u << n) - 1)}; }
BRIM_INLINE F set1(float x) { return _mm512_set1_ps(x); }
BRIM_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
BRIM_INLINE F load(const float* p, Tail t) { return _mm512_maskz_loadu_ps(t.mask, p); }
BRIM_INLINE void store(float* p, F x) { _mm512_storeu_ps(p, x); }
BRIM_INLINE void store(float* p, F x, Tail t) { _mm512_mask_storeu_ps(p, t.mask, x); }
BRIM_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
BRIM_INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
BRIM_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
BRIM_INLINE F div(F a, F b) { return _mm512_div_ps(a, b); }
BRIM_INLINE F reciprocal(F a) {  // 14 bits and one Newton step; a zmm division blocks its port for 16 cycles
  const F r = _mm512_rcp14_ps(a);
  return _mm512_mul_ps(r, _mm512_fnmadd_ps(a, r, _mm512_set1_ps(2.0f)));
}
BRIM_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
BRIM_INLINE F min(F a, F b) { return _mm512_min_ps(a, b); }
BRIM_INLINE F max(F a, F b) { return _mm512_max_ps(a, b); }
BRIM_INLINE F abs(F a) { return _mm512_abs_ps(a); }
BRIM_INLINE F round(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
BRIM_INLINE F if_negative(F x, F yes, F no) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ), no, yes);
}
BRIM_INLINE F times_pow2(F x, F n) { return _mm512_scalef_ps(x, n); }  // n is an integer
BRIM_INLINE F load_int(const int32_t* p) { return _mm512_cvtepi32_ps(_mm512_loadu_si512(p)); }
BRIM_INLINE F load_int_sub(const int32_t* p, const int32_t* q) {
  return _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_loadu_si512(p), _mm512_loadu_si512(q)));
}
// The largest magnitude is found by comparing bits: they are ordered like the numbers, with NaN above all.
BRIM_INLINE I no_bits() { return _mm512_setzero_si512(); }
BRIM_INLINE I max_bits(I most, F x) { return _mm512_max_epi32(most, _mm512_castps_si512(_mm512_abs_ps(x))); }
BRIM_INLINE I flip_sign(I x) { return _mm512_xor_si512(x, _mm512_set1_epi32(INT32_MIN)); }
BRIM_INLINE I max_int(I a, I b) { return _mm512_max_epi32(a, b); }
BRIM_INLINE I bits_of(F x) { return _mm512_castps_si512(x); }
BRIM_INLINE int32_t reduce_max(I most) { return _mm512_reduce_max_epi32(most); }
BRIM_INLINE F load_bf16(const uint16_t* p) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
}
BRIM_INLINE F load_bf16(const uint16_t* p, Tail t) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(t.mask, p)), 16));
}
#if defined(__AVX512BF16__)
BRIM_INLINE __m256i bf16_bits(F x) { return (__m256i)_mm512_cvtneps_pbh(x); }
#else
// Rounds to nearest even; NaN stays NaN and keeps its sign.
BRIM_INLINE __m256i bf16_bits(F x) {
  const I u = _mm512_castps_si512(x), top = _mm512_srli_epi32(u, 16);
  const I odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
  const I rounded = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF))), 16);
  const I quiet = _mm512_or_si512(top, _mm512_set1_epi32(0x40));
  return _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), rounded, quiet));
}
#endif
BRIM_INLINE void store_bf16(uint16_t* p, F x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bf16_bits(x)); }
BRIM_INLINE void store_bf16(uint16_t* p, F x, Tail t) { _mm256_mask_storeu_epi16(p, t.mask, bf16_bits(x)); }

#elif defined(__AVX2__)

using F = __m256;
using I = __m256i;
constexpr int kLanes = 8;
struct Tail {
  __m256i mask;
  int n;
};

BRIM_INLINE Tail tail(int n) {
  return {_mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)), n};
}
BRIM_INLINE F set1(float x) { return _mm256_set1_ps(x); }
BRIM_INLINE F load(const float* p) { return _mm256_loadu_ps(p); }
BRIM_INLINE F load(const float* p, Tail t) { return _mm256_maskload_ps(p, t.mask); }
BRIM_INLINE void store(float* p, F x) { _mm256_storeu_ps(p, x); }
BRIM_INLINE void store(float* p, F x, Tail t) { _mm256_maskstore_ps(p, t.mask, x); }
BRIM_INLINE F add(F a, F b) { return _mm256_add_ps(a, b); }
BRIM_INLINE F sub(F a, F b) { return _mm256_sub_ps(a, b); }
BRIM_INLINE F mul(F a, F b) { return _mm256_mul_ps(a, b); }
BRIM_INLINE F div(F a, F b) { return _mm256_div_ps(a, b); }
BRIM_INLINE F reciprocal(F a) { return _mm256_div_ps(_mm256_set1_ps(1.0f), a); }
BRIM_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
BRIM_INLINE F min(F a, F b) { return _mm256_min_ps(a, b); }
BRIM_INLINE F max(F a, F b) { return _mm256_max_ps(a, b); }
BRIM_INLINE F abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
BRIM_INLINE F round(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
BRIM_INLINE F if_negative(F x, F yes, F no) {
  return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ));
}
BRIM_INLINE F times_pow2(F x, F n) {
  return _mm256_mul_ps(
      x, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23)));
}
BRIM_INLINE I load_i(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
BRIM_INLINE F load_int(const int32_t* p) { return _mm256_cvtepi32_ps(load_i(p)); }
BRIM_INLINE F load_int_sub(const int32_t* p, const int32_t* q) {
  return _mm256_cvtepi32_ps(_mm256_sub_epi32(load_i(p), load_i(q)));
}
BRIM_INLINE I no_bits() { return _mm256_setzero_si256(); }
BRIM_INLINE I max_bits(I most, F x) { return _mm256_max_epi32(most, _mm256_castps_si256(abs(x))); }
BRIM_INLINE I flip_sign(I x) { return _mm256_xor_si256(x, _mm256_set1_epi32(INT32_MIN)); }
BRIM_INLINE I max_int(I a, I b) { return _mm256_max_epi32(a, b); }
BRIM_INLINE I bits_of(F x) { return _mm256_castps_si256(x); }
BRIM_INLINE int32_t reduce_max(I most) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1)));
}
BRIM_INLINE F load_bf16(const uint16_t* p) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
}
// Rounds to nearest even; NaN stays NaN and keeps its sign.
BRIM_INLINE I bf16_bits(F x) {
  const I u = _mm256_castps_si256(x);
  const I odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const I rounded = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))), 16);
  const I quiet = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40));
  return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
BRIM_INLINE F round_to_bf16(F x) { return _mm256_castsi256_ps(_mm256_slli_epi32(bf16_bits(x), 16)); }
BRIM_INLINE void store_bf16(uint16_t* p, F x) {
  const I packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(bf16_bits(x), bf16_bits(x)), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}
BRIM_INLINE F load_bf16(const uint16_t* p, Tail t) {
  uint16_t buffer[kLanes] = {};
  std::memcpy(buffer, p, sizeof(uint16_t) * static_cast<size_t>(t.n));
  return load_bf16(buffer);
}
BRIM_INLINE void store_bf16(uint16_t* p, F x, Tail t) {
  uint16_t buffer[kLanes];
  store_bf16(buffer, x);
  std::memcpy(p, buffer, sizeof(uint16_t) * static_cast<size_t>(t.n));
}

#elif defined(__aarch64__)

using F = float32x4_t;
using I = int32x4_t;
constexpr int kLanes = 4;
struct Tail {
  int n;
};

BRIM_INLINE Tail tail(int n) { return {n}; }
BRIM_INLINE F set1(float x) { return vdupq_n_f32(x); }
BRIM_INLINE F load(const float* p) { return vld1q_f32(p); }
BRIM_INLINE F load(const float* p, Tail t) {
  float buffer[kLanes] = {};
  std::memcpy(buffer, p, sizeof(float) * static_cast<size_t>(t.n));
  return vld1q_f32(buffer);
}
BRIM_INLINE void store(float* p, F x) { vst1q_f32(p, x); }
BRIM_INLINE void store(float* p, F x, Tail t) {
  float buffer[kLanes];
  vst1q_f32(buffer, x);
  std::memcpy(p, buffer, sizeof(float) * static_cast<size_t>(t.n));
}
BRIM_INLINE F add(F a, F b) { return vaddq_f32(a, b); }
BRIM_INLINE F sub(F a, F b) { return vsubq_f32(a, b); }
BRIM_INLINE F mul(F a, F b) { return vmulq_f32(a, b); }
BRIM_INLINE F div(F a, F b) { return vdivq_f32(a, b); }
BRIM_INLINE F reciprocal(F a) { return vdivq_f32(vdupq_n_f32(1.0f), a); }
BRIM_INLINE F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
BRIM_INLINE F min(F a, F b) { return vminq_f32(a, b); }
BRIM_INLINE F max(F a, F b) { return vmaxq_f32(a, b); }
BRIM_INLINE F abs(F a) { return vabsq_f32(a); }
BRIM_INLINE F round(F a) { return vrndnq_f32(a); }
BRIM_INLINE F if_negative(F x, F yes, F no) { return vbslq_f32(vcltzq_f32(x), yes, no); }
BRIM_INLINE F times_pow2(F x, F n) {
  return vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23)));
}
BRIM_INLINE F load_int(const int32_t* p) { return vcvtq_f32_s32(vld1q_s32(p)); }
BRIM_INLINE F load_int_sub(const int32_t* p, const int32_t* q) {
  return vcvtq_f32_s32(vsubq_s32(vld1q_s32(p), vld1q_s32(q)));
}
BRIM_INLINE I no_bits() { return vdupq_n_s32(0); }
BRIM_INLINE I max_bits(I most, F x) { return vmaxq_s32(most, vreinterpretq_s32_f32(vabsq_f32(x))); }
BRIM_INLINE I flip_sign(I x) { return veorq_s32(x, vdupq_n_s32(INT32_MIN)); }
BRIM_INLINE I max_int(I a, I b) { return vmaxq_s32(a, b); }
BRIM_INLINE I bits_of(F x) { return vreinterpretq_s32_f32(x); }
BRIM_INLINE int32_t reduce_max(I most) { return vmaxvq_s32(most); }
BRIM_INLINE F widen_bf16(uint16x4_t x) { return vreinterpretq_f32_u32(vshll_n_u16(x, 16)); }
BRIM_INLINE F load_bf16(const uint16_t* p) { return widen_bf16(vld1_u16(p)); }
BRIM_INLINE F load_bf16(const uint16_t* p, Tail t) {
  uint16_t buffer[kLanes] = {};
  std::memcpy(buffer, p, sizeof(uint16_t) * static_cast<size_t>(t.n));
  return load_bf16(buffer);
}
// Rounds to nearest even; NaN stays NaN and keeps its sign.
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
BRIM_INLINE uint16x4_t bf16_bits(F x) { return vreinterpret_u16_bf16(vcvt_bf16_f32(x)); }
#else
BRIM_INLINE uint16x4_t bf16_bits(F x) {
  const uint32x4_t u = vreinterpretq_u32_f32(x);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7FFF))),
                   quiet = vorrq_u32(u, vdupq_n_u32(0x400000));
  return vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16);
}
#endif
BRIM_INLINE F round_to_bf16(F x) { return widen_bf16(bf16_bits(x)); }
BRIM_INLINE void store_bf16(uint16_t* p, F x) { vst1_u16(p, bf16_bits(x)); }
BRIM_INLINE void store_bf16(uint16_t* p, F x, Tail t) {
  uint16_t buffer[kLanes];
  store_bf16(buffer, x);
  std::memcpy(p, buffer, sizeof(uint16_t) * static_cast<size_t>(t.n));
}

#endif

#if defined(__AVX2__) || defined(__aarch64__)

// e^x for x in [-87, 88] (clamped), relative error below 2 ulp.
BRIM_INLINE F exp(F x) {
  x = min(set1(88.0f), max(set1(-87.0f), x));  // constants first, because NaN propagates through the second operand
  const F n = round(mul(x, set1(1.44269504f)));
  F r = fma(n, set1(-0.693145752f), x);  // ln 2 in two parts, so that n * ln 2 is exact
  r = fma(n, set1(-1.42860677e-6f), r);
  F p = set1(1.0f / 5040);
  p = fma(p, r, set1(1.0f / 720));
  p = fma(p, r, set1(1.0f / 120));
  p = fma(p, r, set1(1.0f / 24));
  p = fma(p, r, set1(1.0f / 6));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  return times_pow2(p, n);
}

// x Φ(x), erf form. Φ(-t) = e^(-t²/2) Q(t), with Q smooth and fitted in u = 1 / (1 + 0.35 t) to 3e-8 relative, so the
// negative tail keeps its relative accuracy.
BRIM_INLINE F gelu(F x) {
  const F t = abs(x);
  const F u = reciprocal(fma(t, set1(0.35f), set1(1.0f)));
  F q = set1(-0.02914517673f);
  q = fma(q, u, set1(0.14396832226f));
  q = fma(q, u, set1(-0.25570786113f));
  q = fma(q, u, set1(0.15916749327f));
  q = fma(q, u, set1(-0.02310566057f));
  q = fma(q, u, set1(0.10550640150f));
  q = fma(q, u, set1(0.11983323508f));
  q = fma(q, u, set1(0.13986182375f));
  q = fma(q, u, set1(0.13962140669f));
  q = mul(q, u);
  const F below = mul(q, exp(mul(mul(t, t), set1(-0.5f))));  // Φ(-t)
  return mul(x, if_negative(x, below, sub(set1(1.0f), below)));
}

// x (1/2 + c P(c²)) with c = x clamped to ±4.25, at which the sum is exactly 0 or 1; within 5e-5 of gelu everywhere.
constexpr float kGeluFast[] = {4.76263230242413e-11f,    -4.675598130887693e-09f, 2.0352129581624467e-07f,
                               -5.2271589083829895e-06f, 8.922610140871257e-05f,  -0.0010829538805410266f,
                               0.009729632176458836f,    -0.0662040188908577f,    0.3988242745399475f};
BRIM_INLINE F gelu_fast(F x) {
  const F c = min(set1(4.25f), max(set1(-4.25f), x)), s = mul(c, c);
  F p = set1(kGeluFast[0]);
  p = fma(p, s, set1(kGeluFast[1]));
  p = fma(p, s, set1(kGeluFast[2]));
  p = fma(p, s, set1(kGeluFast[3]));
  p = fma(p, s, set1(kGeluFast[4]));
  p = fma(p, s, set1(kGeluFast[5]));
  p = fma(p, s, set1(kGeluFast[6]));
  p = fma(p, s, set1(kGeluFast[7]));
  p = fma(p, s, set1(kGeluFast[8]));
  return mul(x, fma(c, p, set1(0.5f)));
}

// x σ(z) from e^-|z|, which keeps the relative accuracy of both tails.
BRIM_INLINE F times_sigmoid(F x, F z) {
  const F e = exp(sub(set1(0.0f), abs(z)));
  return mul(x, mul(if_negative(z, e, set1(1.0f)), reciprocal(add(set1(1.0f), e))));
}
BRIM_INLINE F gelu_tanh(F x) {
  return times_sigmoid(x, mul(x, fma(mul(x, x), set1(0.0713548163f), set1(1.5957691216f))));
}
BRIM_INLINE F quick_gelu(F x) { return times_sigmoid(x, mul(x, set1(1.702f))); }
BRIM_INLINE F silu(F x) { return times_sigmoid(x, x); }

// Odd polynomial below 0.55 (the quotient would cancel there), (1 - e^-2t) / (1 + e^-2t) above.
BRIM_INLINE F tanh(F x) {
  const F t = abs(x), s = mul(x, x);
  F p = set1(-0.006198689807206392f);
  p = fma(p, s, set1(0.02102053165435791f));
  p = fma(p, s, set1(-0.0538405142724514f));
  p = fma(p, s, set1(0.13332480192184448f));
  p = fma(p, s, set1(-0.3333331346511841f));
  const F small = fma(mul(p, s), x, x);
  const F e = exp(mul(t, set1(-2.0f)));
  const F q = div(sub(set1(1.0f), e), add(set1(1.0f), e));
  const F large = if_negative(x, sub(set1(0.0f), q), q);
  return if_negative(sub(t, set1(0.55f)), small, large);
}
#endif

}  // namespace
}  // namespace brim::ops::gemm
