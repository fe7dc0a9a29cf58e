// SPDX-License-Identifier: Apache-2.0
// Helpers for CPU op benchmarks: medians over interleaved repeats, the machine's fp32 and copy roofs, a cache flush.
#pragma once
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/clock.h"
#include "device/cpu/isa.h"

namespace brim::ops::bench {

struct Timing {
  double median = 0, low = 0, high = 0;  // seconds; low and high are the 10th and 90th percentile
};

// CPU time of the calling thread, which excludes time taken by other processes on a shared machine.
inline int64_t thread_ns() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * 1'000'000'000 + t.tv_nsec;
}
inline bool& wall_clock() {  // set by benchmarks that run on a pool
  static bool wall = false;
  return wall;
}

// Calls fn repeatedly for about `seconds`, at least 7 times, after one warm-up call; `between` runs untimed before each
// call.
template <class Fn, class Between>
Timing measure(Fn&& fn, Between&& between, double seconds = 0.4) {
  std::vector<double> times;
  fn();
  for (const int64_t begin = now_ns(); times.size() < 7 || static_cast<double>(now_ns() - begin) < seconds * 1e9;) {
    between();
    const auto clock = wall_clock() ? now_ns : thread_ns;
    const int64_t t0 = clock();
    fn();
    times.push_back(static_cast<double>(clock() - t0) * 1e-9);
    if (times.size() > 5000) break;
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[times.size() / 10], times[times.size() * 9 / 10]};
}
template <class Fn>
Timing measure(Fn&& fn) {
  return measure(fn, [] {});
}

// Register-resident fp32 multiply-adds of one thread in flop/s, an upper bound for all kernels.
inline double fp32_peak(device::Isa isa) {
  constexpr int64_t kLoops = 2'000'000;
  double flops_per_loop = 0;
  const auto run = [&] {
#if defined(__x86_64__)
    if (isa == device::Isa::avx512_vnni || isa == device::Isa::avx512 || isa == device::Isa::amx) {
      flops_per_loop = 12 * 32;
      for (int64_t i = 0; i < kLoops; ++i)
        asm volatile(
            "vfmadd231ps %%zmm30,%%zmm31,%%zmm0\nvfmadd231ps %%zmm30,%%zmm31,%%zmm1\nvfmadd231ps "
            "%%zmm30,%%zmm31,%%zmm2\n"
            "vfmadd231ps %%zmm30,%%zmm31,%%zmm3\nvfmadd231ps %%zmm30,%%zmm31,%%zmm4\nvfmadd231ps "
            "%%zmm30,%%zmm31,%%zmm5\n"
            "vfmadd231ps %%zmm30,%%zmm31,%%zmm6\nvfmadd231ps %%zmm30,%%zmm31,%%zmm7\nvfmadd231ps "
            "%%zmm30,%%zmm31,%%zmm8\n"
            "vfmadd231ps %%zmm30,%%zmm31,%%zmm9\nvfmadd231ps %%zmm30,%%zmm31,%%zmm10\nvfmadd231ps "
            "%%zmm30,%%zmm31,%%zmm11\n" ::
                : "memory");
      asm volatile("vzeroupper");
    } else if (isa == device::Isa::avx2) {
      flops_per_loop = 12 * 16;
      for (int64_t i = 0; i < kLoops; ++i)
        asm volatile(
            "vfmadd231ps %%ymm14,%%ymm15,%%ymm0\nvfmadd231ps %%ymm14,%%ymm15,%%ymm1\nvfmadd231ps "
            "%%ymm14,%%ymm15,%%ymm2\n"
            "vfmadd231ps %%ymm14,%%ymm15,%%ymm3\nvfmadd231ps %%ymm14,%%ymm15,%%ymm4\nvfmadd231ps "
            "%%ymm14,%%ymm15,%%ymm5\n"
            "vfmadd231ps %%ymm14,%%ymm15,%%ymm6\nvfmadd231ps %%ymm14,%%ymm15,%%ymm7\nvfmadd231ps "
            "%%ymm14,%%ymm15,%%ymm8\n"
            "vfmadd231ps %%ymm14,%%ymm15,%%ymm9\nvfmadd231ps %%ymm14,%%ymm15,%%ymm10\nvfmadd231ps "
            "%%ymm14,%%ymm15,%%ymm11\n" ::
                : "memory");
      asm volatile("vzeroupper");
    } else {
      flops_per_loop = 12 * 4;
      for (int64_t i = 0; i < kLoops; ++i)  // multiply and add, since plain SSE has no FMA
        asm volatile(
            "mulps %%xmm14,%%xmm0\naddps %%xmm15,%%xmm1\nmulps %%xmm14,%%xmm2\naddps %%xmm15,%%xmm3\nmulps "
            "%%xmm14,%%xmm4\n"
            "addps %%xmm15,%%xmm5\nmulps %%xmm14,%%xmm6\naddps %%xmm15,%%xmm7\nmulps %%xmm14,%%xmm8\naddps "
            "%%xmm15,%%xmm9\n"
            "mulps %%xmm14,%%xmm10\naddps %%xmm15,%%xmm11\n" ::
                : "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
                  "xmm11");
    }
#elif defined(__aarch64__)
    (void)isa;
    flops_per_loop = 12 * 8;
    for (int64_t i = 0; i < kLoops; ++i)
      asm volatile(
          "fmla v0.4s,v16.4s,v17.4s\nfmla v1.4s,v16.4s,v17.4s\nfmla v2.4s,v16.4s,v17.4s\nfmla v3.4s,v16.4s,v17.4s\n"
          "fmla v4.4s,v16.4s,v17.4s\nfmla v5.4s,v16.4s,v17.4s\nfmla v6.4s,v16.4s,v17.4s\nfmla v7.4s,v16.4s,v17.4s\n"
          "fmla v18.4s,v16.4s,v17.4s\nfmla v19.4s,v16.4s,v17.4s\nfmla v20.4s,v16.4s,v17.4s\nfmla "
          "v21.4s,v16.4s,v17.4s\n" ::
              : "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v18", "v19", "v20", "v21");
#endif
  };
  const Timing t = measure(run);
  return flops_per_loop * kLoops / t.median;
}

// Reads more memory than the last-level cache of a server holds.
inline void flush_caches() {
  static std::vector<char> big(256 << 20, 1);
  static volatile char sink;
  char sum = 0;
  for (size_t i = 0; i < big.size(); i += 64) sum = static_cast<char>(sum + ++big[i]);
  sink = sum;
  (void)sink;
}

// Bytes read and written per second by one thread copying uncached memory.
inline double copy_roof() {
  static std::vector<char> from(64 << 20, 1), to(64 << 20, 2);
  const Timing t = measure([&] { std::memcpy(to.data(), from.data(), from.size()); }, flush_caches, 0.2);
  return 2.0 * static_cast<double>(from.size()) / t.median;
}

}  // namespace brim::ops::bench
