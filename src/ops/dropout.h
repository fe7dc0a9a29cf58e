// SPDX-License-Identifier: Apache-2.0
// Dropout from a counter-based generator: whether element (row, column) of a site is kept is a pure function of (seed,
// site, row, column), so the backward pass and recomputation reproduce it on any device and with any threads.
#pragma once
#include <cstdint>

namespace brim::ops {

struct Dropout {
  float probability = 0;  // 0: off
  uint64_t seed = 0;      // run seed mixed with the optimizer step and micro-batch
  uint32_t site = 0;      // layer * 8 + index
  int64_t first_row = 0;  // row number of the view's first row, so that chunks match the whole

  bool on() const { return probability > 0; }
  float scale() const { return 1.0f / (1.0f - probability); }
};

#if defined(__CUDACC__)
#define BRIM_HOST_DEVICE __host__ __device__
#else
#define BRIM_HOST_DEVICE
#endif

// One hash gives the bits of four neighbouring columns, 16 each. The parts that depend on the row and on the columns
// are separate functions: a kernel computes the first once per row and advances by quad by adding kDropoutQuad.
// Internal linkage, because files of different instruction sets include this.
constexpr uint64_t kDropoutQuad = 0xD1B54A32D192ED03ULL;
BRIM_HOST_DEVICE static inline uint64_t dropout_row(uint64_t seed, uint64_t row) {
  return seed ^ (row * 0x9E3779B97F4A7C15ULL);
}
BRIM_HOST_DEVICE static inline uint64_t dropout_columns(uint32_t site, uint32_t column_quad) {
  return (static_cast<uint64_t>(site) << 32 | column_quad) * kDropoutQuad;
}
BRIM_HOST_DEVICE static inline uint64_t dropout_mix(uint64_t row, uint64_t columns) {
  uint64_t x = row ^ columns;
  x ^= x >> 32;
  x *= 0xBF58476D1CE4E5B9ULL;
  x ^= x >> 29;
  x *= 0x94D049BB133111EBULL;
  x ^= x >> 32;
  return x;  // 16 bits for each of columns 4q .. 4q+3, lowest first
}
BRIM_HOST_DEVICE static inline uint64_t dropout_bits(uint64_t seed, uint32_t site, uint64_t row, uint32_t column_quad) {
  return dropout_mix(dropout_row(seed, row), dropout_columns(site, column_quad));
}
BRIM_HOST_DEVICE static inline uint32_t dropout_threshold(float probability) {
  return static_cast<uint32_t>(probability * 65536.0f + 0.5f);
}
BRIM_HOST_DEVICE static inline bool dropout_keeps(uint64_t bits, int column, uint32_t threshold) {
  return (bits >> (16 * (column & 3)) & 0xFFFF) >= threshold;
}

}  // namespace brim::ops
