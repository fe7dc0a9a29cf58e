// SPDX-License-Identifier: Apache-2.0
// A second opinion on "device busy": loaded into a program through CUDA_INJECTION64_PATH, it collects every kernel's
// begin and end as the driver's tracing (CUPTI) sees them and writes them, one "begin end" in nanoseconds a line, to
// $KERNEL_TIMES when the program ends. Built and read by bench/gpu/busy_check.py.
#include <cupti.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

namespace {
constexpr size_t kBufferBytes = 8 << 20;
std::mutex mutex;
std::vector<std::pair<uint64_t, uint64_t>> intervals;

void CUPTIAPI give(uint8_t** buffer, size_t* size, size_t* most) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size = kBufferBytes;
  *most = 0;
}

void CUPTIAPI take(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  const std::lock_guard lock(mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    const auto* kernel =
        reinterpret_cast<const CUpti_ActivityKernel9*>(record);  // later kinds only add fields at the end
    intervals.emplace_back(kernel->start, kernel->end);
  }
  std::free(buffer);
}

void write() {
  cuptiActivityFlushAll(1);
  const std::lock_guard lock(mutex);
  const char* path = std::getenv("KERNEL_TIMES");
  std::FILE* file = path != nullptr ? std::fopen(path, "w") : nullptr;
  if (file == nullptr) return;
  for (const auto& [begin, end] : intervals)
    std::fprintf(file, "%llu %llu\n", static_cast<unsigned long long>(begin), static_cast<unsigned long long>(end));
  std::fclose(file);
}
}  // namespace

extern "C" int InitializeInjection() {
  if (cuptiActivityRegisterCallbacks(give, take) != CUPTI_SUCCESS ||
      cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS)
    return 0;
  std::atexit(write);
  return 1;
}
