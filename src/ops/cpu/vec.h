// SPDX-License-Identifier: Apache-2.0
// A float vector of the instruction set a file is compiled for, with the same names everywhere, so that a kernel is
// written once. Included only by files compiled by brim_isa(). They must not include inline functions with external
// linkage: the linker would merge versions compiled with different flags.
#pragma once
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define BRIM_VEC inline __attribute__((always_inline))

namespace brim::ops::BRIM_ISA {
namespace {

// Loads and stores of the first n lanes touch nothing past them; the other lanes load as zero. 0 <= n <= kLanes.
// min and max return their second operand if one is NaN, so pass the value that may be NaN second. reciprocal is for
// finite positive numbers, within 2 units in the last place.
#if defined(__AVX512F__)

using F = __m512;
using M = __mmask16;
constexpr int kLanes = 16, kRegisters = 32;

BRIM_VEC M first(int n) { return static_cast<M>((1u << n) - 1); }
BRIM_VEC F zero() { return _mm512_setzero_ps(); }
BRIM_VEC F set1(float x) { return _mm512_set1_ps(x); }
BRIM_VEC F load(const float* p) { return _mm512_loadu_ps(p); }
BRIM_VEC F load(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
BRIM_VEC void store(float* p, F x) { _mm512_storeu_ps(p, x); }
BRIM_VEC void store(float* p, F x, int n) { _mm512_mask_storeu_ps(p, first(n), x); }
BRIM_VEC F add(F a, F b) { return _mm512_add_ps(a, b); }
BRIM_VEC F sub(F a, F b) { return _mm512_sub_ps(a, b); }
BRIM_VEC F mul(F a, F b) { return _mm512_mul_ps(a, b); }
BRIM_VEC F div(F a, F b) { return _mm512_div_ps(a, b); }
BRIM_VEC F reciprocal(F a) {  // 14 bits and one Newton step: a division would block its port for 16 cycles
  const F r = _mm512_rcp14_ps(a);
  return _mm512_mul_ps(r, _mm512_fnmadd_ps(a, r, _mm512_set1_ps(2.0f)));
}
BRIM_VEC F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
BRIM_VEC F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
BRIM_VEC F min(F a, F b) { return _mm512_min_ps(a, b); }
BRIM_VEC F max(F a, F b) { return _mm512_max_ps(a, b); }
BRIM_VEC F abs(F a) { return _mm512_abs_ps(a); }
BRIM_VEC F sqrt(F a) { return _mm512_sqrt_ps(a); }
BRIM_VEC F round(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
BRIM_VEC M less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
BRIM_VEC F select(M m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }
BRIM_VEC M lanes_below(int n) { return first(n); }
BRIM_VEC F times_pow2(F x, F n) { return _mm512_scalef_ps(x, n); }
BRIM_VEC float reduce_add(F a) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}
BRIM_VEC float reduce_max(F a) {
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  const __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
}
BRIM_VEC F load_u16(const uint16_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
}
BRIM_VEC F load_bf16(const uint16_t* p) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
}
BRIM_VEC F load_bf16(const uint16_t* p, int n) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(n), p)), 16));
}
BRIM_VEC F load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
BRIM_VEC F load_f16(const uint16_t* p, int n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p)); }
BRIM_VEC __m256i bf16_bits(F x) {  // round to nearest even, NaN stays NaN; not AVX512_BF16, which flushes subnormals
  const __m512i u = _mm512_castps_si512(x), top = _mm512_srli_epi32(u, 16);
  const __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF))), 16);
  const __m512i quiet = _mm512_or_si512(top, _mm512_set1_epi32(0x40));
  return _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), rounded, quiet));
}
BRIM_VEC void store_bf16(uint16_t* p, F x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bf16_bits(x)); }
BRIM_VEC void store_bf16(uint16_t* p, F x, int n) { _mm256_mask_storeu_epi16(p, first(n), bf16_bits(x)); }
BRIM_VEC __m256i f16_bits(F x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
BRIM_VEC void store_f16(uint16_t* p, F x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), f16_bits(x)); }
BRIM_VEC void store_f16(uint16_t* p, F x, int n) { _mm256_mask_storeu_epi16(p, first(n), f16_bits(x)); }

