// SPDX-License-Identifier: Apache-2.0
#include "monitor/watch.h"

#include <fmt/format.h>

namespace brim::monitor {
namespace {

constexpr std::string_view kUtilization = "utilization", kMemoryShare = "memory share";
// Hysteresis: how far a reading must fall back before its threshold can be exceeded again.
constexpr double kUtilizationMargin = 5, kTemperatureMargin = 3, kFreeMargin = 0.1, kMemoryMargin = 2;

}  // namespace

std::vector<std::string> Watch::check(const std::vector<GpuSample>& gpus) {
  std::vector<std::string> fresh;
  active_.clear();
  kinds_.clear();
  const auto judge = [&](const GpuSample& g, std::string_view what, bool over, bool calm, const std::string& sentence) {
    const std::string key = fmt::format("{} {}", g.index, what);
    const std::string line = fmt::format("GPU {}: {}", g.index, sentence);
    if (over) active_.push_back(line);
    if (over) kinds_.push_back({key, what != kUtilization && what != kMemoryShare});
    if (over && passed_.insert(key).second) fresh.push_back(line);
    if (calm) passed_.erase(key);
  };
  for (const GpuSample& g : gpus) {
    judge(g, "lost", g.state == GpuState::lost, g.state == GpuState::ok, fmt::format("lost ({})", g.why));
    if (g.utilization && limits_.max_utilization_percent > 0) {
      const double now = *g.utilization * 100, limit = limits_.max_utilization_percent;
      judge(g, kUtilization, now > limit, now < limit - kUtilizationMargin,
            fmt::format("utilisation {:.0f} %, above {:g} %", now, limit));
    }
    if (g.temperature_c && limits_.max_temperature_c > 0) {
      const double now = *g.temperature_c, limit = limits_.max_temperature_c;
      judge(g, "temperature", now > limit, now < limit - kTemperatureMargin,
            fmt::format("{:.0f} °C, above {:g} °C", now, limit));
    }
    if (g.free_bytes && limits_.min_free_mib > 0) {
      const double now = static_cast<double>(*g.free_bytes) / (1 << 20), limit = limits_.min_free_mib;
      judge(g, "memory", now<limit, now> limit * (1 + kFreeMargin),
            fmt::format("{:.0f} MiB free, below {:g} MiB", now, limit));
    }
    if (g.used_bytes && g.total_bytes.value_or(0) > 0 && limits_.max_memory_percent > 0) {
      const double now = 100 * static_cast<double>(*g.used_bytes) / static_cast<double>(*g.total_bytes);
      const double limit = limits_.max_memory_percent;
      judge(g, kMemoryShare, now > limit, now < limit - kMemoryMargin,
            fmt::format("{:.1f} % of memory in use, above {:g} %", now, limit));
    }
  }
  return fresh;
}

}  // namespace brim::monitor
