// SPDX-License-Identifier: Apache-2.0
#include "jobs/doctor_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/units.h"
#include "jobs/doctor.h"

namespace brim::jobs {
namespace {

constexpr double kBusy = 0.85;     // share of the time: requests wait for the device
constexpr double kMostly = 0.5;    // share of a request's time
constexpr double kRefused = 0.01;  // share of the requests

constexpr const char* kStages[] = {"parse", "tokenize", "queue", "infer", "write"};

// Increase of one counter, or of all counters with one name. A counter that fell, because the server restarted, counts
// as 0.
class Growth {
 public:
  Growth(const MetricValues& before, const MetricValues& after) : before_(before), after_(after) {}

  double of(std::string_view series) const { return std::max(0.0, at(after_, series) - at(before_, series)); }
  // Sum over all labels.
  double sum(const std::string& name) const {
    double total = 0;
    for (auto it = after_.lower_bound(name); it != after_.end() && it->first.starts_with(name); ++it) {
      const std::string_view labels = std::string_view(it->first).substr(name.size());
      if (labels.empty() || labels.front() == '{') total += of(it->first);  // otherwise a longer name
    }
    return total;
  }

 private:
  static double at(const MetricValues& values, std::string_view series) {
    const auto found = values.find(series);
    return found == values.end() ? 0 : found->second;
  }
  const MetricValues &before_, &after_;
};

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

double share_of(const ServerDiagnosis& d, std::string_view stage) {
  for (const auto& s : d.stages)
    if (s.name == stage) return s.share;
  return 0;
}

void find(ServerDiagnosis& d) {
  const auto add = [&](std::string what, std::string change) {
    d.findings.push_back({std::move(what), std::move(change)});
  };
  if (d.requests + d.texts + d.refused < 1) {
    add("no requests during the measurement", "repeat it under load");
    return;
  }
  const double all = d.requests + d.refused, moving = d.idle["switch"];
  if (share(d.refused, all) > kRefused)
    add(fmt::format("{} of the requests were rejected: texts arrive faster than they are processed",
                    percent(d.refused / all)),
        "");
  if (moving > 0.1)
    add(fmt::format("the device was idle for {} of the time while models were loaded ({} in {})", percent(moving),
                    format_count(std::llround(d.loads), "load"), format_duration(d.load_seconds)),
        "models evict each other: raise the memory limit, serve fewer models or set a longer keep-alive");
  if (d.busy >= kBusy) {
    add(fmt::format("the device is saturated: busy {} of the time", percent(d.busy)),
        d.batch_fill < 0.25 && share_of(d, "queue") < kMostly
            ? "batches are small: send several texts per request or more concurrent requests"
            : "use a lower precision, a smaller model (a ladder can switch under load) or a second server");
  } else if (share_of(d, "queue") > kMostly && moving <= 0.1) {
    add(fmt::format("texts were queued {} of the time while the device was busy {}", percent(share_of(d, "queue")),
                    percent(d.busy)),
        d.idle["pack"] + d.idle["collect"] > 0.2
            ? "the thread that feeds the device lacks CPU time: run fewer other processes or tokenization workers"
            : "texts arrive in bursts: spread them or let a ladder switch to a smaller model");
  }
  if (share_of(d, "tokenize") > kMostly)
    add(fmt::format("tokenization takes {} of the request time", percent(share_of(d, "tokenize"))),
        "use more tokenization workers or more cores");
  if (share_of(d, "parse") + share_of(d, "write") > kMostly)
    add(fmt::format("parsing and writing take {} of the request time",
                    percent(share_of(d, "parse") + share_of(d, "write"))),
        "use /score for rows; it streams them");
  if (d.findings.empty() && share_of(d, "infer") > kMostly)
    add(fmt::format("no bottleneck found: inference takes {} of the request time", percent(share_of(d, "infer"))),
        "use a lower precision or a smaller model for more speed");
  if (d.findings.empty()) add("no bottleneck found: no stage dominates", "");
}

}  // namespace

MetricValues read_metrics(std::string_view text) {
  MetricValues values;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    const size_t space = line.rfind(' ');  // labels may contain spaces
    double value = 0;
    if (space == std::string_view::npos || space == 0)
      fail(ErrorCode::bad_data, "invalid metrics line: {}", line.substr(0, 80));
    const std::string_view number = line.substr(space + 1);
    const auto [stop, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error != std::errc() || stop != number.data() + number.size()) {
      if (number != "NaN" && number != "+Inf" && number != "-Inf")
        fail(ErrorCode::bad_data, "invalid metrics line: {}", line.substr(0, 80));
      continue;
    }
    values.insert_or_assign(std::string(line.substr(0, space)), value);
  }
  if (!values.contains("brim_connections{state=\"busy\"}")) fail(ErrorCode::bad_data, "not metrics of a Brim server");
  return values;
}

