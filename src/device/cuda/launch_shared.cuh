// SPDX-License-Identifier: Apache-2.0
// Launches kernels whose shared memory has a size chosen at launch.
#pragma once
#include "device/cuda/launch.cuh"

#if defined(BRIM_CUDA_EMULATION)
#define BRIM_DYNAMIC_SHARED(name) alignas(128) static char name[224 << 10]
#else
// Shared memory whose size is an argument of launch_with_shared.
#define BRIM_DYNAMIC_SHARED(name) extern __shared__ __align__(128) char name[]
#endif

namespace brim::device {

// More than 48 KiB must be within shared_bytes_per_block.
template <auto Kernel, class... Args>
void launch_with_shared([[maybe_unused]] CudaStream& stream, dim3 grid, dim3 block, [[maybe_unused]] int shared_bytes,
                        Args... args) {
  static_cast<void>(&kernel_entry<Kernel>);
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
#if defined(BRIM_CUDA_EMULATION)
  emulation::run(grid, block, [=] { Kernel(args...); });
#else
  if (shared_bytes > 48 << 10)
    BRIM_CUDA_CHECK(cudaFuncSetAttribute(Kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  // clang-format off
  Kernel<<<grid, block, static_cast<size_t>(shared_bytes), stream.handle()>>>(args...);
  // clang-format on
  BRIM_CUDA_CHECK(cudaGetLastError());
  stream.set_chains(false);
#endif
}

}  // namespace brim::device
