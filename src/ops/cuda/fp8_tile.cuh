// SPDX-License-Identifier: Apache-2.0
// e4m3 copies written by row kernels next to their output (ops/fp8_copy.h): rows directly, columns through a tile of 32
// rows in shared memory, which is written in whole sectors of 32 bytes.
#pragma once
#include "ops/cuda/elem.cuh"
#include "ops/fp8_copy.h"

namespace brim::ops {

// Byte `j` of the words of four rows as one word.
__device__ __forceinline__ uint32_t bytes_of_rows(uint32_t a, uint32_t b, uint32_t c, uint32_t d, int j) {
  const uint32_t pick = static_cast<uint32_t>(j | (4 + j) << 4);
  return __byte_perm(__byte_perm(a, b, pick), __byte_perm(c, d, pick), 0x5410);
}

struct Fp8Out {
  uint8_t *rows, *columns;  // either may be null
  int64_t ld_rows, ld_columns;
  const float* scale;
  int* most_bits;  // may be null
  int padded;      // length of a column
};
inline Fp8Out fp8_out(const Fp8Copy& copy, int64_t T) {
  return {static_cast<uint8_t*>(copy.rows.data),
          static_cast<uint8_t*>(copy.columns.data),
          copy.rows.ld(),
          copy.columns.ld(),
          copy.scale.as<float>(),
          reinterpret_cast<int*>(copy.amax.as<float>()),
          static_cast<int>(fp8_columns(T))};
}
inline void check_fp8_out(const char* op, const Fp8Copy& copy) {
  for (const auto& [name, v] : NamedViews{{"rows", copy.rows}, {"columns", copy.columns}})
    BRIM_CHECK(!v || (reinterpret_cast<uintptr_t>(v.data) % 16 == 0 && v.ld() % 16 == 0),
               "{}: fp8 {} {} must have rows on 16-byte boundaries", op, name, v.shape_text());
}

constexpr int kFp8TileRows = 32;

// Rows of up to kWidest elements, filled and stored by a block of kThreads. The row stride is an odd number of words,
// so lanes that read the upper 16 rows use other banks than those of the lower ones.
template <int kWidest, int kThreads>
struct Fp8Tile {
  static constexpr int kStride = kWidest / 4 + 1;
  uint32_t words[kFp8TileRows * kStride];

  // Stores the codes of eight neighbours of row r.
  __device__ __forceinline__ void put(int r, int column, uint2 codes) {
    uint32_t* to = words + r * kStride + column / 4;
    to[0] = codes.x;
    to[1] = codes.y;
  }
  // Called by all threads after a barrier; `first` is the tile's first row, a multiple of 32.
  __device__ __forceinline__ void leave(const Fp8Out& out, int first, int H) const {
    for (int at = threadIdx.x; at < H / 2; at += kThreads) {
      const int quad = at / 2, half = at % 2, row = first + 16 * half;
      if (row >= out.padded) continue;
      uint32_t w[16];
#pragma unroll
      for (int r = 0; r < 16; ++r) w[r] = words[(16 * half + r) * kStride + quad];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        *reinterpret_cast<uint4*>(out.columns + (4 * quad + j) * out.ld_columns + row) =
            make_uint4(bytes_of_rows(w[0], w[1], w[2], w[3], j), bytes_of_rows(w[4], w[5], w[6], w[7], j),
                       bytes_of_rows(w[8], w[9], w[10], w[11], j), bytes_of_rows(w[12], w[13], w[14], w[15], j));
    }
  }
};

// Codes of eight values after rounding to Elem, equal to those of a separate pass over the stored tensor. Updates
// `most` with their largest magnitude.
template <class Elem>
__device__ __forceinline__ uint2 codes_of(const float (&f)[8], float scale, float& most) {
  float stored[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    stored[j] = to_f32(from_f32<Elem>(f[j]));
    most = stored[j] != stored[j] ? INFINITY : fmaxf(most, fabsf(stored[j]));
    stored[j] *= scale;
  }
  return pack8_fp8(stored);
}

// Merges a block's largest magnitude into that of the site.
template <int kThreads>
__device__ __forceinline__ void merge_most(const Fp8Out& out, float most) {
  if (out.most_bits == nullptr) return;
  __shared__ float tops[kThreads / 32];
  most = warp_max(most);
  if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = most;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kThreads / 32; ++i) most = fmaxf(most, tops[i]);
  atomicMax(out.most_bits, __float_as_int(most));
}

}  // namespace brim::ops
