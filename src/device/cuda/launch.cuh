// SPDX-License-Identifier: Apache-2.0
// Launches kernels from ops. cuda_op records the op's name on host and stream for error messages, binds the device and,
// with BRIM_SYNC=1, waits for completion. launch<kernel> launches, checks errors, and registers the kernel at program
// start so that load_all_kernels() finds it.
#pragma once
#include <cstddef>
#include <vector>

#include "device/cuda/cuda_stream.h"

#if defined(BRIM_CUDA_EMULATION)
#include "device/cuda/emulation/emulation.h"
#endif

namespace brim::device {

std::vector<const void*>& cuda_kernel_registry();
bool cuda_sync_every_op();  // BRIM_SYNC=1

template <auto Kernel>
struct KernelEntry {
  KernelEntry() { cuda_kernel_registry().push_back(reinterpret_cast<const void*>(Kernel)); }
};
template <auto Kernel>
inline KernelEntry<Kernel> kernel_entry;

// Launches nothing for an empty grid.
template <auto Kernel, class... Args>
void launch([[maybe_unused]] CudaStream& stream, dim3 grid, dim3 block, Args... args) {
  static_cast<void>(&kernel_entry<Kernel>);
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
#if defined(BRIM_CUDA_EMULATION)
  emulation::run(grid, block, [=] { Kernel(args...); });
#else
  // clang-format off
  Kernel<<<grid, block, 0, stream.handle()>>>(args...);  // clang-format 14 cuts the closing mark in three
  // clang-format on
  BRIM_CUDA_CHECK(cudaGetLastError());
  stream.set_chains(false);
#endif
}

// For kernels whose threads call wait_for_previous (ops/cuda/ptx.cuh) before accessing data written by a chained
// kernel; weights and sequence offsets are exempt. After another chained kernel it starts before that one ends, which
// hides its launch latency and weight loads. Data written in the meantime must not be read through const __restrict__
// pointers or __ldg, because such loads may be moved before the wait.
template <auto Kernel, class... Args>
void launch_chained([[maybe_unused]] CudaStream& stream, dim3 grid, dim3 block, Args... args) {
  static_cast<void>(&kernel_entry<Kernel>);
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
#if defined(BRIM_CUDA_EMULATION)
  emulation::run(grid, block, [=] { Kernel(args...); });
#else
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream.handle();
  config.attrs = &early;
  // Only in graphs: large batches do not benefit.
  config.numAttrs = stream.capturing() && stream.chains() && stream.info().kernel_arch >= 90 ? 1 : 0;
  BRIM_CUDA_CHECK(cudaLaunchKernelEx(&config, Kernel, args...));
  stream.set_chains(true);
#endif
}

template <class Body>
void cuda_op(Stream& stream, const char* name, Body&& body) {
  cuda_refuse_after_loss();
  CudaStream& s = as_cuda(stream);
  const char* outer = std::exchange(cuda_current_op, name);
  s.bind();
  s.begin_op(name);
  body(s);
  if (cuda_sync_every_op() && !s.capturing()) s.synchronize();
  cuda_current_op = outer;
}

inline unsigned blocks_for(int64_t items, int64_t per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

}  // namespace brim::device
