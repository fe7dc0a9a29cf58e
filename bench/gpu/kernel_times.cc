// SPDX-License-Identifier: Apache-2.0
// Injected library (CUDA_INJECTION64_PATH) that records the begin and end of every kernel with CUPTI and writes them to
// $KERNEL_TIMES at exit, one "begin end name" line per kernel, in nanoseconds. Built by bench/gpu/tracing.py.
#include <cupti.h>
#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {
constexpr size_t kBufferBytes = 8 << 20;
std::mutex mutex;
struct Interval {
  uint64_t begin, end;
  const std::string* name;
};
std::vector<Interval> intervals;
std::map<std::string, std::string> names;  // mangled to demangled

const std::string* name_of(const char* mangled) {
  const auto [at, fresh] = names.try_emplace(mangled, mangled);
  if (fresh) {
    int status = 0;
    char* text = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
    if (status == 0) at->second = text;
    std::free(text);
  }
  return &at->second;
}

void CUPTIAPI request_buffer(uint8_t** buffer, size_t* size, size_t* most) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size = kBufferBytes;
  *most = 0;
}

void CUPTIAPI complete_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  const std::lock_guard lock(mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    const auto* kernel =
        reinterpret_cast<const CUpti_ActivityKernel9*>(record);  // later kinds only add fields at the end
    intervals.push_back({kernel->start, kernel->end, name_of(kernel->name)});
  }
  std::free(buffer);
}

void write() {
  cuptiActivityFlushAll(1);
  const std::lock_guard lock(mutex);
  const char* path = std::getenv("KERNEL_TIMES");
  std::FILE* file = path != nullptr ? std::fopen(path, "w") : nullptr;
  if (file == nullptr) return;
  for (const Interval& i : intervals)
    std::fprintf(file, "%llu %llu %s\n", static_cast<unsigned long long>(i.begin),
                 static_cast<unsigned long long>(i.end), i.name->c_str());
  std::fclose(file);
}
}  // namespace

extern "C" int InitializeInjection() {
  if (cuptiActivityRegisterCallbacks(request_buffer, complete_buffer) != CUPTI_SUCCESS ||
      cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS)
    return 0;
  std::atexit(write);
  return 1;
}
