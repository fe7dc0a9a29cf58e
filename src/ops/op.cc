// SPDX-License-Identifier: Apache-2.0
#include "ops/op.h"

#include "ops/kernel_table.h"

namespace brim::ops {

const KernelTable& cpu_kernels() {
  static constexpr KernelTable table = {
#define BRIM_OP_CPU(op, Args, zone) .op = op##_cpu,
      BRIM_OPS(BRIM_OP_CPU)
#undef BRIM_OP_CPU
  };
  return table;
}

const KernelTable* cuda_kernels() {
#if defined(BRIM_WITH_CUDA)
  static constexpr KernelTable table = {
#define BRIM_OP_CUDA(op, Args, zone) .op = op##_cuda,
      BRIM_OPS(BRIM_OP_CUDA)
#undef BRIM_OP_CUDA
  };
  return &table;
#else
  return nullptr;
#endif
}

const KernelTable& kernels_of(const device::Stream& stream) {
  if (stream.kind() == device::DeviceKind::cpu) return cpu_kernels();
  BRIM_CHECK(stream.kind() == device::DeviceKind::cuda && cuda_kernels() != nullptr,
             "this build has no kernels for a {} stream", device::device_kind_name(stream.kind()));
  return *cuda_kernels();
}

void note_op(device::Stream& stream, const char* name, const Work& work) {
  static_cast<device::NullStream&>(stream).sink()->on_op(name, work.flops, work.bytes);
}

}  // namespace brim::ops