// dst[c][r] = rows[r][c] for a square of kLanes. Quarter rows are loaded by masked broadcasts, so only two of four
// stages need the single shuffle port.
BRIM_VEC void transpose(const float* const* rows, float* dst, ptrdiff_t ld_dst) {
  for (int c = 0; c < 16; c += 4) {
    F q[4];  // q[i]: columns c..c+3 of rows i, i+4, i+8, i+12
    for (int i = 0; i < 4; ++i) {
      q[i] = _mm512_castps128_ps512(_mm_loadu_ps(rows[i] + c));
      q[i] = _mm512_mask_broadcast_f32x4(q[i], 0x00F0, _mm_loadu_ps(rows[i + 4] + c));
      q[i] = _mm512_mask_broadcast_f32x4(q[i], 0x0F00, _mm_loadu_ps(rows[i + 8] + c));
      q[i] = _mm512_mask_broadcast_f32x4(q[i], 0xF000, _mm_loadu_ps(rows[i + 12] + c));
    }
    const F a = _mm512_unpacklo_ps(q[0], q[1]), b = _mm512_unpackhi_ps(q[0], q[1]);
    const F d = _mm512_unpacklo_ps(q[2], q[3]), e = _mm512_unpackhi_ps(q[2], q[3]);
    store(dst + (c + 0) * ld_dst, _mm512_shuffle_ps(a, d, 0x44));
    store(dst + (c + 1) * ld_dst, _mm512_shuffle_ps(a, d, 0xEE));
    store(dst + (c + 2) * ld_dst, _mm512_shuffle_ps(b, e, 0x44));
    store(dst + (c + 3) * ld_dst, _mm512_shuffle_ps(b, e, 0xEE));
  }
}

#elif defined(__AVX2__)

using F = __m256;
using M = __m256;
constexpr int kLanes = 8, kRegisters = 16;

BRIM_VEC __m256i first(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
BRIM_VEC F zero() { return _mm256_setzero_ps(); }
BRIM_VEC F set1(float x) { return _mm256_set1_ps(x); }
BRIM_VEC F load(const float* p) { return _mm256_loadu_ps(p); }
BRIM_VEC F load(const float* p, int n) { return _mm256_maskload_ps(p, first(n)); }
BRIM_VEC void store(float* p, F x) { _mm256_storeu_ps(p, x); }
BRIM_VEC void store(float* p, F x, int n) { _mm256_maskstore_ps(p, first(n), x); }
BRIM_VEC F add(F a, F b) { return _mm256_add_ps(a, b); }
BRIM_VEC F sub(F a, F b) { return _mm256_sub_ps(a, b); }
BRIM_VEC F mul(F a, F b) { return _mm256_mul_ps(a, b); }
BRIM_VEC F div(F a, F b) { return _mm256_div_ps(a, b); }
BRIM_VEC F reciprocal(F a) { return _mm256_div_ps(_mm256_set1_ps(1.0f), a); }
BRIM_VEC F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
BRIM_VEC F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
BRIM_VEC F min(F a, F b) { return _mm256_min_ps(a, b); }
BRIM_VEC F max(F a, F b) { return _mm256_max_ps(a, b); }
BRIM_VEC F abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
BRIM_VEC F sqrt(F a) { return _mm256_sqrt_ps(a); }
BRIM_VEC F round(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
BRIM_VEC M less(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
BRIM_VEC F select(M m, F yes, F no) { return _mm256_blendv_ps(no, yes, m); }
BRIM_VEC M lanes_below(int n) { return _mm256_castsi256_ps(first(n)); }
BRIM_VEC F times_pow2(F x, F n) {
  return _mm256_mul_ps(
      x, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23)));
}
BRIM_VEC float reduce_add(F a) {
  const __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}
BRIM_VEC float reduce_max(F a) {
  const __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 pair = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
}
BRIM_VEC __m128i load_8_u16(const uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
BRIM_VEC F load_u16(const uint16_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(load_8_u16(p))); }
BRIM_VEC F load_bf16(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_8_u16(p)), 16));
}
BRIM_VEC F load_f16(const uint16_t* p) { return _mm256_cvtph_ps(load_8_u16(p)); }
BRIM_VEC void store_f16(uint16_t* p, F x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
BRIM_VEC void store_bf16(uint16_t* p, F x) {  // round to nearest even, NaN stays NaN
  const __m256i u = _mm256_castps_si256(x), top = _mm256_srli_epi32(u, 16);
  const __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))), 16);
  const __m256i quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
  const __m256i bits = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}
