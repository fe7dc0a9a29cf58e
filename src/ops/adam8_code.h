// SPDX-License-Identifier: Apache-2.0
// Encoding of the moments of 8-bit AdamW: one byte each and one scale per 256 neighbours. A byte is a small float whose
// largest value represents the maximum of the block: the first moment has a sign, 4 exponent and 3 fraction bits; the
// second moment is stored as its square root with 4 exponent and 4 fraction bits. A non-zero root never rounds to zero,
// or the update would divide by almost zero. CPU and CUDA share this code, so checkpoints are portable between them.
#pragma once
#include <stdint.h>

#include "ops/dropout.h"  // BRIM_HOST_DEVICE

namespace brim::ops {

static constexpr int64_t kAdam8Block = 256;

// Nearest code to x >= 0 with `bits` of fraction: value (1 + f / 2^bits) 2^(e - 15) for e > 0, f / 2^bits 2^-14 for e =
// 0. Branchless, so that compilers vectorise it; NaN becomes 0.
BRIM_HOST_DEVICE static inline uint32_t adam8_encode(float x, int bits) {
  union {
    float f;
    uint32_t u;
  } value;
  value.f = x > 0 ? x : 0.0f;
  const float capped = value.f < 2.0f ? value.f : 2.0f;
  const int32_t even = static_cast<int32_t>(capped * (16384.0f * static_cast<float>(1 << bits)) + 0.5f);
  const int32_t shifted = static_cast<int32_t>((value.u - (112u << 23) + (1u << (22 - bits))) >> (23 - bits));
  const int32_t last = (16 << bits) - 1, code = value.f < 6.103515625e-05f ? even : shifted;  // 2^-14
  return static_cast<uint32_t>(code < last ? code : last);
}
BRIM_HOST_DEVICE static inline float adam8_decode(uint32_t code, int bits) {
  union {
    float f;
    uint32_t u;
  } value;
  const uint32_t exponent = code >> bits, fraction = code & ((1u << bits) - 1), lowest = exponent == 0 ? 1u : 0u;
  value.u = (exponent + lowest + 112) << 23 | fraction << (23 - bits);
  return value.f -
         static_cast<float>(static_cast<int32_t>(lowest)) * 6.103515625e-05f;  // linear spacing there: no hidden 1
}

BRIM_HOST_DEVICE static inline uint8_t adam8_encode_m(float x) {
  return static_cast<uint8_t>(adam8_encode(x < 0 ? -x : x, 3) | (x < 0 ? 0x80u : 0u));
}
BRIM_HOST_DEVICE static inline float adam8_decode_m(uint8_t code) {
  const float x = adam8_decode(code & 0x7Fu, 3);
  return (code & 0x80u) != 0 ? -x : x;
}
BRIM_HOST_DEVICE static inline uint8_t adam8_encode_root(float x) {
  const uint32_t code = adam8_encode(x, 4);
  return static_cast<uint8_t>(code == 0 && x > 0 ? 1u : code);
}
BRIM_HOST_DEVICE static inline float adam8_decode_root(uint8_t code) { return adam8_decode(code, 4); }

// Scale of a block from its largest magnitude.
BRIM_HOST_DEVICE static inline float adam8_m_scale(float largest) { return largest / 1.875f; }
BRIM_HOST_DEVICE static inline float adam8_root_scale(float largest) { return largest / 1.9375f; }

}  // namespace brim::ops
