// SPDX-License-Identifier: Apache-2.0
// Runs CUDA kernels on the CPU, lane by lane, to test their indexing and barriers on machines without a GPU. Every
// thread of a block is a fiber that runs until the next collective (shuffle, mma, barrier); a collective that some lane
// never reaches aborts with a message, as it would hang a GPU. Blocks run sequentially, odd ones with their threads in
// reverse order, so that a missing barrier shows as a wrong result. Slow and single-threaded on purpose. Included by
// launch.cuh instead of the compiler's builtins if BRIM_CUDA_EMULATION is defined.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

namespace brim::device::emulation {

struct Lane {
  uint3 thread;
  int warp, lane;
};
extern Lane* current;
extern uint3 block_index;
extern dim3 block_size, grid_size;

void run(dim3 grid, dim3 block, const std::function<void()>& body);

// One slot per lane. A collective stores its operand, waits for the other 31 lanes, and reads the result computed by
// the last one to arrive.
struct WarpSlots {
  static constexpr int kBytes = 128;
  alignas(16) unsigned char in[32][kBytes];
  alignas(16) unsigned char out[32][kBytes];
};
// Blocks until all lanes of the warp arrive with the same `tag`; the last one runs `compute` first.
void meet_warp(const void* tag, const std::function<void(WarpSlots&)>& compute);
WarpSlots& warp_slots();
void meet_block(const void* tag);

template <class Out, class In, class Compute>  // compute(const In in[32], Out out[32])
Out collective(const In& in, Compute&& compute) {
  static const char tag = 0;
  static_assert(sizeof(In) <= WarpSlots::kBytes && sizeof(Out) <= WarpSlots::kBytes);
  const int lane = current->lane;
  std::memcpy(warp_slots().in[lane], &in, sizeof in);
  meet_warp(&tag, [&](WarpSlots& slots) {
    In all_in[32];
    Out all_out[32];
    for (int i = 0; i < 32; ++i) std::memcpy(&all_in[i], slots.in[i], sizeof(In));
    compute(all_in, all_out);
    for (int i = 0; i < 32; ++i) std::memcpy(slots.out[i], &all_out[i], sizeof(Out));
  });
  Out out;
  std::memcpy(&out, warp_slots().out[lane], sizeof out);
  return out;
}

template <class T, class Source>
T shuffle(T value, Source&& source) {
  return collective<T>(value, [&](const T* in, T* out) {
    for (int i = 0; i < 32; ++i) out[i] = in[source(i) & 31];
  });
}

}  // namespace brim::device::emulation

#undef __shared__
#define __shared__ static
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __forceinline__
#define __forceinline__ inline
#define threadIdx (::brim::device::emulation::current->thread)
#define blockIdx (::brim::device::emulation::block_index)
#define blockDim (::brim::device::emulation::block_size)
#define gridDim (::brim::device::emulation::grid_size)

// Builtins used by our kernels, full warps only.
inline void brim_emulated_mask(unsigned mask) {
  if (mask != ~0u) std::abort();
}
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int with) {
  brim_emulated_mask(mask);
  return brim::device::emulation::shuffle(v, [with](int i) { return i ^ with; });
}
template <class T>
T __shfl_down_sync(unsigned mask, T v, int by) {
  brim_emulated_mask(mask);
  return brim::device::emulation::shuffle(v, [by](int i) { return i + by < 32 ? i + by : i; });
}
template <class T>
T __shfl_sync(unsigned mask, T v, int from) {  // `from` may differ between lanes
  brim_emulated_mask(mask);
  struct In {
    T v;
    int from;
  };
  return brim::device::emulation::collective<T>(In{v, from}, [](const In* in, T* out) {
    for (int i = 0; i < 32; ++i) out[i] = in[in[i].from & 31].v;
  });
}
inline int __any_sync(unsigned mask, int v) {
  brim_emulated_mask(mask);
  return brim::device::emulation::collective<int>(v, [](const int* in, int* out) {
    int any = 0;
    for (int i = 0; i < 32; ++i) any |= in[i] != 0;
    for (int i = 0; i < 32; ++i) out[i] = any;
  });
}
inline void __syncthreads() {
  static const char tag = 0;
  brim::device::emulation::meet_block(&tag);
}
inline void __syncwarp() {
  static const char tag = 0;
  brim::device::emulation::meet_warp(&tag, [](brim::device::emulation::WarpSlots&) {});
}
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
  uint32_t r = 0;
  for (int i = 0; i < 4; ++i) r |= static_cast<uint32_t>(both >> (8 * (selector >> (4 * i) & 7)) & 0xFF) << (8 * i);
  return r;
}
inline float __uint_as_float(uint32_t u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
inline uint32_t __float_as_uint(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  return u;
}
inline int __float_as_int(float f) { return static_cast<int>(__float_as_uint(f)); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
T __ldg(const T* p) {
  return *p;
}
inline int atomicMax(int* p, int v) {
  const int old = *p;
  *p = std::max(old, v);
  return old;
}
inline int atomicMin(int* p, int v) {
  const int old = *p;
  *p = std::min(old, v);
  return old;
}
template <class T>
T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
T max(T a, T b) {
  return a < b ? b : a;
}
