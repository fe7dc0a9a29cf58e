// SPDX-License-Identifier: Apache-2.0
// The CPU as a device: aligned host memory, and streams on one thread pool. Does no accounting of memory.
#include <malloc.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "base/error.h"
#include "base/thread_pool.h"
#include "base/units.h"
#include "device/device.h"

namespace brim::device {
namespace {

constexpr size_t kAlignment = 256, kHugePage = 2 << 20;

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads)
      : Device(DeviceKind::cpu, 0), threads_(threads > 0 ? threads : hardware_threads()), isa_(best_isa()) {
    open();
  }

  std::string name() const override {
    return fmt::format("cpu ({}, {} thread{})", isa_name(isa_), threads_, threads_ == 1 ? "" : "s");
  }
  void open() override {
    if (pool_ == nullptr) pool_ = std::make_unique<ThreadPool>(threads_);
  }
  void close() override {
    pool_.reset();
    ::malloc_trim(0);
  }

  MemoryInfo memory() const override {
    struct sysinfo info {};
    ::sysinfo(&info);
    MemoryInfo m{static_cast<int64_t>(info.freeram) * info.mem_unit,
                 static_cast<int64_t>(info.totalram) * info.mem_unit};
    std::ifstream file("/proc/meminfo");
    std::string key, unit;
    int64_t kib = 0;
    while (file >> key >> kib >> unit)
      if (key == "MemAvailable:") m.free_bytes = kib << 10;
    std::ifstream limit("/sys/fs/cgroup/memory.max"), used("/sys/fs/cgroup/memory.current");
    int64_t max = 0, current = 0;
    if (limit >> max && used >> current && max < m.total_bytes) {
      m.total_bytes = max;
      m.free_bytes = std::min(m.free_bytes, max - current);
    }
    return m;
  }

  std::unique_ptr<Stream> make_stream() override {
    BRIM_CHECK(pool_ != nullptr, "stream requested from a closed device");
    return std::make_unique<CpuStream>(threads_ > 1 ? pool_.get() : nullptr, isa_);
  }

  DeviceBuffer allocate_host(size_t bytes) override { return allocate(bytes); }

 protected:
  DeviceBuffer allocate(size_t bytes) override {
    if (bytes == 0) return {};
    // Weights and arenas are accessed with row strides: with 4 KiB pages each row of a tile is on another page.
    // Huge-page alignment costs up to one page of address space, so small buffers do without.
    const size_t alignment = bytes >= 4 * kHugePage ? kHugePage : kAlignment;
    void* p = nullptr;
    if (::posix_memalign(&p, alignment, bytes) != 0) p = nullptr;
    if (p != nullptr && alignment == kHugePage) ::madvise(p, bytes, MADV_HUGEPAGE);  // only a hint; failure is harmless
    if (p == nullptr)
      fail(ErrorCode::does_not_fit, "cannot allocate {} of host memory", format_bytes(static_cast<int64_t>(bytes)));
    return DeviceBuffer(this, p, bytes, false);
  }
  void release(void* data, size_t, bool) noexcept override { std::free(data); }

 private:
  const int threads_;
  std::unique_ptr<ThreadPool> pool_;  // null if closed
  Isa isa_;
};

}  // namespace

void CpuStream::copy(void* dst, const void* src, size_t bytes) { std::memcpy(dst, src, bytes); }
void CpuStream::fill_zero(void* dst, size_t bytes) { std::memset(dst, 0, bytes); }

std::unique_ptr<Device> open_cpu_device(int threads) {
  if (threads < 0 || threads > 1024) fail(ErrorCode::usage, "`threads={}`: use 1 to 1024, or 0 for all cores", threads);
  return std::make_unique<CpuDevice>(threads);
}

}  // namespace brim::device
