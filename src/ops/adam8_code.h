// SPDX-License-Identifier: Apache-2.0
// How 8-bit AdamW keeps its moments: one byte each and one scale for 256 neighbours. A byte is a small float whose largest
// value stands for the largest of the block: the first moment as sign, 4 bits of exponent, 3 of fraction; the second as the
// root of it, 4 bits of exponent and 4 of fraction. A root that is not zero never becomes zero, or the update would divide
// by almost nothing. The same code runs on the CPU and on CUDA, so checkpoints move between them.
#pragma once
#include <stdint.h>

#include "ops/dropout.h"  // BRIM_HOST_DEVICE

namespace brim {

static constexpr int64_t kAdam8Block = 256;

// Nearest code to x >= 0 with `bits` of fraction: value (1 + f / 2^bits) 2^(e - 15) for e > 0, f / 2^bits 2^-14 for e = 0.
BRIM_HOST_DEVICE static inline uint32_t adam8_encode(float x, int bits) {
  union { float f; uint32_t u; } value;
  const float least = 6.103515625e-05f;  // 2^-14
  if (!(x >= least)) {                   // evenly spaced; also what is not a number
    const float scaled = x * (16384.0f * static_cast<float>(1 << bits));
    return scaled > 0 ? static_cast<uint32_t>(scaled + 0.5f) : 0u;
  }
  value.f = x;
  const uint32_t half = 1u << (22 - bits);
  const uint32_t code = (value.u - (112u << 23) + half) >> (23 - bits), last = (16u << bits) - 1;
  return code < last ? code : last;
}
BRIM_HOST_DEVICE static inline float adam8_decode(uint32_t code, int bits) {
  union { float f; uint32_t u; } value;
  const uint32_t exponent = code >> bits, fraction = code & ((1u << bits) - 1);
  if (exponent == 0) return static_cast<float>(fraction) * (6.103515625e-05f / static_cast<float>(1 << bits));
  value.u = (exponent + 112) << 23 | fraction << (23 - bits);
  return value.f;
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

// The scale of a block from its largest magnitude.
BRIM_HOST_DEVICE static inline float adam8_m_scale(float largest) { return largest / 1.875f; }
BRIM_HOST_DEVICE static inline float adam8_root_scale(float largest) { return largest / 1.9375f; }

}  // namespace brim