BRIM_VEC void transpose(const float* const* rows, float* dst, ptrdiff_t ld_dst) {
  for (int c = 0; c < 8; c += 4) {
    F q[4];  // q[i]: columns c..c+3 of rows i and i+4
    for (int i = 0; i < 4; ++i)
      q[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(rows[i] + c)), _mm_loadu_ps(rows[i + 4] + c), 1);
    const F a = _mm256_unpacklo_ps(q[0], q[1]), b = _mm256_unpackhi_ps(q[0], q[1]);
    const F d = _mm256_unpacklo_ps(q[2], q[3]), e = _mm256_unpackhi_ps(q[2], q[3]);
    store(dst + (c + 0) * ld_dst, _mm256_shuffle_ps(a, d, 0x44));
    store(dst + (c + 1) * ld_dst, _mm256_shuffle_ps(a, d, 0xEE));
    store(dst + (c + 2) * ld_dst, _mm256_shuffle_ps(b, e, 0x44));
    store(dst + (c + 3) * ld_dst, _mm256_shuffle_ps(b, e, 0xEE));
  }
}

#elif defined(__aarch64__) && !defined(BRIM_VEC_PLAIN)

using F = float32x4_t;
using M = uint32x4_t;
constexpr int kLanes = 4, kRegisters = 32;

