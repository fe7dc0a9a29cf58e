// SPDX-License-Identifier: Apache-2.0
// What the CUDA backend, where it is built, gives the device-neutral files of this folder.
#pragma once
#include <memory>

#include "device/cuda_info.h"
#include "device/event.h"

namespace brim::device {

std::unique_ptr<Event> make_cuda_event(Device& device, bool timing);
// Zones become NVTX ranges where a profiler listens (NVTX_INJECTION64_PATH, as Nsight sets it) or BRIM_NVTX=1.
void start_nvtx_ranges();

}  // namespace brim::device
