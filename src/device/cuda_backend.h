// SPDX-License-Identifier: Apache-2.0
// Interface of the CUDA backend, if built, to the device-neutral files of this folder.
#pragma once
#include <memory>

#include "device/cuda_info.h"
#include "device/event.h"

namespace brim::device {

std::unique_ptr<Event> make_cuda_event(Device& device, bool timing);
// Emits zones as NVTX ranges if a profiler is attached (NVTX_INJECTION64_PATH, set by Nsight) or BRIM_NVTX=1.
void start_nvtx_ranges();

}  // namespace brim::device
