// SPDX-License-Identifier: Apache-2.0
#include "serve/gpu_readings.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/units.h"
#include "serve/metrics.h"

namespace brim::serve {
namespace {

using OrderedJson = nlohmann::ordered_json;

template <class T>
OrderedJson reading_json(const std::optional<T>& value, double scale = 1) {
  return value ? OrderedJson(static_cast<double>(*value) * scale) : OrderedJson(nullptr);
}

// The `gpu` block of /health, of the first GPU.
OrderedJson health_block(const std::vector<monitor::GpuSample>& gpus, const GpuReadings& readings, bool no_faults,
                         const MemoryPlan& planned) {
  constexpr double kMiB = 1.0 / (1 << 20);
  const monitor::GpuSample* first = gpus.empty() ? nullptr : &gpus[0];
  const bool on_gpu = readings.computes;
  return {{"healthy", readings.healthy && no_faults},
          {"gpu_available", first != nullptr && first->state == monitor::GpuState::ok},
          {"name", first != nullptr ? OrderedJson(first->name) : OrderedJson(nullptr)},
          {"driver", first != nullptr ? OrderedJson(first->driver) : OrderedJson(nullptr)},
          {"utilization_pct", first != nullptr ? reading_json(first->utilization, 100) : OrderedJson(nullptr)},
          {"vram_used_mb", first != nullptr ? reading_json(first->used_bytes, kMiB) : OrderedJson(nullptr)},
          {"vram_total_mb", first != nullptr ? reading_json(first->total_bytes, kMiB) : OrderedJson(nullptr)},
          {"vram_free_mb", first != nullptr ? reading_json(first->free_bytes, kMiB) : OrderedJson(nullptr)},
          {"temperature_c", first != nullptr ? reading_json(first->temperature_c) : OrderedJson(nullptr)},
          {"power_w", first != nullptr ? reading_json(first->power_w) : OrderedJson(nullptr)},
          {"sm_clock_mhz", first != nullptr ? reading_json(first->sm_clock_mhz) : OrderedJson(nullptr)},
          {"planned_mb", on_gpu ? OrderedJson(static_cast<double>(planned.peak_bytes) * kMiB) : OrderedJson(nullptr)},
          {"limit_mb", on_gpu ? OrderedJson(static_cast<double>(planned.limit_bytes) * kMiB) : OrderedJson(nullptr)},
          {"mfu_pct", nullptr},
          {"device_busy_pct", nullptr},
          {"warnings", sentences(readings.warnings)}};
}

std::string metrics_of(const std::vector<monitor::GpuSample>& gpus) {
  MetricsText text;
  const auto reading = [&](const char* name, const char* type, const char* help, const auto& value, double scale) {
    text.family(name, type, help);
    for (const monitor::GpuSample& gpu : gpus) {
      const auto found = value(gpu);
      const std::string index = std::to_string(gpu.index);
      const std::pair<std::string_view, std::string_view> labels[] = {
          {"gpu", index}, {"uuid", gpu.uuid}, {"pci_bus_id", gpu.pci_bus_id}};
      if (found) text.value(name, labels, static_cast<double>(*found) * scale);
    }
  };
  if (gpus.empty()) return "";
  reading(
      "brim_gpu_utilization_ratio", "gauge", "share of time with a kernel running",
      [](const monitor::GpuSample& g) { return g.utilization; }, 1);
  reading(
      "brim_gpu_memory_used_bytes", "gauge", "GPU memory used by all processes",
      [](const monitor::GpuSample& g) { return g.used_bytes; }, 1);
  reading(
      "brim_gpu_temperature_celsius", "gauge", "GPU temperature",
      [](const monitor::GpuSample& g) { return g.temperature_c; }, 1);
  reading(
      "brim_gpu_power_watts", "gauge", "current GPU power draw", [](const monitor::GpuSample& g) { return g.power_w; },
      1);
  reading(
      "brim_gpu_energy_joules_total", "counter", "GPU energy since the driver was loaded",
      [](const monitor::GpuSample& g) { return g.energy_mj; }, 1e-3);
  reading(
      "brim_gpu_sm_clock_hertz", "gauge", "clock of the multiprocessors",
      [](const monitor::GpuSample& g) { return g.sm_clock_mhz; }, 1e6);
  return text.take();
}

}  // namespace

std::vector<std::string> sentences(const std::vector<Warning>& warnings) {
  std::vector<std::string> texts;
  for (const Warning& warning : warnings) texts.push_back(warning.text);
  return texts;
}

GpuReadings readings_of(const std::vector<monitor::GpuSample>& gpus, const monitor::Watch& watch, bool on_gpu,
                        const MemoryPlan& planned, std::optional<int64_t> held) {
  GpuReadings readings;
  for (size_t i = 0; i < watch.active().size(); ++i)
    readings.warnings.push_back({watch.active_kinds()[i].name, watch.active()[i], watch.active_kinds()[i].fault});
  const bool over = on_gpu && planned.limit_bytes > 0 && held.value_or(0) > planned.limit_bytes;
  if (over)
    readings.warnings.push_back({"held", fmt::format("{} of GPU memory in use, the limit is {}", format_bytes(*held),
                                                     format_bytes(planned.limit_bytes))});
  readings.computes = on_gpu;
  readings.healthy = !on_gpu || gpus.empty() || gpus[0].state == monitor::GpuState::ok;
  readings.health_json = health_block(gpus, readings, !watch.faulty() && !over, planned)
                             .dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  readings.metrics_text = metrics_of(gpus);
  return readings;
}

std::string log_line(const monitor::GpuSample& gpu) {
  constexpr double kMiB = 1.0 / (1 << 20);
  std::vector<std::string> parts;
  if (gpu.state != monitor::GpuState::ok) parts.push_back(gpu.why);
  if (gpu.utilization) parts.push_back(fmt::format("{:.0f} % utilisation", *gpu.utilization * 100));
  if (gpu.used_bytes && gpu.total_bytes.value_or(0) > 0) {
    const auto used = static_cast<double>(*gpu.used_bytes), total = static_cast<double>(*gpu.total_bytes);
    parts.push_back(fmt::format("{:.0f} of {:.0f} MiB ({:.1f} %)", used * kMiB, total * kMiB, 100 * used / total));
  }
  if (gpu.temperature_c) parts.push_back(fmt::format("{:.0f} °C", *gpu.temperature_c));
  if (gpu.power_w) parts.push_back(fmt::format("{:.0f} W", *gpu.power_w));
  return fmt::format("GPU {}: {}", gpu.index, parts.empty() ? "no readings" : fmt::to_string(fmt::join(parts, ", ")));
}

}  // namespace brim::serve
