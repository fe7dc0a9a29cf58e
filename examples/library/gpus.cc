// Lists the NVIDIA GPUs of this machine with their readings: gpus
#include <brim/monitor.h>

#include <cstdio>

int main() {
  const auto gpus = brim::read_gpus();
  if (gpus.empty()) std::puts("no GPU");
  for (const brim::GpuReading& gpu : gpus) {
    std::printf("GPU %d: %s, driver %s", gpu.index, gpu.name.c_str(), gpu.driver.c_str());
    if (gpu.free_bytes) std::printf(", %lld MiB free", static_cast<long long>(*gpu.free_bytes >> 20));
    if (gpu.utilization) std::printf(", %.0f %% busy", 100 * *gpu.utilization);
    if (!gpu.healthy) std::printf(", %s", gpu.problem.c_str());
    std::puts("");
  }
}
