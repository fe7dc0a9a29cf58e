// SPDX-License-Identifier: Apache-2.0
// Properties of an opened CUDA device for the planner, the monitor and `brim info`. Includes no CUDA headers.
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
  int kernel_arch = 0;     // architecture of the kernels in use: 90, or 75 if compiled from PTX
  int sm_count = 0;
  int shared_bytes_per_block = 0;
  int64_t l2_bytes = 0, memory_bytes = 0;
  int driver_version = 0, runtime_version = 0;  // 13000 for 13.0
  bool bf16 = false;                            // supported by the tensor cores and our kernels (sm_80 and later)
  bool tf32 = false;
  bool fp8 = false;  // sm_89 and later
};

// For devices opened by open_cuda_device; throws internal for other kinds.
const CudaInfo& cuda_info(const Device& device);

// Loads every kernel of this build, so that memory use does not change while batches run. There are hundreds, so a
// run of one batch skips this. Does nothing on other devices.
void load_all_kernels(Device& device);

}  // namespace brim::device
