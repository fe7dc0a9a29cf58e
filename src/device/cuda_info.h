// SPDX-License-Identifier: Apache-2.0
// Facts about an opened CUDA device, without a CUDA header: what the plan, the monitor and `brim info` ask.
#pragma once
#include <cstdint>
#include <string>

namespace brim::device {

class Device;

struct CudaInfo {
  int index = 0;
  std::string name;        // "NVIDIA H200"
  std::string pci_bus_id;  // "0000:65:00.0"
  int capability = 0;      // 90 for sm_90
  int kernel_arch = 0;     // what our kernels were compiled for on this card: 90, or 75 where PTX was taken
  int sm_count = 0;
  int shared_bytes_per_block = 0;
  int64_t l2_bytes = 0, memory_bytes = 0;
  int driver_version = 0, runtime_version = 0;  // 13000 for 13.0
  bool bf16 = false;  // tensor cores take it and our kernels were built for it (sm_80 and later)
  bool tf32 = false;
  bool fp8 = false;  // sm_89 and later
};

// Of a device opened by open_cuda_device; throws internal for another kind.
const CudaInfo& cuda_info(const Device& device);

// Every kernel this build has, so that memory in use does not change once batches run. Hundreds: a run of one batch
// does without. Elsewhere than on a card it does nothing.
void load_all_kernels(Device& device);

}  // namespace brim::device
