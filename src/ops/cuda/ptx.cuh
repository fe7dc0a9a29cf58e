// SPDX-License-Identifier: Apache-2.0
// PTX instructions used by the kernels, with fallbacks for Turing if it lacks them and plain code for the emulator.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "device/cuda/launch.cuh"

namespace brim::ops {

#if defined(BRIM_CUDA_EMULATION)

using SharedAddress = char*;
inline SharedAddress shared_address(void* p) { return static_cast<char*>(p); }
inline SharedAddress flip_bits(SharedAddress at, int bits) {
  return reinterpret_cast<SharedAddress>(reinterpret_cast<uintptr_t>(at) ^ static_cast<uintptr_t>(bits));
}
inline uint4 load_shared16(SharedAddress at) {
  uint4 r;
  std::memcpy(&r, at, 16);
  return r;
}
inline uint2 load_shared8(SharedAddress at) {
  uint2 r;
  std::memcpy(&r, at, 8);
  return r;
}
inline void store_shared16(SharedAddress at, uint4 v) { std::memcpy(at, &v, 16); }
inline void store_shared4(SharedAddress at, uint32_t v) { std::memcpy(at, &v, 4); }
inline void copy_async16(SharedAddress to, const void* from) { std::memcpy(to, from, 16); }
inline void copy_async_commit() {}
template <int kPending>
void copy_async_wait() {}
inline float exp2_fast(float x) { return std::exp2(x); }
inline float reciprocal_fast(float x) { return 1.0f / x; }
inline void store_global16(void* to, uint4 v) { std::memcpy(to, &v, 16); }
inline uint4 load_weights16(const void* from) {
  uint4 r;
  std::memcpy(&r, from, 16);
  return r;
}
inline void prefetch_weights(const void*) {}
inline void let_next_begin() {}
inline void wait_for_previous() {}

// ldmatrix as documented: four 8x8 matrices, lane 8m + i gives the address of row i of matrix m.
template <bool kTransposed>
void load_matrices(uint32_t (&r)[4], SharedAddress at) {
  struct Out {
    uint32_t r[4];
  };
  const Out out = device::emulation::collective<Out>(at, [](const SharedAddress* rows, Out* all) {
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane >> 2, t = lane & 3;
      for (int m = 0; m < 4; ++m)
        for (int h = 0; h < 2; ++h) {
          const SharedAddress from = kTransposed ? rows[8 * m + 2 * t + h] + 2 * g : rows[8 * m + g] + 4 * t + 2 * h;
          std::memcpy(reinterpret_cast<char*>(&all[lane].r[m]) + 2 * h, from, 2);
        }
    }
  });
  std::memcpy(r, out.r, sizeof r);
}

// The documented fragment layout of m16n8k16, elements widened to float.
template <class Elem>
void mma_16816(float* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
  struct In {
    float c[4];
    uint32_t a[4], b[2];
  };
  struct Out {
    float c[4];
  };
  const auto pick = [](uint32_t word, int which) {
    const auto bits = static_cast<uint16_t>(word >> (16 * which));
    Elem e;
    std::memcpy(static_cast<void*>(&e), &bits, 2);
    return static_cast<float>(e);
  };
  const Out r = device::emulation::collective<Out>(
      In{{c[0], c[1], c[2], c[3]}, {a[0], a[1], a[2], a[3]}, {b0, b1}}, [&](const In* in, Out* out) {
        float A[16][16], B[16][8];
        for (int lane = 0; lane < 32; ++lane) {
          const int g = lane >> 2, t = lane & 3;
          for (int i = 0; i < 4; ++i)
            for (int h = 0; h < 2; ++h) A[g + 8 * (i & 1)][2 * t + h + 8 * (i >> 1)] = pick(in[lane].a[i], h);
          for (int i = 0; i < 2; ++i)
            for (int h = 0; h < 2; ++h) B[2 * t + h + 8 * i][g] = pick(in[lane].b[i], h);
        }
        for (int lane = 0; lane < 32; ++lane) {
          const int g = lane >> 2, t = lane & 3;
          for (int i = 0; i < 4; ++i) {
            float sum = in[lane].c[i];
            for (int k = 0; k < 16; ++k) sum += A[g + 8 * (i >> 1)][k] * B[k][2 * t + (i & 1)];
            out[lane].c[i] = sum;
          }
        }
      });
  for (int i = 0; i < 4; ++i) c[i] = r.c[i];
}

#else

using SharedAddress = uint32_t;
__device__ __forceinline__ SharedAddress shared_address(void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ SharedAddress flip_bits(SharedAddress at, int bits) {
  return at ^ static_cast<uint32_t>(bits);
}
// Volatile, so that loop-invariant fragments are not hoisted and held in registers.
__device__ __forceinline__ uint4 load_shared16(SharedAddress at) {
  uint4 r;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "r"(at)
               : "memory");
  return r;
}
__device__ __forceinline__ uint2 load_shared8(SharedAddress at) {
  uint2 r;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(r.x), "=r"(r.y) : "r"(at) : "memory");
  return r;
}
__device__ __forceinline__ void store_shared16(SharedAddress at, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ void store_shared4(SharedAddress at, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}
// Written in assembly, because the compiler splits an assignment into four stores if it sees no load from the same
// address, and each sector is then written in four parts.
__device__ __forceinline__ void store_global16(void* to, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}
// For data that no kernel writes while this one runs; volatile, so that the load is issued before wait_for_previous.
__device__ __forceinline__ uint4 load_weights16(const void* from) {
  uint4 r;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "l"(__cvta_generic_to_global(from)));
  return r;
}
__device__ __forceinline__ void prefetch_weights(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(at)));
}
// For kernels launched by launch_chained (device/cuda/launch.cuh). The next kernel may start once every block has
// called let_next_begin or ended; wait_for_previous returns when the previous kernel has ended and its writes are
// visible.
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Four 8x8 matrices of 16-bit elements; lane 8m + i gives the address of row i of matrix m.
template <bool kTransposed>
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], SharedAddress at) {
  if constexpr (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
__device__ __forceinline__ void copy_async16(SharedAddress to, const void* from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(__cvta_generic_to_global(from)) : "memory");
#else
  store_shared16(to, *static_cast<const uint4*>(from));
#endif
}
__device__ __forceinline__ void copy_async_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kPending>  // waits until at most this many groups are in flight
__device__ __forceinline__ void copy_async_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Approximate division, for x neither tiny nor huge, in one instruction.
__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// c[16x8] += a[16x16] b[16x8]. Turing has half the depth: two steps. bf16 requires sm_80, which the launchers check.
template <class Elem>
__device__ __forceinline__ void mma_16816(float* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
  static_assert(std::is_same_v<Elem, __half> || std::is_same_v<Elem, __nv_bfloat16>);
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<Elem, __half>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#elif __CUDA_ARCH__ >= 750
  if constexpr (std::is_same_v<Elem, __half>) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[2]), "r"(a[3]), "r"(b1));
  } else {
    __trap();
  }
#endif
}

#endif

}  // namespace brim::ops
