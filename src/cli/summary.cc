// SPDX-License-Identifier: Apache-2.0
#include "cli/summary.h"

#include <sys/resource.h>

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "io/atomic_file.h"

namespace brim {
namespace {

int64_t peak_resident_bytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace

Summary summarize(Engine* engine, const PipelineStats& stats, const std::map<std::string, int64_t>& counters, double load_seconds) {
  Summary s;
  s.stats = stats;
  s.counters = counters;
  s.load_seconds = load_seconds;
  s.peak_bytes = peak_resident_bytes();
  if (engine == nullptr) {
    s.model = "vader", s.device = "cpu", s.precision = "exact";
    s.held_back_by = stats.sink_seconds > 0.5 * stats.seconds ? "writing the output" : "the rules themselves (all cores)";
    return s;
  }
  s.model = engine->model().dir().string();
  s.device = engine->device().name();
  s.precision = precision_name(engine->precision());
  s.precision_reason = engine->precision_reason();
  s.planned_bytes = engine->plan().peak_bytes;
  s.limit_bytes = engine->plan().limit_bytes;
  s.token_budget = engine->plan().token_budget;
  const double seconds = std::max(1e-9, stats.seconds);
  s.device_busy = std::min(1.0, stats.compute_seconds / seconds);
  const double rate = engine->plan().device.rate(engine->precision());
  if (rate > 0) s.mfu = forward_flops(engine->shape(), static_cast<double>(stats.tokens), stats.sum_squares) / seconds / rate;
  if (s.device_busy >= 0.9) s.held_back_by = "the device's arithmetic";
  else if (stats.sink_seconds > 0.8 * seconds) s.held_back_by = "writing the output";
  else if (stats.wait_input_seconds > 0.05 * seconds) s.held_back_by = "reading and tokenizing";
  else s.held_back_by = "start-up: the run is short";
  return s;
}

std::string Summary::text() const {
  const double seconds = std::max(1e-9, stats.seconds);
  std::string out = fmt::format("{} rows in {} · {} rows/s", format_count(stats.rows), format_duration(stats.seconds),
                                format_count(static_cast<int64_t>(static_cast<double>(stats.rows) / seconds)));
  if (stats.tokens > 0) out += fmt::format(" · {} tokens/s", format_si(static_cast<double>(stats.tokens) / seconds));
  out += fmt::format("\n{} on {} in {}{}\n", model, device, precision, precision_reason.empty() ? "" : " (" + precision_reason + ")");
  if (stats.tokens > 0)
    out += fmt::format("device busy {:.1f} %{} · memory planned {} of {} · budget {} tokens\n", device_busy * 100,
                       mfu >= 0 ? fmt::format(" · MFU {:.1f} %", mfu * 100) : "", format_bytes(planned_bytes), format_bytes(limit_bytes),
                       format_count(token_budget));
  std::string labels;
  for (const auto& [name, count] : counters)
    if (name.rfind("label ", 0) == 0) labels += fmt::format("{}{} {}", labels.empty() ? "" : " · ", name.substr(6), format_count(count));
  if (!labels.empty()) out += labels + "\n";
  if (const auto bad = counters.find("bad rows"); bad != counters.end()) out += fmt::format("bad rows: {}\n", format_count(bad->second));
  if (stats.truncated_rows > 0) out += fmt::format("texts cut to the model's length: {} (--long-text window-mean reads them whole)\n", format_count(stats.truncated_rows));
  return out + fmt::format("held back by: {}\n", held_back_by);
}

void Summary::write_json(const std::string& path) const {
  const double seconds = std::max(1e-9, stats.seconds);
  nlohmann::json j = {{"schema_version", 1},
                      {"model", model},
                      {"device", device},
                      {"precision", precision},
                      {"rows", stats.rows},
                      {"bad_rows", stats.bad_rows},
                      {"truncated_rows", stats.truncated_rows},
                      {"tokens", stats.tokens},
                      {"batches", stats.batches},
                      {"seconds", stats.seconds},
                      {"load_seconds", load_seconds},
                      {"rows_per_second", static_cast<double>(stats.rows) / seconds},
                      {"tokens_per_second", static_cast<double>(stats.tokens) / seconds},
                      {"device_busy", device_busy},
                      {"planned_bytes", planned_bytes},
                      {"limit_bytes", limit_bytes},
                      {"peak_host_bytes", peak_bytes},
                      {"token_budget", token_budget},
                      {"held_back_by", held_back_by}};
  j["mfu"] = mfu >= 0 ? nlohmann::json(mfu) : nlohmann::json(nullptr);
  for (const auto& [name, count] : counters)
    if (name.rfind("label ", 0) == 0) j["labels"][name.substr(6)] = count;
  write_file_atomically(path, j.dump(2) + "\n");
}

}  // namespace brim
