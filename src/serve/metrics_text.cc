// SPDX-License-Identifier: Apache-2.0
// The text of /metrics.
#include <dirent.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "monitor/host.h"
#include "serve/telemetry.h"

namespace brim::serve {
namespace {

using Label = std::pair<std::string_view, std::string_view>;

double process_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int64_t open_descriptors() {
  int64_t n = -1;  // do not count the directory itself
  if (DIR* folder = ::opendir("/proc/self/fd")) {
    while (const dirent* entry = ::readdir(folder)) n += entry->d_name[0] != '.';
    ::closedir(folder);
  }
  return n;
}

bool is_success(int code) { return code / 100 == 2; }  // also 201 and 202, for jobs and queued items

// The duration and number of requests by path, with a route's methods together.
std::map<std::string_view, Histogram> durations_by_path(const Counts& counts, const auto& path_of) {
  std::map<std::string_view, Histogram> all;
  for (const auto& [route, histogram] : counts.durations) all[path_of(route)].merge(histogram);
  return all;
}

void put_single(MetricsText& text, const char* name, const char* type, const char* help, double value) {
  text.family(name, type, help);
  text.value(name, {}, value);
}

// Work of the models, and of the device.
void put_work(MetricsText& text, const ModelRegistry& models, const std::vector<ScorerWork>& works) {
  text.family("brim_batches_total", "counter", "batches computed, by execution mode");
  for (size_t m = 0; m < works.size(); ++m)
    for (const bool graph : {false, true}) {
      const Label labels[] = {{"model", models.name(m)}, {"kind", graph ? "graph" : "eager"}};
      const int64_t n = graph ? works[m].graph_batches : works[m].batches - works[m].graph_batches;
      text.value("brim_batches_total", labels, static_cast<double>(n));
    }
  const auto counter = [&](const char* name, const char* help, auto ScorerWork::*value) {
    text.family(name, "counter", help);
    for (size_t m = 0; m < works.size(); ++m) {
      const Label labels[] = {{"model", models.name(m)}};
      text.value(name, labels, static_cast<double>(works[m].*value));
    }
  };
  counter("brim_computed_tokens_total", "tokens in computed batches, including jobs and queues", &ScorerWork::tokens);
  counter("brim_padding_tokens_total", "padding tokens, added when a graph is larger than its batch",
          &ScorerWork::padding_tokens);
  counter("brim_cache_hits_total", "texts answered from the result cache", &ScorerWork::cache_hits);
  counter("brim_cache_misses_total", "texts that were not in the result cache", &ScorerWork::cache_misses);
  const auto sizes = [&](const char* name, const char* help, ValueCounts ScorerWork::*values) {
    bool has_family = false;
    for (size_t m = 0; m < works.size(); ++m) {
      if ((works[m].*values).counts.empty()) continue;  // VADER has no batches
      if (!std::exchange(has_family, true)) text.family(name, "histogram", help);
      const Label labels[] = {{"model", models.name(m)}};
      text.histogram(name, labels, works[m].*values);
    }
  };
  sizes("brim_batch_tokens", "tokens per batch", &ScorerWork::batch_tokens);
  sizes("brim_batch_sequences", "sequences (texts or windows) per batch", &ScorerWork::batch_sequences);
  sizes("brim_batch_fill_ratio", "tokens of a batch relative to its capacity", &ScorerWork::batch_fill);
  sizes("brim_prediction_error_ratio", "relative error of the predicted batch time: |predicted - measured| / measured",
        &ScorerWork::prediction_error);
  counter("brim_device_busy_seconds_total", "time the device was busy", &ScorerWork::busy_seconds);
  if (const ScorerWork all = work_of_all(works); all.queue != 0) {
    text.family("brim_device_idle_seconds_total", "counter", "time the device was idle, by cause");
    for (const auto& [cause, seconds] : by_cause(all.idle)) {
      const Label labels[] = {{"cause", cause}};
      text.value("brim_device_idle_seconds_total", labels, seconds);
    }
  }
  text.family("brim_model_load_seconds", "summary", "time to load a model's weights onto the device");
  for (size_t m = 0; m < works.size(); ++m) {
    const Label labels[] = {{"model", models.name(m)}};
    text.summary("brim_model_load_seconds", labels, works[m].loads, works[m].load_seconds);
  }
}

}  // namespace

struct Telemetry::Readings {
  std::vector<ScorerLoad> loads;
  std::vector<MemoryPlan> plans;
  std::vector<ScorerWork> works;
  std::vector<std::string> states;
};

Telemetry::Readings Telemetry::read_models() const {
  Readings now;
  for (size_t m = 0; m < models_.size(); ++m) {
    const ModelStatus status = models_.status(m);
    const Scorer* scorer = status.served == nullptr ? nullptr : status.served->scorer.get();
    now.states.push_back(status.state);
    now.loads.push_back(scorer == nullptr ? ScorerLoad() : scorer->load());
    now.plans.push_back(scorer == nullptr ? MemoryPlan() : scorer->plan());
    now.works.push_back(scorer == nullptr ? ScorerWork() : scorer->work());
  }
  return now;
}

std::string_view Telemetry::path_of(int route) const {
  return route < 0 ? std::string_view("") : routes_[static_cast<size_t>(route)].path;
}

std::string Telemetry::metrics_text() const {
  const Counts counts = metrics_.total();
  const Readings now = read_models();
  MetricsText text;
  put_requests(text, counts);
  put_models(text, counts, now);
  put_memory(text);
  put_work(text, models_, now.works);
  text.family("brim_model_state", "gauge", "1 for the current state of a model");
  for (size_t m = 0; m < now.states.size(); ++m) {
    const Label labels[] = {{"model", models_.name(m)}, {"state", now.states[m]}};
    text.value("brim_model_state", labels, 1);
  }
  put_ladders(text);
  put_durable(text);
  put_process(text, counts);
  put_aliases(text, counts, now);
  return text.take() + gpu().metrics_text;
}

void Telemetry::put_requests(MetricsText& text, const Counts& counts) const {
  const auto model_name = [&](int m) {
    return m < 0 ? std::string_view("") : std::string_view(models_.name(static_cast<size_t>(m)));
  };
  text.family("brim_requests_total", "counter", "requests; code 499 means that the client closed the connection");
  std::map<std::tuple<std::string_view, int, int>, uint64_t> by_path;  // the route's methods together
  for (const auto& [key, n] : counts.requests) {
    const auto& [route, model, code] = key;
    by_path[{path_of(route), model, code}] += n;
  }
  for (const auto& [key, n] : by_path) {
    const auto& [path, model, code] = key;
    const std::string status = std::to_string(code);
    const Label labels[] = {{"route", path}, {"model", model_name(model)}, {"code", status}};
    text.value("brim_requests_total", labels, static_cast<double>(n));
  }
  text.family("brim_texts_total", "counter", "scored texts, by the reason for the choice of model");
  for (size_t m = 0; m < models_.size(); ++m)
    for (size_t c = 0; c < 2; ++c)
      for (size_t r = 0; r < kReasonCount; ++r) {
        const auto reason = static_cast<Reason>(r);
        // The other reasons need a ladder.
        if (models_.ladders().empty() && reason != Reason::requested && reason != Reason::by_default) continue;
        const Label labels[] = {
            {"model", models_.name(m)}, {"class", c == 0 ? "interactive" : "bulk"}, {"reason", reason_name(reason)}};
        text.value("brim_texts_total", labels, static_cast<double>(counts.texts[m][c][r]));
      }
}

void Telemetry::put_models(MetricsText& text, const Counts& counts, const Readings& now) const {
  const auto by_model = [&](const char* name, const char* type, const char* help, const auto& value) {
    text.family(name, type, help);
    for (size_t m = 0; m < now.loads.size(); ++m) {  // models may have been added since
      const Label labels[] = {{"model", models_.name(m)}};
      text.value(name, labels, static_cast<double>(value(m)));
    }
  };
  by_model("brim_tokens_total", "counter", "tokens in scored texts", [&](size_t m) { return counts.tokens[m]; });
  by_model("brim_pairs_total", "counter", "pairs of a text and a zero-shot label",
           [&](size_t m) { return counts.pairs[m]; });
  by_model("brim_queue_texts", "gauge", "waiting texts", [&](size_t m) { return now.loads[m].texts; });
  by_model("brim_queue_tokens", "gauge", "tokens of waiting texts", [&](size_t m) { return now.loads[m].tokens; });
  by_model("brim_queue_wait_seconds", "gauge", "predicted queue time of a new text",
           [&](size_t m) { return now.loads[m].wait_seconds; });
  by_model("brim_model_planned_bytes", "gauge", "planned device memory of a resident model, without shared memory",
           [&](size_t m) { return now.plans[m].peak_bytes - now.plans[m].shared_bytes; });
}

void Telemetry::put_memory(MetricsText& text) const {
  const MemoryPlan memory = models_.planned();
  if (!memory.bytes.empty())
    text.family("brim_memory_planned_bytes", "gauge",
                "planned device memory of resident models by purpose, shared memory counted once");
  for (const auto& [purpose, bytes] : memory.bytes) {
    const Label labels[] = {{"tag", purpose}};
    text.value("brim_memory_planned_bytes", labels, static_cast<double>(bytes));
  }
  if (memory.limit_bytes > 0) {
    text.family("brim_memory_limit_bytes", "gauge", "device memory limit of the process");
    text.value("brim_memory_limit_bytes", {}, static_cast<double>(memory.limit_bytes));
  }
}

void Telemetry::put_ladders(MetricsText& text) const {
  {
    std::lock_guard lock(snapshot_mutex_);
    if (!ladder_switches_.empty())
      text.family("brim_ladder_switches_total", "counter", "changes of a ladder's active rung, by the new reason");
    for (size_t l = 0; l < ladder_switches_.size(); ++l)
      for (size_t r = 0; r < kReasonCount; ++r) {
        if (static_cast<Reason>(r) == Reason::requested) continue;  // never a ladder's own reason
        const Label labels[] = {{"ladder", models_.ladders()[l]->rules().name},
                                {"reason", reason_name(static_cast<Reason>(r))}};
        text.value("brim_ladder_switches_total", labels, static_cast<double>(ladder_switches_[l][r]));
      }
    if (held_bytes_) {
      text.family("brim_memory_held_bytes", "gauge", "device memory held by the process");
      text.value("brim_memory_held_bytes", {}, static_cast<double>(*held_bytes_));
    }
    if (mfu_) {
      text.family("brim_mfu_ratio", "gauge", "model FLOPs utilisation of the device");
      text.value("brim_mfu_ratio", {}, *mfu_);
    }
  }
  if (!models_.ladders().empty()) {
    text.family("brim_ladder_rung", "gauge", "active rung of a ladder for requests without options; 0 is the best");
    for (const auto& ladder : models_.ladders()) {
      const LadderView view = ladder->view(models_.unix_now());
      const Label labels[] = {{"ladder", view.name}};
      const auto active = std::find_if(view.rungs.begin(), view.rungs.end(),
                                       [&](const RungView& rung) { return rung.model == view.active; });
      text.value("brim_ladder_rung", labels, static_cast<double>(active - view.rungs.begin()));
    }
  }
  for (const bool accuracy : {true, false}) {
    const char* name = accuracy ? "brim_gate_accuracy_ratio" : "brim_gate_agreement_ratio";
    bool has_family = false;
    for (const auto& ladder : models_.ladders()) {
      const LadderView view = ladder->view(models_.unix_now());
      for (const RungView& rung : view.rungs) {
        if (!rung.gate.figures) continue;
        const std::optional<double> value =
            accuracy ? rung.gate.figures->macro_recall : std::optional(rung.gate.figures->agreement);
        if (!value) continue;
        if (!std::exchange(has_family, true))
          text.family(
              name, "gauge",
              accuracy ? "macro recall on the gate's rows" : "share of the gate's rows labelled as by the best model");
        const Label labels[] = {{"ladder", view.name}, {"model", rung.model}};
        text.value(name, labels, *value);
      }
    }
  }
}

void Telemetry::put_durable(MetricsText& text) const {
  if (!options_.queues.empty()) {
    text.family("brim_queue_items", "gauge", "items waiting in a queue");
    for (const std::string& name : durable_->queues().names()) {
      const Label labels[] = {{"queue", name}};
      text.value("brim_queue_items", labels, static_cast<double>(durable_->queues().find(name)->size()));
    }
  }
  if (durable_ != nullptr) {
    const JobsStore::Rows rows = durable_->jobs().rows_done();
    text.family("brim_job_rows_total", "counter", "rows processed by jobs, by status");
    for (const bool good : {true, false}) {
      const Label labels[] = {{"status", good ? "completed" : "failed"}};
      text.value("brim_job_rows_total", labels, static_cast<double>(good ? rows.completed : rows.failed));
    }
  }
}

void Telemetry::put_process(MetricsText& text, const Counts& counts) const {
  text.family("brim_request_duration_seconds", "histogram",
              "time from the first byte of a request to the last byte of its response");
  for (const auto& [path, histogram] : durations_by_path(counts, [this](int route) { return path_of(route); })) {
    const Label labels[] = {{"route", path}};
    text.histogram("brim_request_duration_seconds", labels, histogram);
  }
  text.family("brim_stage_duration_seconds", "histogram", "time of a scoring request, by stage");
  for (size_t s = 0; s < kStages; ++s) {
    const Label labels[] = {{"stage", stage_name(static_cast<Stage>(s))}};
    text.histogram("brim_stage_duration_seconds", labels, counts.stages[s]);
  }
  text.family("brim_rejected_total", "counter", "rejected requests, by reason");
  constexpr const char* kReasons[] = {"overloaded", "deadline", "draining", "loading", "body", "auth"};
  for (size_t i = 0; i < kRejections; ++i) {
    const Label labels[] = {{"reason", kReasons[i]}};
    text.value("brim_rejected_total", labels, static_cast<double>(counts.rejected[i]));
  }
  put_single(text, "brim_cancelled_total", "counter", "requests cancelled because the client disconnected",
             static_cast<double>(counts.cancelled));
  put_single(text, "brim_deadline_missed_total", "counter", "requests that missed their deadline",
             static_cast<double>(counts.deadlines_missed));
  if (server_ != nullptr) {
    text.family("brim_connections", "gauge", "open connections");
    const Label busy[] = {{"state", "busy"}}, idle[] = {{"state", "idle"}};
    const size_t working = server_->busy(), open = server_->connections();
    text.value("brim_connections", busy, static_cast<double>(working));
    text.value("brim_connections", idle, static_cast<double>(open > working ? open - working : 0));
    put_single(text, "brim_refused_connections_total", "counter", "connections refused over the limit",
               static_cast<double>(server_->refused_connections()));
  }
  put_single(text, "brim_process_resident_bytes", "gauge", "resident memory of the process",
             static_cast<double>(monitor::own_resident_bytes()));
  put_single(text, "brim_process_open_fds", "gauge", "open file descriptors", static_cast<double>(open_descriptors()));
  put_single(text, "brim_process_cpu_seconds_total", "counter", "CPU time", process_seconds());
  text.family("brim_build_info", "gauge", "always 1");
  const Label build[] = {{"version", version()}};
  text.value("brim_build_info", build, 1);
}

// Aliases for text-embeddings-inference's metric names.
void Telemetry::put_aliases(MetricsText& text, const Counts& counts, const Readings& now) const {
  uint64_t all = 0, succeeded = 0;
  for (const auto& [key, n] : counts.requests) {
    const auto& [route, model, code] = key;
    if (route < 0 || !routes_[static_cast<size_t>(route)].scores) continue;
    all += n;  // includes requests rejected before a model was chosen
    if (is_success(code)) succeeded += n;
  }
  put_single(text, "te_request_count", "counter", "scoring requests", static_cast<double>(all));
  put_single(text, "te_request_success", "counter", "successful scoring requests", static_cast<double>(succeeded));
  put_single(text, "te_request_failure", "counter", "failed scoring requests", static_cast<double>(all - succeeded));
  double queued = 0;
  for (const ScorerLoad& load : now.loads) queued += static_cast<double>(load.texts);
  put_single(text, "te_queue_size", "gauge", "waiting texts", queued);
  Histogram requests;
  for (const Histogram& slowest : counts.slowest) requests.merge(slowest);
  const auto alias = [&](const char* name, const char* help, const auto& values) {
    text.family(name, "histogram", help);
    text.histogram(name, {}, values);
  };
  alias("te_request_duration", "duration of a scoring request in seconds", requests);
  constexpr std::pair<const char*, Stage> kTimes[] = {{"te_request_tokenization_duration", Stage::tokenize},
                                                      {"te_request_queue_duration", Stage::queue},
                                                      {"te_request_inference_duration", Stage::infer}};
  for (const auto& [name, stage] : kTimes)
    alias(name, "duration of the stage in seconds", counts.stages[static_cast<size_t>(stage)]);
  if (const ScorerWork device = work_of_all(now.works); !device.batch_tokens.counts.empty()) {
    alias("te_batch_next_tokens", "tokens per batch", device.batch_tokens);
    alias("te_batch_next_size", "sequences per batch", device.batch_sequences);
  }
  auto durations = durations_by_path(counts, [this](int route) { return path_of(route); });
  for (const char* route : {"predict", "embed"}) {
    std::array<uint64_t, 2> n{};  // failed, successful
    for (const auto& [key, count] : counts.requests)
      if (path_of(std::get<0>(key)) == fmt::format("/{}", route)) n[is_success(std::get<2>(key))] += count;
    const auto named = [&](const char* suffix) { return fmt::format("te_{}_{}", route, suffix); };
    put_single(text, named("count").c_str(), "counter", "requests", static_cast<double>(n[0] + n[1]));
    put_single(text, named("success").c_str(), "counter", "successful requests", static_cast<double>(n[1]));
    put_single(text, named("failure").c_str(), "counter", "failed requests", static_cast<double>(n[0]));
    alias(named("duration").c_str(), "duration of a request in seconds", durations[fmt::format("/{}", route)]);
  }
}

}  // namespace brim::serve