ServerDiagnosis diagnose_server(const MetricValues& before, const MetricValues& after, double seconds) {
  const Growth grown(before, after);
  ServerDiagnosis d;
  d.seconds = seconds;
  double all = 0;
  for (const char* stage : kStages) {
    const double sum = grown.of(fmt::format("brim_stage_duration_seconds_sum{{stage=\"{}\"}}", stage)),
                 count = grown.of(fmt::format("brim_stage_duration_seconds_count{{stage=\"{}\"}}", stage));
    d.stages.push_back({stage, 1e3 * share(sum, count), sum});
    all += sum;
  }
  for (auto& stage : d.stages) stage.share = share(stage.share, all);
  d.requests = grown.of("brim_stage_duration_seconds_count{stage=\"infer\"}");
  for (const char* reason : {"overloaded", "deadline", "loading"})
    d.refused += grown.of(fmt::format("brim_rejected_total{{reason=\"{}\"}}", reason));
  d.texts = grown.sum("brim_texts_total");
  d.tokens = grown.sum("brim_tokens_total");
  d.busy = std::min(1.0, grown.sum("brim_device_busy_seconds_total") / seconds);
  for (const char* cause : {"no_work", "pack", "collect", "switch"})
    d.idle[cause] =
        std::min(1.0, grown.of(fmt::format("brim_device_idle_seconds_total{{cause=\"{}\"}}", cause)) / seconds);
  d.batches = grown.sum("brim_batches_total");
  d.batch_tokens = share(grown.sum("brim_batch_tokens_sum"), grown.sum("brim_batch_tokens_count"));
  d.batch_texts = share(grown.sum("brim_batch_sequences_sum"), grown.sum("brim_batch_sequences_count"));
  d.batch_fill = share(grown.sum("brim_batch_fill_ratio_sum"), grown.sum("brim_batch_fill_ratio_count"));
  d.loads = grown.sum("brim_model_load_seconds_count");
  d.load_seconds = grown.sum("brim_model_load_seconds_sum");
  find(d);
  return d;
}

std::string to_text(const ServerDiagnosis& d) {
  std::string text =
      fmt::format("{}: {} requests/s, {} texts/s, {} tokens/s; {} rejected\n", format_duration(d.seconds),
                  format_rate(d.requests / d.seconds), format_rate(d.texts / d.seconds),
                  format_rate(d.tokens / d.seconds), format_count(std::llround(d.refused)));
  for (const auto& stage : d.stages)
    text += fmt::format("  {:<9} {:>9.3f} ms {:>6}\n", stage.name, stage.mean_ms, percent(stage.share));
  text += fmt::format("device busy {}; idle: {} no work, {} packing, {} collecting, {} loading models\n",
                      percent(d.busy), percent(d.idle.at("no_work")), percent(d.idle.at("pack")),
                      percent(d.idle.at("collect")), percent(d.idle.at("switch")));
  if (d.batches > 0)
    text += fmt::format("{} batches of {:.0f} tokens and {:.1f} texts, {} full\n",
                        format_count(std::llround(d.batches)), d.batch_tokens, d.batch_texts, percent(d.batch_fill));
  for (const auto& found : d.findings)
    text += fmt::format("- {}{}{}\n", found.what, found.change.empty() ? "" : "; ", found.change);
  return text;
}

nlohmann::ordered_json to_json(const ServerDiagnosis& d) {
  auto stages = nlohmann::ordered_json::array(), findings = nlohmann::ordered_json::array();
  for (const auto& s : d.stages) stages.push_back({{"stage", s.name}, {"mean_ms", s.mean_ms}, {"share", s.share}});
  for (const auto& f : d.findings) findings.push_back({{"what", f.what}, {"change", f.change}});
  return {
      {"seconds", d.seconds},
      {"requests", d.requests},
      {"refused", d.refused},
      {"texts", d.texts},
      {"tokens", d.tokens},
      {"stages", stages},
      {"device_busy", d.busy},
      {"device_idle", d.idle},
      {"batches", {{"count", d.batches}, {"tokens", d.batch_tokens}, {"texts", d.batch_texts}, {"fill", d.batch_fill}}},
      {"model_loads", {{"count", d.loads}, {"seconds", d.load_seconds}}},
      {"findings", findings}};
}

}  // namespace brim::jobs
