// SPDX-License-Identifier: Apache-2.0
#include "cli/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/units.h"
#include "cli/render.h"
#include "engine/scorer_access.h"
#include "io/atomic_file.h"
#include "jobs/score_file.h"

namespace brim::cli {

using jobs::counter_name;
using monitor::RunRecord;

Summary summarize(const std::vector<Scorer*>& models, const std::vector<std::string>& names,
                  const engine::RowReport& counted, const std::map<std::string, int64_t>& counters,
                  double load_seconds) {
  Summary s;
  s.counters = counters;
  for (size_t m = 0; m < models.size(); ++m)
    s.models.push_back({names[m], engine::record_of(*models[m], counted.models[m])});
  s.run = engine::record_of(models, counted);
  s.run.stats = counted.all;
  s.run.load_seconds = load_seconds;
  s.run.held_back_by = rendered(s.run.held_back_by);
  return s;
}

namespace {

// Labels with their counts, or the number of entities, on one line; empty if there are none.
std::string results_line(const std::map<std::string, int64_t>& counters, const std::string& model) {
  if (const auto found = counters.find(counter_name(model, "entities")); found != counters.end())
    return fmt::format("entities {}", format_count(found->second));
  const std::string before = counter_name(model, "label ");
  std::string labels;
  for (const auto& [name, count] : counters)
    if (name.starts_with(before))
      labels += fmt::format("{}{} {}", labels.empty() ? "" : " · ", name.substr(before.size()), format_count(count));
  return labels;
}

void add_results(nlohmann::ordered_json& to, const std::map<std::string, int64_t>& counters, const std::string& model) {
  const std::string before = counter_name(model, "label ");
  for (const auto& [name, count] : counters)
    if (name.starts_with(before)) to["labels"][name.substr(before.size())] = count;
  if (const auto found = counters.find(counter_name(model, "entities")); found != counters.end())
    to["entities"] = found->second;
}

template <class T>
nlohmann::ordered_json maybe(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

double repeated_share(const engine::PipelineStats& counted) {
  return static_cast<double>(counted.repeated_rows) / static_cast<double>(std::max<int64_t>(1, counted.rows));
}

// "device busy 97.1 % · MFU 45.2 % · memory planned 1.2 GiB, held 1.2 GiB, of 8 GiB · budget 65,536 tokens".
std::string device_line(const RunRecord& r) {
  std::string out = fmt::format("device busy {:.1f} %", r.device_busy.value_or(0) * 100);
  if (r.mfu > 1)  // impossible: exceeds the peak
    out += fmt::format(" · compute used over 100 % of peak (MFU): the assumed peak is too low{}",
                       r.on_card ? "" : ", measure it with brim plan --measure");
  else if (r.mfu)
    out += fmt::format(" · compute used {:.1f} % of peak (MFU{})", *r.mfu * 100, r.mfu_note());
  if (r.limit_bytes)
    out += fmt::format(" · memory planned {} of {}", format_bytes(r.planned_bytes.value_or(0)),
                       format_bytes(*r.limit_bytes));
  if (r.peak_bytes)
    out += fmt::format(" · {} {}", r.on_card ? "used on the GPU" : "peak resident", format_bytes(*r.peak_bytes));
  if (r.token_budget) out += fmt::format(" · batches of up to {} tokens", format_count(*r.token_budget));
  return out;
}

}  // namespace

std::string Summary::text() const {
  const engine::PipelineStats& counted = run.stats;
  std::string out = fmt::format("{} in {} · {}/s", format_count(counted.rows, "row"), format_duration(counted.seconds),
                                format_count(static_cast<int64_t>(run.rows_per_second().value_or(0)), "row"));
  if (counted.tokens > 0) out += fmt::format(" · {} tokens/s", format_si(run.tokens_per_second().value_or(0)));
  if (const auto all = counters.find("rows"); all != counters.end() && all->second > counted.rows)
    out += fmt::format(" · {} in total, including the interrupted run", format_count(all->second, "row"));
  if (const auto blank = counters.find("blank lines"); blank != counters.end() && blank->second > 0)
    out += fmt::format(" · {} skipped", format_count(blank->second, "blank line"));
  out += "\n";
  for (const SummaryModel& m : models) {
    const RunRecord& r = m.run;
    out += fmt::format("{}{} on {} {}{}", m.name.empty() ? "" : m.name + ": ", r.model, r.device,
                       r.model == "vader" ? "(rules)" : "in " + r.precision,
                       r.precision_reason.empty() ? "" : " (" + r.precision_reason + ")");
    if (models.size() > 1 && r.stats.tokens > 0)
      out += fmt::format(" · {} tokens/s", format_si(r.tokens_per_second().value_or(0)));
    const std::string results = results_line(counters, m.name);
    out += models.size() > 1 && !results.empty() ? "\n  " + results + "\n" : "\n";
  }
  out += device_line(run) + "\n";
  if (const std::string results = results_line(counters, ""); !results.empty()) out += results + "\n";
  if (const auto bad = counters.find("bad rows"); bad != counters.end())
    out += fmt::format("bad rows: {}\n", format_count(bad->second));
  if (counted.repeated_rows > 0)
    out += fmt::format("repeated texts: {} ({:.1f} %), scored once\n", format_count(counted.repeated_rows),
                       100 * repeated_share(counted));
  if (counted.truncated_rows > 0)
    out += fmt::format("truncated texts: {} (use --long-text window-mean to score them completely)\n",
                       format_count(counted.truncated_rows));
  return out + fmt::format("limited by: {}\n", run.held_back_by);
}

void Summary::write_json(const std::string& path) const {
  const auto joined = [&](std::string RunRecord::*part) {
    std::string all;
    for (const SummaryModel& m : models) all += (all.empty() ? "" : ", ") + m.run.*part;
    return all;
  };
  std::string device = models[0].run.device;
  for (const SummaryModel& m : models)
    if (m.run.model != "vader") device = m.run.device;  // rules use no device
  const engine::PipelineStats& counted = run.stats;
  nlohmann::ordered_json j = {{"schema_version", 1},
                              {"model", joined(&RunRecord::model)},
                              {"device", device},
                              {"precision", joined(&RunRecord::precision)},
                              {"rows", counted.rows},
                              {"bad_rows", counted.bad_rows},
                              {"truncated_rows", counted.truncated_rows},
                              {"repeated_rows", counted.repeated_rows},
                              {"repeated_share", repeated_share(counted)},
                              {"tokens", counted.tokens},
                              {"batches", counted.batches},
                              {"seconds", counted.seconds},
                              {"load_seconds", run.load_seconds},
                              {"rows_per_second", run.rows_per_second().value_or(0)},
                              {"tokens_per_second", run.tokens_per_second().value_or(0)},
                              {"device_busy", run.device_busy.value_or(0)},
                              {"peak_host_bytes", maybe(monitor::peak_resident_bytes())},
                              {"held_back_by", run.held_back_by},
                              {"mfu", maybe(run.mfu)}};
  if (run.mfu_of_data_sheet) j["mfu_of"] = "data sheet";
  j["planned_bytes"] =
      run.limit_bytes ? maybe(run.planned_bytes) : nlohmann::ordered_json(nullptr);  // VADER has no plan
  j["limit_bytes"] = maybe(run.limit_bytes);
  j["token_budget"] = maybe(run.token_budget);
  j["peak_bytes"] = maybe(run.peak_bytes);
  if (const auto all = counters.find("rows"); all != counters.end()) j["rows_in_all"] = all->second;
  if (const auto blank = counters.find("blank lines"); blank != counters.end()) j["blank_lines"] = blank->second;
  add_results(j, counters, "");
  for (const SummaryModel& m : models) {
    if (models.size() == 1) break;
    nlohmann::ordered_json each = {{"name", m.name},
                                   {"model", m.run.model},
                                   {"device", m.run.device},
                                   {"precision", m.run.precision},
                                   {"tokens", m.run.stats.tokens},
                                   {"mfu", maybe(m.run.mfu)}};
    add_results(each, counters, m.name);
    j["models"].push_back(std::move(each));
  }
  const std::string text =
      j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";  // paths may contain any bytes
  if (path == "-")
    fmt::print("{}", text);
  else
    io::write_file_atomically(path, text);
}

}  // namespace brim::cli
