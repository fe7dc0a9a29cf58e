// SPDX-License-Identifier: Apache-2.0
#include "cli/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/units.h"
#include "cli/render.h"
#include "io/atomic_file.h"

namespace brim::cli {

using engine::TextModel;

namespace {

SummaryModel summary_of(TextModel& model, const std::string& name) {
  engine::Engine* engine = model.engine();
  return {name,
          model.name(),
          model.device_name(),
          model.precision_text(),
          engine == nullptr ? "" : engine->precision_reason(),
          model.stats()};
}

// Combined statistics of several models on one device.
engine::RunStats together(const std::vector<TextModel*>& models, const std::vector<SummaryModel>& summaries,
                          const engine::PipelineStats& counted) {
  const auto first = std::find_if(models.begin(), models.end(), [](TextModel* m) { return m->engine() != nullptr; });
  if (models.size() == 1 || first == models.end()) return summaries[0].stats;
  engine::Engine& engine = *(*first)->engine();
  engine::RunStats all = run_stats(&engine.shape(), &engine.plan(), counted);
  all.peak_bytes = engine::held_bytes(engine.device());
  all.token_budget = 0;  // differs per model
  all.mfu = 0;
  std::vector<const plan::Plan*> plans;
  for (size_t m = 0; m < models.size(); ++m) {
    if (models[m]->engine() == nullptr) continue;
    const plan::Plan& plan = models[m]->engine()->plan();
    plans.push_back(&plan);
    all.limit_bytes = std::max(all.limit_bytes, plan.limit_bytes);
    all.mfu = all.mfu < 0 || summaries[m].stats.mfu < 0 ? -1 : all.mfu + summaries[m].stats.mfu;
  }
  all.planned_bytes = planned_bytes(plans);
  return all;
}

}  // namespace

std::string counter_name(const std::string& model, std::string_view what) {
  return model.empty() ? std::string(what) : fmt::format("{}: {}", model, what);
}

Summary summarize(const std::vector<TextModel*>& models, const std::vector<std::string>& names,
                  const engine::PipelineStats& counted, const std::map<std::string, int64_t>& counters,
                  double load_seconds) {
  Summary s;
  s.counted = counted;
  s.counters = counters;
  s.load_seconds = load_seconds;
  for (size_t m = 0; m < models.size(); ++m) {
    s.models.push_back(summary_of(*models[m], names[m]));
    const engine::Engine* engine = models[m]->engine();
    s.on_card = s.on_card || (engine != nullptr && engine->plan().device.kind == device::DeviceKind::cuda);
  }
  s.stats = together(models, s.models, counted);
  s.stats.held_back_by = rendered(s.stats.held_back_by);
  return s;
}

Summary summarize(TextModel& model, const engine::PipelineStats& counted,
                  const std::map<std::string, int64_t>& counters, double load_seconds) {
  return summarize(std::vector<TextModel*>{&model}, {""}, counted, counters, load_seconds);
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

nlohmann::ordered_json known_or_null(double value) {
  return value >= 0 ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

}  // namespace

std::string device_line(const engine::RunStats& s, bool on_card) {
  std::string out = fmt::format("device busy {:.1f} %", s.device_busy * 100);
  if (s.mfu > 1)  // impossible: exceeds the peak
    out += fmt::format(" · compute used over 100 % of peak (MFU): the assumed peak is too low{}",
                       on_card ? "" : ", measure it with brim plan --measure");
  else if (s.mfu >= 0)
    out += fmt::format(" · compute used {:.1f} % of peak (MFU{})", s.mfu * 100, s.mfu_note);
  if (s.planned_bytes > 0)
    out += fmt::format(" · memory planned {} of {}", format_bytes(s.planned_bytes), format_bytes(s.limit_bytes));
  if (s.peak_bytes >= 0)
    out += fmt::format(" · {} {}", on_card ? "used on the GPU" : "peak resident", format_bytes(s.peak_bytes));
  if (s.token_budget > 0) out += fmt::format(" · batches of up to {} tokens", format_count(s.token_budget));
  return out;
}

std::string Summary::text() const {
  std::string out = fmt::format("{} in {} · {}/s", format_count(counted.rows, "row"), format_duration(counted.seconds),
                                format_count(static_cast<int64_t>(stats.rows_per_second), "row"));
  if (counted.tokens > 0) out += fmt::format(" · {} tokens/s", format_si(stats.tokens_per_second));
  if (const auto all = counters.find("rows"); all != counters.end() && all->second > counted.rows)
    out += fmt::format(" · {} in total, including the interrupted run", format_count(all->second, "row"));
  if (const auto blank = counters.find("blank lines"); blank != counters.end() && blank->second > 0)
    out += fmt::format(" · {} skipped", format_count(blank->second, "blank line"));
  out += "\n";
  for (const SummaryModel& m : models) {
    out += fmt::format("{}{} on {} {}{}", m.name.empty() ? "" : m.name + ": ", m.model, m.device,
                       m.model == "vader" ? "(rules)" : "in " + m.precision,
                       m.precision_reason.empty() ? "" : " (" + m.precision_reason + ")");
    if (models.size() > 1 && m.stats.tokens > 0)
      out += fmt::format(" · {} tokens/s", format_si(m.stats.tokens_per_second));
    const std::string results = results_line(counters, m.name);
    out += models.size() > 1 && !results.empty() ? "\n  " + results + "\n" : "\n";
  }
  out += device_line(stats, on_card) + "\n";
  if (const std::string results = results_line(counters, ""); !results.empty()) out += results + "\n";
  if (const auto bad = counters.find("bad rows"); bad != counters.end())
    out += fmt::format("bad rows: {}\n", format_count(bad->second));
  if (counted.truncated_rows > 0)
    out += fmt::format("truncated texts: {} (use --long-text window-mean to score them completely)\n",
                       format_count(counted.truncated_rows));
  return out + fmt::format("limited by: {}\n", stats.held_back_by);
}

void Summary::write_json(const std::string& path) const {
  const auto joined = [&](std::string SummaryModel::*part) {
    std::string all;
    for (const SummaryModel& m : models) all += (all.empty() ? "" : ", ") + m.*part;
    return all;
  };
  std::string device = models[0].device;
  for (const SummaryModel& m : models)
    if (m.model != "vader") device = m.device;  // rules use no device
  nlohmann::ordered_json j = {{"schema_version", 1},
                              {"model", joined(&SummaryModel::model)},
                              {"device", device},
                              {"precision", joined(&SummaryModel::precision)},
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
                              {"peak_host_bytes", monitor::peak_resident_bytes()},
                              {"held_back_by", stats.held_back_by}};
  j["mfu"] = known_or_null(stats.mfu);
  if (!stats.mfu_note.empty()) j["mfu_of"] = "data sheet";
  // VADER has no plan.
  for (const auto& [name, value] :
       {std::pair("planned_bytes", stats.planned_bytes), std::pair("limit_bytes", stats.limit_bytes),
        std::pair("token_budget", stats.token_budget)})
    j[name] = value > 0 ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
  j["peak_bytes"] = stats.peak_bytes >= 0 ? nlohmann::ordered_json(stats.peak_bytes) : nlohmann::ordered_json(nullptr);
  if (const auto all = counters.find("rows"); all != counters.end()) j["rows_in_all"] = all->second;
  if (const auto blank = counters.find("blank lines"); blank != counters.end()) j["blank_lines"] = blank->second;
  add_results(j, counters, "");
  for (const SummaryModel& m : models) {
    if (models.size() == 1) break;
    nlohmann::ordered_json each = {{"name", m.name},           {"model", m.model},
                                   {"device", m.device},       {"precision", m.precision},
                                   {"tokens", m.stats.tokens}, {"mfu", known_or_null(m.stats.mfu)}};
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