BRIM_VEC F zero() { return vdupq_n_f32(0); }
BRIM_VEC F set1(float x) { return vdupq_n_f32(x); }
BRIM_VEC F load(const float* p) { return vld1q_f32(p); }
BRIM_VEC void store(float* p, F x) { vst1q_f32(p, x); }
BRIM_VEC F add(F a, F b) { return vaddq_f32(a, b); }
BRIM_VEC F sub(F a, F b) { return vsubq_f32(a, b); }
BRIM_VEC F mul(F a, F b) { return vmulq_f32(a, b); }
BRIM_VEC F div(F a, F b) { return vdivq_f32(a, b); }
BRIM_VEC F reciprocal(F a) {  // 8 bits and two Newton steps
  F r = vrecpeq_f32(a);
  r = vmulq_f32(r, vrecpsq_f32(a, r));
  return vmulq_f32(r, vrecpsq_f32(a, r));
}
BRIM_VEC F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
BRIM_VEC F fnma(F a, F b, F c) { return vfmsq_f32(c, a, b); }
BRIM_VEC F min(F a, F b) { return vminq_f32(a, b); }  // NaN from either side
BRIM_VEC F max(F a, F b) { return vmaxq_f32(a, b); }
BRIM_VEC F abs(F a) { return vabsq_f32(a); }
BRIM_VEC F sqrt(F a) { return vsqrtq_f32(a); }
BRIM_VEC F round(F a) { return vrndnq_f32(a); }
BRIM_VEC M less(F a, F b) { return vcltq_f32(a, b); }
BRIM_VEC F select(M m, F yes, F no) { return vbslq_f32(m, yes, no); }
BRIM_VEC M lanes_below(int n) { return vcltq_s32(int32x4_t{0, 1, 2, 3}, vdupq_n_s32(n)); }
BRIM_VEC F times_pow2(F x, F n) {
  return vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23)));
}
BRIM_VEC float reduce_add(F a) { return vaddvq_f32(a); }
BRIM_VEC float reduce_max(F a) { return vmaxvq_f32(a); }
BRIM_VEC F load_u16(const uint16_t* p) { return vcvtq_f32_u32(vmovl_u16(vld1_u16(p))); }
BRIM_VEC F load_bf16(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
BRIM_VEC F load_f16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
BRIM_VEC void store_f16(uint16_t* p, F x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
BRIM_VEC void store_bf16(uint16_t* p, F x) {  // round to nearest even, NaN stays NaN
  const uint32x4_t u = vreinterpretq_u32_f32(x), odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7FFF))),
                   quiet = vorrq_u32(u, vdupq_n_u32(0x400000));
  vst1_u16(p, vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16));
}
BRIM_VEC void transpose(const float* const* rows, float* dst, ptrdiff_t ld_dst) {
  const F r0 = load(rows[0]), r1 = load(rows[1]), r2 = load(rows[2]), r3 = load(rows[3]);
  const F a = vtrn1q_f32(r0, r1), b = vtrn2q_f32(r0, r1), c = vtrn1q_f32(r2, r3), d = vtrn2q_f32(r2, r3);
  const auto low = [](F x, F y) {
    return vreinterpretq_f32_f64(vtrn1q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
  };
  const auto high = [](F x, F y) {
    return vreinterpretq_f32_f64(vtrn2q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
  };
  store(dst, low(a, c));
  store(dst + ld_dst, low(b, d));
  store(dst + 2 * ld_dst, high(a, c));
  store(dst + 3 * ld_dst, high(b, d));
}

#else  // portable: four lanes of compiler vectors, any machine

typedef float F __attribute__((vector_size(16)));
typedef int32_t M __attribute__((vector_size(16)));
typedef uint32_t U __attribute__((vector_size(16)));
constexpr int kLanes = 4, kRegisters = 16;

BRIM_VEC F zero() { return F{0, 0, 0, 0}; }
BRIM_VEC F set1(float x) { return F{x, x, x, x}; }
BRIM_VEC F load(const float* p) {
  F x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
BRIM_VEC void store(float* p, F x) { __builtin_memcpy(p, &x, sizeof x); }
BRIM_VEC F add(F a, F b) { return a + b; }
BRIM_VEC F sub(F a, F b) { return a - b; }
BRIM_VEC F mul(F a, F b) { return a * b; }
BRIM_VEC F div(F a, F b) { return a / b; }
BRIM_VEC F reciprocal(F a) { return 1.0f / a; }
BRIM_VEC F fma(F a, F b, F c) { return a * b + c; }
BRIM_VEC F fnma(F a, F b, F c) { return c - a * b; }
BRIM_VEC M less(F a, F b) { return a < b; }
BRIM_VEC F select(M m, F yes, F no) { return m ? yes : no; }
BRIM_VEC M lanes_below(int n) { return M{0, 1, 2, 3} < M{n, n, n, n}; }
BRIM_VEC F min(F a, F b) { return a < b ? a : b; }
BRIM_VEC F max(F a, F b) { return a > b ? a : b; }
BRIM_VEC F abs(F a) { return reinterpret_cast<F>(reinterpret_cast<M>(a) & 0x7FFFFFFF); }
BRIM_VEC F sqrt(F a) {
  return F{__builtin_sqrtf(a[0]), __builtin_sqrtf(a[1]), __builtin_sqrtf(a[2]), __builtin_sqrtf(a[3])};
}
BRIM_VEC F round(F a) {  // |a| < 2^22, to even
  const F shift = set1(12582912.0f);
  return (a + shift) - shift;
}
BRIM_VEC F times_pow2(F x, F n) { return x * reinterpret_cast<F>((__builtin_convertvector(n, M) + 127) << 23); }
BRIM_VEC float reduce_add(F a) { return (a[0] + a[2]) + (a[1] + a[3]); }
BRIM_VEC float reduce_max(F a) {
  const float x = a[0] > a[2] ? a[0] : a[2], y = a[1] > a[3] ? a[1] : a[3];
  return x > y ? x : y;
}
BRIM_VEC F load_u16(const uint16_t* p) { return F{float(p[0]), float(p[1]), float(p[2]), float(p[3])}; }
BRIM_VEC F load_bf16(const uint16_t* p) { return reinterpret_cast<F>(U{p[0], p[1], p[2], p[3]} << 16); }
BRIM_VEC F load_f16(const uint16_t* p) {
  const U h = {p[0], p[1], p[2], p[3]}, magnitude = h & 0x7FFFu, sign = (h & 0x8000u) << 16;
  // After shifting, the exponent is 112 too small; one multiplication fixes normal and subnormal numbers alike.
  const F scaled = reinterpret_cast<F>(magnitude << 13) * set1(0x1p112f);
  const U bits = magnitude >= 0x7C00u ? (magnitude << 13) | 0x7F800000u : reinterpret_cast<U>(scaled);
  return reinterpret_cast<F>(bits | sign);
}
BRIM_VEC void store_bf16(uint16_t* p, F x) {
  const U u = reinterpret_cast<U>(x), rounded = u + ((u >> 16 & 1) + 0x7FFFu), quiet = u | 0x400000u;
  const U bits = (u & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded;
  for (int i = 0; i < 4; ++i) p[i] = static_cast<uint16_t>(bits[i] >> 16);
}
BRIM_VEC void store_f16(uint16_t* p, F x) {
  const U u = reinterpret_cast<U>(x), sign = u >> 16 & 0x8000u, m = u & 0x7FFFFFFFu;
  const U normal = (m + (0xFFFu + (m >> 13 & 1)) - 0x38000000u) >> 13;
  const U small =
      reinterpret_cast<U>(reinterpret_cast<F>(m) + set1(0.5f)) - 0x3F000000u;  // the addition rounds subnormals
  U bits = m < 0x38800000u ? small : normal;
  bits = m >= 0x477FF000u ? U{0x7C00, 0x7C00, 0x7C00, 0x7C00} : bits;
  bits = m > 0x7F800000u ? U{0x7E00, 0x7E00, 0x7E00, 0x7E00} : bits;
  for (int i = 0; i < 4; ++i) p[i] = static_cast<uint16_t>(bits[i] | sign[i]);
}
BRIM_VEC void transpose(const float* const* rows, float* dst, ptrdiff_t ld_dst) {
  for (int c = 0; c < 4; ++c) store(dst + c * ld_dst, F{rows[0][c], rows[1][c], rows[2][c], rows[3][c]});
}

#endif

#if !defined(__AVX512F__)
BRIM_VEC F load_bf16(const uint16_t* p, int n) {
  uint16_t lanes[kLanes] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load_bf16(lanes);
}
BRIM_VEC F load_f16(const uint16_t* p, int n) {
  uint16_t lanes[kLanes] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load_f16(lanes);
}
BRIM_VEC void store_bf16(uint16_t* p, F x, int n) {
  uint16_t lanes[kLanes];
  store_bf16(lanes, x);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}
BRIM_VEC void store_f16(uint16_t* p, F x, int n) {
  uint16_t lanes[kLanes];
  store_f16(lanes, x);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}
#endif
#if !defined(__AVX2__)
BRIM_VEC F load(const float* p, int n) {
  float lanes[kLanes] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
BRIM_VEC void store(float* p, F x, int n) {
  float lanes[kLanes];
  store(lanes, x);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}
#endif

// ---- Functions; coefficients from tools/fit_vector_math.py ----

// 2^x for x <= 0, relative error below 1.2e-7 for the given argument; 0 below -126, NaN for NaN.
BRIM_VEC F exp2_nonpositive(F x) {
  const F n = round(max(set1(-127.0f), x)), f = sub(x, n);
  F q = set1(0.00015353362f);
  q = fma(q, f, set1(0.0013398874f));
  q = fma(q, f, set1(0.009618437f));
  q = fma(q, f, set1(0.055503324f));
  q = fma(q, f, set1(0.24022648f));
  q = fma(q, f, set1(0.6931472f));
  return select(less(x, set1(-126.0f)), zero(), times_pow2(fma(q, f, set1(1.0f)), n));
}

// e^r for |r| <= ln(2) / 2.
BRIM_VEC F exp_reduced(F r) {
  F q = set1(0.001381461f);
  q = fma(q, r, set1(0.008368711f));
  q = fma(q, r, set1(0.04166839f));
  q = fma(q, r, set1(0.16666521f));
  q = fma(q, r, set1(0.49999994f));
  return add(fma(mul(r, r), q, r), set1(1.0f));
}

// e^x, relative error below 2e-7; 0 below -87.33 (no subnormal results), infinity above 88.72, NaN for NaN.
BRIM_VEC F exp(F x) {
  const F c = min(set1(89.0f), max(set1(-88.0f), x));
  const F n = round(mul(c, set1(1.44269504f)));
  F r = fnma(n, set1(0.693145752f), c);  // ln 2 in two parts: the first has few bits, so its product with n is exact
  r = fnma(n, set1(1.42860677e-6f), r);
  const F half = round(mul(n, set1(0.5f)));  // 2^n in two factors: n may be 128
  const F y = times_pow2(times_pow2(exp_reduced(r), half), sub(n, half));
  return select(less(x, set1(-87.33f)), zero(), y);
}

// e^x for x <= 0: as above with one factor.
BRIM_VEC F exp_nonpositive(F x) {
  const F n = round(mul(max(set1(-88.0f), x), set1(1.44269504f)));
  F r = fnma(n, set1(0.693145752f), x);
  r = fnma(n, set1(1.42860677e-6f), r);
  return select(less(x, set1(-87.33f)), zero(), times_pow2(exp_reduced(r), n));
}

// Standard normal distribution at t >= 0: density and upper tail, both relative to e^(-t²/2).
constexpr float kInvSqrt2Pi = 0.39894228f;
BRIM_VEC F normal_tail_ratio(F t) {
  const F u = reciprocal(fma(t, set1(1.0f / 3), set1(1.0f)));
  F q = set1(-0.008366355f);
  q = fma(q, u, set1(0.019828437f));
  q = fma(q, u, set1(0.036366533f));
  q = fma(q, u, set1(-0.15645513f));
  q = fma(q, u, set1(0.13151927f));
  q = fma(q, u, set1(-0.0108066145f));
  q = fma(q, u, set1(0.10670455f));
  q = fma(q, u, set1(0.11493364f));
  q = fma(q, u, set1(0.13330886f));
  q = fma(q, u, set1(0.13296682f));
  return mul(q, u);
}

// x Φ(x) = max(x, 0) - |x| (1 - Φ(|x|)): no cancellation, so the negative tail keeps its relative accuracy.
BRIM_VEC F gelu(F x) {
  const F t = min(set1(1e30f), abs(x));  // so that infinity times a tail of 0 stays 0
  const F tail = mul(normal_tail_ratio(t), exp_nonpositive(mul(mul(t, t), set1(-0.5f))));
  return fnma(t, tail, max(zero(), x));
}

// Φ(x) + x φ(x)
BRIM_VEC F gelu_slope(F x) {
  const F t = min(set1(1e30f), abs(x));
  const F e = exp_nonpositive(mul(mul(t, t), set1(-0.5f)));
  const F tail = mul(normal_tail_ratio(t), e), cdf = select(less(x, zero()), tail, sub(set1(1.0f), tail));
  return fma(mul(select(less(x, zero()), sub(zero(), t), t), set1(kInvSqrt2Pi)), e, cdf);
}

// Odd polynomial below 0.625 (the quotient would cancel there), (1 - e^-2t) / (1 + e^-2t) above.
BRIM_VEC F tanh(F x) {
  const F t = abs(x), s = mul(x, x);
  F p = set1(-0.005704987f);
  p = fma(p, s, set1(0.020639086f));
  p = fma(p, s, set1(-0.053739715f));
  p = fma(p, s, set1(0.13331442f));
  p = fma(p, s, set1(-0.3333328f));
  const F small = fma(mul(p, s), x, x);
  const F e = exp_nonpositive(mul(t, set1(-2.0f))), q = div(sub(set1(1.0f), e), add(set1(1.0f), e));
  const F large = select(less(x, zero()), sub(zero(), q), q);
  return select(less(t, set1(0.625f)), small, large);
}

// σ(z) and the terms of its slope, from e^-|z| <= 1: no overflow, and both tails keep their relative accuracy.
struct Sigmoid {
  F value, slope;
};
BRIM_VEC Sigmoid sigmoid_and_slope(F z) {
  const F e = exp_nonpositive(sub(zero(), abs(z))), r = div(set1(1.0f), add(set1(1.0f), e));
  return {mul(select(less(z, zero()), e, set1(1.0f)), r), mul(e, mul(r, r))};
}

// Activations x σ(z(x)): z, and x z'(x) for their slope σ + x z' σ'.
struct GeluTanh {
  BRIM_VEC static F z(F x) { return mul(x, fma(mul(x, x), set1(0.0713548163f), set1(1.5957691216f))); }
  BRIM_VEC static F x_slope(F x) {
    const F c = min(set1(1e6f), max(set1(-1e6f), x));  // so that infinity times a slope of 0 stays 0
    return mul(c, fma(mul(c, c), set1(3 * 0.0713548163f), set1(1.5957691216f)));
  }
};
struct QuickGelu {
  BRIM_VEC static F z(F x) { return mul(x, set1(1.702f)); }
  BRIM_VEC static F x_slope(F x) { return z(x); }
};
struct Silu {
  BRIM_VEC static F z(F x) { return x; }
  BRIM_VEC static F x_slope(F x) { return x; }
};
template <class Gate>
BRIM_VEC F gated(F x) {
  return mul(x, sigmoid_and_slope(Gate::z(x)).value);
}
template <class Gate>
BRIM_VEC F gated_slope(F x) {
  const Sigmoid s = sigmoid_and_slope(Gate::z(x));
  return fma(Gate::x_slope(x), s.slope, s.value);
}

BRIM_VEC F sigmoid(F x) { return div(set1(1.0f), add(set1(1.0f), exp(sub(zero(), x)))); }

// ---- Rows: whole vectors, then the remainder ----

struct Whole {};
struct Part {
  int n;
};

BRIM_VEC F load_at(const float* p, int64_t i, Whole) { return load(p + i); }
BRIM_VEC F load_at(const float* p, int64_t i, Part part) { return load(p + i, part.n); }
BRIM_VEC void store_at(float* p, int64_t i, F x, Whole) { store(p + i, x); }
BRIM_VEC void store_at(float* p, int64_t i, F x, Part part) { store(p + i, x, part.n); }
BRIM_VEC F load_bf16_at(const uint16_t* p, int64_t i, Whole) { return load_bf16(p + i); }
BRIM_VEC F load_bf16_at(const uint16_t* p, int64_t i, Part part) { return load_bf16(p + i, part.n); }
BRIM_VEC F load_f16_at(const uint16_t* p, int64_t i, Whole) { return load_f16(p + i); }
BRIM_VEC F load_f16_at(const uint16_t* p, int64_t i, Part part) { return load_f16(p + i, part.n); }
BRIM_VEC void store_bf16_at(uint16_t* p, int64_t i, F x, Whole) { store_bf16(p + i, x); }
BRIM_VEC void store_bf16_at(uint16_t* p, int64_t i, F x, Part part) { store_bf16(p + i, x, part.n); }
BRIM_VEC void store_f16_at(uint16_t* p, int64_t i, F x, Whole) { store_f16(p + i, x); }
BRIM_VEC void store_f16_at(uint16_t* p, int64_t i, F x, Part part) { store_f16(p + i, x, part.n); }
// Sets lanes past the row to zero, or to those of `other`.
BRIM_VEC F inside(F x, Whole) { return x; }
BRIM_VEC F inside(F x, Part part) { return select(lanes_below(part.n), x, zero()); }
BRIM_VEC F inside_or(F x, Whole, F) { return x; }
BRIM_VEC F inside_or(F x, Part part, F other) { return select(lanes_below(part.n), x, other); }

// Calls body(i, Whole or Part, k) for each vector of a row; k cycles through 0 .. 3, for sums kept in four vectors.
template <class Body>
BRIM_VEC void for_vectors(int64_t size, Body body) {
  int64_t i = 0;
  for (; i + 4 * kLanes <= size; i += 4 * kLanes) {
    body(i, Whole{}, 0);
    body(i + kLanes, Whole{}, 1);
    body(i + 2 * kLanes, Whole{}, 2);
    body(i + 3 * kLanes, Whole{}, 3);
  }
  for (; i + kLanes <= size; i += kLanes) body(i, Whole{}, 0);
  if (i < size) body(i, Part{static_cast<int>(size - i)}, 1);
}

// Four running sums, to break the dependency chain of additions.
struct Sums {
  F s[4];
  BRIM_VEC Sums() : s{zero(), zero(), zero(), zero()} {}
  BRIM_VEC float total() const { return reduce_add(add(add(s[0], s[1]), add(s[2], s[3]))); }
};

}  // namespace
}  // namespace brim::ops::BRIM_ISA
