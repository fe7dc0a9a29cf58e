// SPDX-License-Identifier: Apache-2.0
// Emits timeline zones as NVTX ranges, so that Nsight shows them above the kernels. Header-only: without an injected
// profiler no zone reaches this code.
#include <nvtx3/nvToolsExt.h>

#include "base/env.h"
#include "base/timeline.h"
#include "device/cuda_backend.h"

namespace brim::device {

void start_nvtx_ranges() {
  if (!env_flag("BRIM_NVTX") && !env("NVTX_INJECTION64_PATH")) return;
  Timeline::set_ranges([](const char* name) { nvtxRangePushA(name); }, [] { nvtxRangePop(); });
}

}  // namespace brim::device
