// SPDX-License-Identifier: Apache-2.0
// int8 on the device: products on tensor cores, codes of values, and copies to shared memory that end within a row.
#pragma once
#include "ops/cuda/elem.cuh"

namespace brim::ops {

#if defined(BRIM_CUDA_EMULATION)

inline float __int_as_float(int i) { return __uint_as_float(static_cast<uint32_t>(i)); }
inline float __int2float_rn(int i) { return static_cast<float>(i); }
inline void copy_async16_part(SharedAddress to, const void* from, int bytes) {
  std::memset(to, 0, 16);
  std::memcpy(to, from, static_cast<size_t>(bytes));
}
inline void copy_async4(SharedAddress to, const void* from) { std::memcpy(to, from, 4); }

// m16n8k32 of signed bytes: fragments have the layout of m16n8k16 with two bytes in place of each 16-bit element.
inline void mma_16832(int* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
  struct In {
    int c[4];
    uint32_t a[4], b[2];
  };
  struct Out {
    int c[4];
  };
  const auto pick = [](uint32_t word, int which) { return static_cast<int>(static_cast<int8_t>(word >> (8 * which))); };
  const Out r = device::emulation::collective<Out>(
      In{{c[0], c[1], c[2], c[3]}, {a[0], a[1], a[2], a[3]}, {b0, b1}}, [&](const In* in, Out* out) {
        int A[16][32], B[32][8];
        for (int lane = 0; lane < 32; ++lane) {
          const int g = lane >> 2, t = lane & 3;
          for (int i = 0; i < 4; ++i)
            for (int h = 0; h < 4; ++h) A[g + 8 * (i & 1)][4 * t + h + 16 * (i >> 1)] = pick(in[lane].a[i], h);
          for (int i = 0; i < 2; ++i)
            for (int h = 0; h < 4; ++h) B[4 * t + h + 16 * i][g] = pick(in[lane].b[i], h);
        }
        for (int lane = 0; lane < 32; ++lane) {
          const int g = lane >> 2, t = lane & 3;
          for (int i = 0; i < 4; ++i) {
            int sum = in[lane].c[i];
            for (int k = 0; k < 32; ++k) sum += A[g + 8 * (i >> 1)][k] * B[k][2 * t + (i & 1)];
            out[lane].c[i] = sum;
          }
        }
      });
  for (int i = 0; i < 4; ++i) c[i] = r.c[i];
}

#else

// Copies `bytes` (0 to 16; 0 or 16 on Turing) and fills the rest with zeros.
__device__ __forceinline__ void copy_async16_part(SharedAddress to, const void* from, int bytes) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
               "r"(bytes)
               : "memory");
#else
  store_shared16(to, bytes > 0 ? *static_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0));
#endif
}
__device__ __forceinline__ void copy_async4(SharedAddress to, const void* from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(__cvta_generic_to_global(from)) : "memory");
#else
  store_shared4(to, *static_cast<const uint32_t*>(from));
#endif
}

// c[16x8] += a[16x32] b[32x8] of signed bytes. Turing has a quarter of the size: four steps.
__device__ __forceinline__ void mma_16832(int* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#elif __CUDA_ARCH__ >= 750
#pragma unroll
  for (int i = 0; i < 4; ++i)
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
        : "+r"(c[2 * (i & 1)]), "+r"(c[2 * (i & 1) + 1])
        : "r"(a[i]), "r"(i < 2 ? b0 : b1));
#endif
}

#endif

// Codes of values times `inverse`, rounded to nearest even: the low bytes after adding 1.5 · 2²³. With a magnitude of
// `most` for code 127, the scale is most * kInt8Step; it is NaN or infinite if a value is, and the codes of such a row
// do not matter. Rows below 1e-30 become zeros.
constexpr float kInt8Step = 1.0f / 127.0f;
__device__ __forceinline__ float inverse_step(float most) { return most > 1e-30f ? 127.0f / most : 0.0f; }
__device__ __forceinline__ uint32_t pack4_int8(float a, float b, float c, float d, float inverse) {
  const auto code = [inverse](float v) { return __float_as_uint(fmaf(v, inverse, 12582912.0f)); };
  return __byte_perm(__byte_perm(code(a), code(b), 0x0040), __byte_perm(code(c), code(d), 0x0040), 0x5410);
}
__device__ __forceinline__ uint2 pack8_int8(const float (&f)[8], float inverse) {
  return make_uint2(pack4_int8(f[0], f[1], f[2], f[3], inverse), pack4_int8(f[4], f[5], f[6], f[7], inverse));
}

// Magnitudes are compared as bits, which keeps NaN.
__device__ __forceinline__ uint32_t magnitude_bits(float v) { return __float_as_uint(v) & 0x7FFFFFFFu; }
__device__ __forceinline__ uint32_t warp_max_bits(uint32_t v) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v = max(v, __shfl_xor_sync(~0u, v, o));
  return v;
}

}  // namespace brim::ops
