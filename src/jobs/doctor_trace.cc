// SPDX-License-Identifier: Apache-2.0
#include "jobs/doctor_trace.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/thread_pool.h"
#include "engine/scorer_access.h"
#include "io/json_text.h"

namespace brim::jobs {
namespace {

using nlohmann::json;

const Remedy kMakeTrace{"create one with `brim score trace=FILE` or `brim train trace=FILE`"};

void look_at_processes(const monitor::GpuSample& card, CardRecord& record) {
  if (!card.processes) return;
  int64_t bytes = 0;
  int others = 0;
  // In some containers pids are those of the host; this process cannot be identified among several then.
  const bool known = std::any_of(card.processes->begin(), card.processes->end(),
                                 [](const monitor::GpuProcess& p) { return p.pid == ::getpid(); });
  for (const monitor::GpuProcess& p : *card.processes)
    if (p.pid != ::getpid()) {
      ++others;
      bytes += p.bytes.value_or(0);
    }
  const bool ours = !known && others == 1;
  record.other_processes = ours ? 0 : others;
  record.other_bytes = ours ? 0 : bytes;
}

// Predicts the speed of this run's plan and of a plan without its limit, both for texts of this run's length.
void predict_budgets(RunRecord& r, engine::Engine& engine) {
  plan::PlanRequest request;
  const plan::Plan& plan = engine.plan();
  request.shape = engine.shape();
  request.device = plan.device;
  request.max_length = plan.max_length;
  request.output = plan.output;
  request.precision = plan.precision;
  add_host_memory(request, engine.model_dir());
  request.typical_length = std::clamp<int64_t>(r.stats.tokens / std::max<int64_t>(1, r.stats.rows), 1, plan.max_length);
  try {
    device::MemoryInfo memory = engine.device().memory();
    memory.free_bytes = std::min(memory.total_bytes, memory.free_bytes + plan.peak_bytes);  // plus this run's own
    request.limit_bytes = std::max(plan.limit_bytes, plan::MemoryLimit().on(memory));
    const plan::Plan free = solve(request);
    r.free_token_budget = free.token_budget;
    r.free_limit_bytes = request.limit_bytes;
    r.free_tokens_per_second = free.tokens_per_second;
    request.token_budget = plan.token_budget;
    r.plan_tokens_per_second = solve(request).tokens_per_second;
  } catch (const Error&) {
    r.free_token_budget = 0;  // the prediction is optional; the run is recorded without it
  }
}

}  // namespace

bool others_hold_memory(const RunRecord& r) {
  const int64_t others = r.card.other_bytes.value_or(0);
  return others > 0 && r.limit_bytes.value_or(0) >= (r.free_limit_bytes - others) * 9 / 10;
}

bool is_power_cap(const std::string& reason) { return reason == "power cap"; }

bool is_slowdown(const std::string& reason) {
  return !is_power_cap(reason) && reason != "idle" && reason != "sync boost" && reason != "display clocks";
}

void CardReadings::add(const monitor::GpuSample& card) {
  look_at_processes(card, record_);
  if (card.max_sm_clock_mhz) record_.max_sm_clock_mhz = card.max_sm_clock_mhz;
  if (card.power_limit_w) record_.power_limit_w = card.power_limit_w;
  if (card.power_w) {
    power_ += *card.power_w;
    record_.power_w = power_ / ++power_samples_;
  }
  const std::vector<std::string> reasons = card.throttle.value_or(std::vector<std::string>{});
  // An idle GPU lowers its clocks; this does not reflect its speed under load.
  if (std::find(reasons.begin(), reasons.end(), "idle") != reasons.end()) return;
  for (const std::string& reason : reasons)
    if ((is_slowdown(reason) || is_power_cap(reason)) &&
        std::find(record_.throttle.begin(), record_.throttle.end(), reason) == record_.throttle.end())
      record_.throttle.push_back(reason);
  if (!card.sm_clock_mhz) return;
  clocks_ += *card.sm_clock_mhz;
  record_.sm_clock_mhz = static_cast<int>(clocks_ / ++clock_samples_);
  if (std::any_of(reasons.begin(), reasons.end(), is_slowdown)) return;
  unhindered_clocks_ += *card.sm_clock_mhz;
  record_.unhindered_clock_mhz = static_cast<int>(unhindered_clocks_ / ++unhindered_samples_);
}

CardWatch::CardWatch(const std::string& pci_bus_id) : thread_([this, pci_bus_id] { watch(pci_bus_id); }) {}

CardWatch::~CardWatch() { (void)stop(); }

void CardWatch::watch(const std::string& pci_bus_id) {
  constexpr auto kInterval = std::chrono::milliseconds(200);
  monitor::Nvml nvml;
  monitor::GpuSampleOptions options;
  options.pcie_throughput = options.gpm = false;
  std::unique_lock lock(mutex_);
  while (nvml.ready() && !stopped_.wait_for(lock, kInterval, [&] { return stop_; })) {
    lock.unlock();
    if (const auto card = nvml.sample_card(pci_bus_id, options)) readings_.add(*card);
    lock.lock();
  }
}

CardRecord CardWatch::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  if (thread_.joinable()) thread_.join();
  return readings_.record();
}

