// SPDX-License-Identifier: Apache-2.0
#include "monitor/snapshot.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>

namespace brim::monitor {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json maybe(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}
Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json gpu_json(const GpuSample& g) {
  Json j = {{"index", g.index},
            {"state", gpu_state_name(g.state)},
            {"why", text_or_null(g.why)},
            {"name", text_or_null(g.name)},
            {"uuid", text_or_null(g.uuid)},
            {"pci_bus_id", text_or_null(g.pci_bus_id)},
            {"driver", text_or_null(g.driver)},
            {"utilization", maybe(g.utilization)},
            {"memory_utilization", maybe(g.memory_utilization)},
            {"memory_total_bytes", maybe(g.total_bytes)},
            {"memory_used_bytes", maybe(g.used_bytes)},
            {"memory_reserved_bytes", maybe(g.reserved_bytes)},
            {"memory_free_bytes", maybe(g.free_bytes)},
            {"temperature_c", maybe(g.temperature_c)},
            {"power_w", maybe(g.power_w)},
            {"power_limit_w", maybe(g.power_limit_w)},
            {"sm_clock_mhz", maybe(g.sm_clock_mhz)},
            {"max_sm_clock_mhz", maybe(g.max_sm_clock_mhz)},
            {"memory_clock_mhz", maybe(g.memory_clock_mhz)},
            {"throttle_reasons", maybe(g.throttle)},
            {"pcie_generation", maybe(g.pcie_generation)},
            {"pcie_width", maybe(g.pcie_width)},
            {"pcie_rx_bytes_per_second", maybe(g.pcie_rx_bytes_per_s)},
            {"pcie_tx_bytes_per_second", maybe(g.pcie_tx_bytes_per_s)},
            {"energy_mj", maybe(g.energy_mj)},
            {"processes", nullptr},
            {"activity", nullptr},
            {"refused", g.refused}};
  if (g.processes) {
    j["processes"] = Json::array();
    for (const GpuProcess& p : *g.processes)
      j["processes"].push_back({{"pid", p.pid}, {"name", text_or_null(p.name)}, {"memory_bytes", maybe(p.bytes)}});
  }
  if (g.gpm)
    j["activity"] = {{"sm", maybe(g.gpm->sm)},
                     {"sm_occupancy", maybe(g.gpm->sm_occupancy)},
                     {"tensor", maybe(g.gpm->tensor)},
                     {"dram", maybe(g.gpm->dram)}};
  return j;
}

Json host_json(const HostSample& h) {
  return {{"cpu_name", text_or_null(h.cpu_name)},
          {"cores", h.cores},
          {"cpu", maybe(h.cpu)},
          {"core", h.core},
          {"load_1m", maybe(h.load_1m)},
          {"memory_total_bytes", maybe(h.memory_total_bytes)},
          {"memory_available_bytes", maybe(h.memory_available_bytes)},
          {"swap_total_bytes", maybe(h.swap_total_bytes)},
          {"swap_used_bytes", maybe(h.swap_used_bytes)},
          {"disk_path", h.disk_path},
          {"disk_total_bytes", maybe(h.disk_total_bytes)},
          {"disk_free_bytes", maybe(h.disk_free_bytes)},
          {"disk_read_bytes_per_second", maybe(h.disk_read_bytes_per_s)},
          {"disk_write_bytes_per_second", maybe(h.disk_write_bytes_per_s)},
          {"monitor_resident_bytes", h.self_rss_bytes},
          {"monitor_cores", maybe(h.self_cpu)}};
}

Json run_json(const RunRecord& r) {
  Json stages = Json::object();
  for (const auto& [name, busy] : r.stages) stages[name] = busy;
  const auto unix_seconds = [](const std::optional<int64_t>& ns) { return 1e-9 * static_cast<double>(ns.value_or(0)); };
  return {{"pid", maybe(r.pid)},
          {"command", r.verb},
          {"model", r.model},
          {"device", r.device_title()},
          {"pci_bus_id", text_or_null(r.pci_bus_id)},
          {"precision", r.precision},
          {"started_unix", unix_seconds(r.start_unix_ns)},
          {"updated_unix", unix_seconds(r.updated_unix_ns)},
          {"rows", r.stats.rows},
          {"tokens", r.stats.tokens},
          {"rows_per_second", maybe(r.rows_per_second())},
          {"tokens_per_second", maybe(r.tokens_per_second())},
          {"mfu", maybe(r.mfu)},
          {"device_busy", maybe(r.device_busy)},
          {"done", maybe(r.done)},
          {"planned_bytes", maybe(r.planned_bytes)},
          {"peak_bytes", maybe(r.peak_bytes)},
          {"limit_bytes", maybe(r.limit_bytes)},
          {"token_budget", maybe(r.token_budget)},
          {"step", maybe(r.step)},
          {"total_steps", maybe(r.total_steps)},
          {"loss", maybe(r.loss)},
          {"stages", stages}};
}

}  // namespace

