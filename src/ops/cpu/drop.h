// SPDX-License-Identifier: Apache-2.0
// Dropout factors for a vector of neighbouring columns, using the hash of dropout.h (four columns each) several at a
// time.
#pragma once
#include "ops/cpu/row_kernels.h"
#include "ops/cpu/vec.h"
#include "ops/dropout.h"

namespace brim::ops::BRIM_ISA {
namespace {

// d.scale if element (d.first_row + row, i ..) is kept, else 0. i is a multiple of 4.
BRIM_VEC F drop_factors(const cpu::DropRows& d, uint64_t row, int64_t i) {
#if defined(__AVX512F__)
  // dropout_bits for quads i/4 .. i/4+3 in the four lanes; the product with the quad index is a constant per lane.
  constexpr uint64_t kQuad = 0xD1B54A32D192ED03ULL;
  const uint64_t site = static_cast<uint64_t>(d.site) << 32 | static_cast<uint32_t>(i / 4);
  const __m256i steps = _mm256_setr_epi64x(0, static_cast<int64_t>(kQuad), static_cast<int64_t>(2 * kQuad),
                                           static_cast<int64_t>(3 * kQuad));
  __m256i x = _mm256_add_epi64(_mm256_set1_epi64x(static_cast<int64_t>(site * kQuad)), steps);
  x = _mm256_xor_si256(x,
                       _mm256_set1_epi64x(static_cast<int64_t>(d.seed ^ (d.first_row + row) * 0x9E3779B97F4A7C15ULL)));
  x = _mm256_xor_si256(x, _mm256_srli_epi64(x, 32));
  x = _mm256_mullo_epi64(x, _mm256_set1_epi64x(static_cast<int64_t>(0xBF58476D1CE4E5B9ULL)));
  x = _mm256_xor_si256(x, _mm256_srli_epi64(x, 29));
  x = _mm256_mullo_epi64(x, _mm256_set1_epi64x(static_cast<int64_t>(0x94D049BB133111EBULL)));
  x = _mm256_xor_si256(x, _mm256_srli_epi64(x, 32));
  const __mmask16 kept =
      _mm512_cmpge_epu32_mask(_mm512_cvtepu16_epi32(x), _mm512_set1_epi32(static_cast<int32_t>(d.threshold)));
  return _mm512_maskz_mov_ps(kept, _mm512_set1_ps(d.scale));
#else
  uint16_t bits[kLanes];
  for (int quad = 0; quad < kLanes / 4; ++quad) {
    const uint64_t four = dropout_bits(d.seed, d.site, d.first_row + row, static_cast<uint32_t>(i / 4 + quad));
    __builtin_memcpy(bits + quad * 4, &four, sizeof four);
  }
  return select(less(load_u16(bits), set1(static_cast<float>(d.threshold))), zero(), set1(d.scale));
#endif
}

}  // namespace
}  // namespace brim::ops::BRIM_ISA