RunRecord make_record(const std::string& verb, Scorer& model, const engine::PipelineStats& stats, double load_seconds) {
  RunRecord r = engine::record_of(model, stats);
  r.verb = verb;
  r.stats = stats;
  r.load_seconds = load_seconds;
  r.cores = hardware_threads();
  r.machine_cores = std::max(r.cores, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
  if (model.kind() == ModelKind::rules)
    r.threads = stats.tokenizers;  // the threads that compute the rules
  else
    predict_budgets(r, engine::engine_of(model));
  return r;
}

RunTrace parse_trace(const std::string& text, const std::string& name) {
  std::map<std::string, Zone> zones;
  for (int z = 0; z < static_cast<int>(Zone::count); ++z)
    if (!is_op(static_cast<Zone>(z))) zones[zone_name(static_cast<Zone>(z))] = static_cast<Zone>(z);
  RunTrace trace;
  // Events are consumed while parsing and dropped from the tree: a trace may hold millions.
  const json::parser_callback_t take = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event != json::parse_event_t::object_end || depth != 2 || !parsed.contains("ph")) return true;
    const std::string phase = parsed.value("ph", "");
    const auto lane = parsed.value("tid", int64_t{-1});
    if (lane < 0 || lane > 1'000'000) return false;
    if (phase == "M" && parsed.value("name", "") == "thread_name") {
      if (trace.lanes.size() <= static_cast<size_t>(lane)) trace.lanes.resize(static_cast<size_t>(lane) + 1);
      trace.lanes[static_cast<size_t>(lane)] = parsed.at("args").value("name", "");
    } else if (phase == "X") {
      const auto zone = zones.find(parsed.value("name", ""));
      const double begin = parsed.value("ts", -1.0), length = parsed.value("dur", -1.0);
      if (zone == zones.end() || !(begin >= 0 && length >= 0 && begin + length < 1e15)) return false;
      const int64_t begin_ns = std::llround(begin * 1e3);
      const auto args = parsed.find("args");
      const int64_t n = args != parsed.end() && args->is_object() ? args->value("n", int64_t{0}) : 0;
      trace.events.push_back(
          {begin_ns, begin_ns + std::llround(length * 1e3), zone->second, static_cast<int32_t>(lane), n});
    }
    return false;
  };
  json rest;
  try {
    rest = json::parse(text, take);
  } catch (const json::exception& e) {
    fail(ErrorCode::bad_data, kMakeTrace, "{}: not a trace: {}", name, io::json_reason(e.what()));
  }
  if (!rest.is_object() || !rest.contains("traceEvents"))
    fail(ErrorCode::bad_data, kMakeTrace, "{}: not a trace: no traceEvents", name);
  const auto other = rest.find("otherData");
  if (other == rest.end() || !other->is_object() || !other->contains("brim"))
    fail(ErrorCode::bad_data, kMakeTrace, "{}: not a trace of a scoring or training run", name);
  try {
    trace.record = monitor::record_from_json(other->at("brim").dump());
    const std::string& verb = trace.record.verb;
    if ((verb == "train" || verb.starts_with("forecast ")) != trace.record.trains())
      fail(ErrorCode::bad_data, "invalid record of a run: '{}' with the fields of another command", verb);
  } catch (const Error& e) {
    fail(e.code(), "{}: {}", name, e.what());
  }
  if (trace.events.empty())
    fail(ErrorCode::bad_data, "{}: contains no stages of a run; was the run interrupted before its first row?", name);
  for (const ZoneEvent& e : trace.events)
    if (static_cast<size_t>(e.thread) >= trace.lanes.size()) trace.lanes.resize(static_cast<size_t>(e.thread) + 1);
  std::stable_sort(trace.events.begin(), trace.events.end(),
                   [](const ZoneEvent& a, const ZoneEvent& b) { return a.begin_ns < b.begin_ns; });
  return trace;
}

RunTrace read_trace(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    fail(ErrorCode::usage, "{}: is a directory; give a trace file", path);
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ErrorCode::usage, "{}: cannot open: {}", path, std::strerror(errno));
  std::stringstream text;
  text << file.rdbuf();
  if (text.str().empty()) fail(ErrorCode::bad_data, kMakeTrace, "{}: is empty", path);
  return parse_trace(text.str(), path);
}

}  // namespace brim::jobs