std::string to_json(const Snapshot& s) {
  Json j = {{"schema_version", 1},
            {"time", fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z",
                                 fmt::gmtime(static_cast<std::time_t>(s.unix_ns / 1'000'000'000)),
                                 s.unix_ns / 1'000'000 % 1000)},
            {"nvml", {{"state", nvml_state_name(s.nvml)}, {"why", text_or_null(s.nvml_why)}}},
            {"gpus", Json::array()},
            {"host", host_json(s.host)},
            {"runs", Json::array()},
            {"warnings", s.warnings}};
  for (const auto& gpu : s.gpus) {
    j["gpus"].push_back(gpu_json(gpu));
    const RunRecord* run = run_on(s, gpu);
    j["gpus"].back()["mfu"] = run != nullptr ? maybe(run->mfu) : Json(nullptr);
  }
  for (const auto& run : s.runs) j["runs"].push_back(run_json(run));
  return j.dump(-1, ' ', false, Json::error_handler_t::replace);  // process names may contain any bytes
}

const RunRecord* run_on(const Snapshot& snapshot, const GpuSample& gpu) {
  if (gpu.processes)
    for (const GpuProcess& p : *gpu.processes)
      for (const RunRecord& run : snapshot.runs)
        if (run.pid == p.pid) return &run;
  // In a container the driver's pids are not ours.
  for (const RunRecord& run : snapshot.runs) {
    if (same_card(run.pci_bus_id, gpu.pci_bus_id)) return &run;
    if (!run.pci_bus_id.empty() && !gpu.pci_bus_id.empty()) continue;  // another GPU, regardless of its CUDA index
    if (run.on_card && run.device_index == gpu.index) return &run;
  }
  return nullptr;
}

Snapshot Sampler::sample(const GpuSampleOptions& options) {
  Snapshot s;
  s.unix_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  s.nvml = nvml_.state();
  s.nvml_why = nvml_.why();
  s.gpus = nvml_.sample(options);
  s.host = host_.sample();
  s.runs = read_live();
  return s;
}

void History::push(const std::string& name, std::optional<double> share) {
  auto& ring = series_[name];
  ring.push_back(share);
  if (ring.size() > length_) ring.pop_front();
}

void History::add(const Snapshot& s) {
  push("cpu", s.host.cpu);
  for (const GpuSample& g : s.gpus) {
    const std::string name = fmt::format("gpu{}.", g.index);
    push(name + "utilization", g.utilization);
    std::optional<double> full;
    if (g.used_bytes && g.total_bytes && *g.total_bytes > 0)
      full = static_cast<double>(*g.used_bytes) / static_cast<double>(*g.total_bytes);
    push(name + "memory", full);
    const RunRecord* run = run_on(s, g);
    push(name + "mfu", run != nullptr ? run->mfu : std::nullopt);
  }
}

const History::Readings& History::series(const std::string& name) const {
  static const Readings none;
  const auto found = series_.find(name);
  return found != series_.end() ? found->second : none;
}

}  // namespace brim::monitor
