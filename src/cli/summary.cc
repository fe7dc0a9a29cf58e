// SPDX-License-Identifier: Apache-2.0
#include "cli/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "io/atomic_file.h"

namespace brim {

Summary summarize(Engine* engine, const PipelineStats& counted, const std::map<std::string, int64_t>& counters,
                  double load_seconds) {
  Summary s;
  s.counted = counted;
  s.counters = counters;
  s.load_seconds = load_seconds;
  if (engine == nullptr) {
    s.stats = run_stats(nullptr, nullptr, counted);
    s.stats.peak_bytes = peak_resident_bytes();
    s.model = "vader";
    s.device = "cpu";
    s.precision = "exact";
    return s;
  }
  s.stats = engine->stats();
  s.on_card = engine->device().kind() == DeviceKind::cuda;
  s.model = engine->model().dir().string();
  s.device = engine->device().name();
  s.precision = precision_name(engine->precision());
  s.precision_reason = engine->precision_reason();
  return s;
}

std::string device_line(const RunStats& s, bool on_card) {
  std::string out = fmt::format("device busy {:.1f} %", s.device_busy * 100);
  if (s.mfu > 1)  // nothing computes faster than its peak
    out += fmt::format(" · compute used over 100 % of peak (MFU): the peak is wrong{}",
                       on_card ? "" : ", brim plan --measure measures it");
  else if (s.mfu >= 0)
    out += fmt::format(" · compute used {:.1f} % of peak (MFU)", s.mfu * 100);
  if (s.planned_bytes > 0)
    out += fmt::format(" · memory planned {} of {}", format_bytes(s.planned_bytes), format_bytes(s.limit_bytes));
  if (s.peak_bytes >= 0)
    out += fmt::format(" · {} {}", on_card ? "held on the card" : "resident peak", format_bytes(s.peak_bytes));
  if (s.token_budget > 0) out += fmt::format(" · budget {} tokens", format_count(s.token_budget));
  return out;
}

std::string Summary::text() const {
  std::string out =
      fmt::format("{} {} in {} · {} rows/s", format_count(counted.rows), counted.rows == 1 ? "row" : "rows",
                  format_duration(counted.seconds), format_count(static_cast<int64_t>(stats.rows_per_second)));
  if (counted.tokens > 0) out += fmt::format(" · {} tokens/s", format_si(stats.tokens_per_second));
  if (const auto all = counters.find("rows"); all != counters.end() && all->second > counted.rows)
    out += fmt::format(" · {} rows in all, with those of the interrupted run", format_count(all->second));
  out += fmt::format("\n{} on {} in {}{}\n", model, device, precision,
                     precision_reason.empty() ? "" : " (" + precision_reason + ")");
  out += device_line(stats, on_card) + "\n";
  std::string labels;
  for (const auto& [name, count] : counters)
    if (name.rfind("label ", 0) == 0)
      labels += fmt::format("{}{} {}", labels.empty() ? "" : " · ", name.substr(6), format_count(count));
  if (const auto found = counters.find("entities"); found != counters.end())
    labels = fmt::format("entities {}", format_count(found->second));
  if (!labels.empty()) out += labels + "\n";
  if (const auto bad = counters.find("bad rows"); bad != counters.end())
    out += fmt::format("bad rows: {}\n", format_count(bad->second));
  if (counted.truncated_rows > 0)
    out += fmt::format("texts cut to the model's length: {} (--long-text window-mean reads them whole)\n",
                       format_count(counted.truncated_rows));
  return out + fmt::format("limited by: {}\n", stats.held_back_by);
}

void Summary::write_json(const std::string& path) const {
  nlohmann::json j = {{"schema_version", 1},
                      {"model", model},
                      {"device", device},
                      {"precision", precision},
                      {"rows", counted.rows},
                      {"bad_rows", counted.bad_rows},
                      {"truncated_rows", counted.truncated_rows},
                      {"tokens", counted.tokens},
                      {"batches", counted.batches},
                      {"seconds", counted.seconds},
                      {"load_seconds", load_seconds},
                      {"rows_per_second", stats.rows_per_second},
                      {"tokens_per_second", stats.tokens_per_second},
                      {"device_busy", stats.device_busy},
                      {"peak_host_bytes", peak_resident_bytes()},
                      {"held_back_by", stats.held_back_by}};
  j["mfu"] = stats.mfu >= 0 ? nlohmann::json(stats.mfu) : nlohmann::json(nullptr);
  // VADER has no plan.
  for (const auto& [name, value] :
       {std::pair("planned_bytes", stats.planned_bytes), std::pair("limit_bytes", stats.limit_bytes),
        std::pair("token_budget", stats.token_budget)})
    j[name] = value > 0 ? nlohmann::json(value) : nlohmann::json(nullptr);
  j["peak_bytes"] = stats.peak_bytes >= 0 ? nlohmann::json(stats.peak_bytes) : nlohmann::json(nullptr);
  if (const auto all = counters.find("rows"); all != counters.end()) j["rows_in_all"] = all->second;
  for (const auto& [name, count] : counters)
    if (name.rfind("label ", 0) == 0) j["labels"][name.substr(6)] = count;
  if (const auto found = counters.find("entities"); found != counters.end()) j["entities"] = found->second;
  const std::string text =
      j.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";  // paths may be any bytes
  if (path == "-")
    fmt::print("{}", text);
  else
    write_file_atomically(path, text);
}

}  // namespace brim
