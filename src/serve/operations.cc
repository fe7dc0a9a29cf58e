// SPDX-License-Identifier: Apache-2.0
// Health and metrics routes. They do not use the scoring queues.
#include <dirent.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/clock.h"
#include "monitor/host.h"
#include "serve/service.h"

namespace brim::serve {
namespace {

using Json = nlohmann::ordered_json;
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

// Work of the models, and of the device.
void put_work(MetricsText& text, const std::vector<ServedModel>& models, const std::vector<ScorerWork>& works) {
  text.family("brim_batches_total", "counter", "batches computed, by execution mode");
  for (size_t m = 0; m < works.size(); ++m)
    for (const bool graph : {false, true}) {
      const Label labels[] = {{"model", models[m].name}, {"kind", graph ? "graph" : "eager"}};
      const int64_t n = graph ? works[m].graph_batches : works[m].batches - works[m].graph_batches;
      text.value("brim_batches_total", labels, static_cast<double>(n));
    }
  const auto counter = [&](const char* name, const char* help, auto ScorerWork::*value) {
    text.family(name, "counter", help);
    for (size_t m = 0; m < works.size(); ++m) {
      const Label labels[] = {{"model", models[m].name}};
      text.value(name, labels, static_cast<double>(works[m].*value));
    }
  };
  counter("brim_computed_tokens_total", "tokens in computed batches, including jobs and queues", &ScorerWork::tokens);
  counter("brim_padding_tokens_total", "padding tokens, added when a graph is larger than its batch",
          &ScorerWork::padding_tokens);
  const auto sizes = [&](const char* name, const char* help, ValueCounts ScorerWork::*values) {
    bool has_family = false;
    for (size_t m = 0; m < works.size(); ++m) {
      if ((works[m].*values).counts.empty()) continue;  // VADER has no batches
      if (!std::exchange(has_family, true)) text.family(name, "histogram", help);
      const Label labels[] = {{"model", models[m].name}};
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
    const Label labels[] = {{"model", models[m].name}};
    text.summary("brim_model_load_seconds", labels, works[m].loads, works[m].load_seconds);
  }
}

}  // namespace

bool Service::device_lost() const {
  const std::vector<Served> models = loaded();
  return std::any_of(models.begin(), models.end(), [](const Served& m) { return m->scorer->load().lost; });
}

void Service::ping(Call& call) { answer(call, ""); }

void Service::live(Call& call) { answer(call, R"({"status":"ok"})"); }

void Service::ready(Call& call) {
  if (draining_) throw Refusal{503, "Unhealthy", "draining", "Retry-After: 1\r\n"};
  if (device_lost() || gpu_readings().lost) throw Refusal{503, "Unhealthy", "the device was lost"};
  // The model that answers requests without a model name.
  int model = std::max(0, first_model({ModelKind::classifier, ModelKind::rules}));
  if (!options_.ladders.empty()) {
    const LadderView view = options_.ladders[0]->view(unix_now());
    if (view.active.empty()) throw Refusal{503, "Unhealthy", view.warnings.back(), retry_after(1)};
    model = find_model(view.active);
  }
  try {
    (void)model_at(model);
  } catch (const ModelBeingReplaced& replacing) {  // do not wait for it
    throw Refusal(replacing);
  }
  answer(call, R"({"status":"ok"})");
}

GpuReadings Service::gpu_readings() const {
  std::lock_guard lock(gpu_mutex_);
  return gpu_;
}

Service::HealthView Service::health_view(const GpuReadings& gpu_state) const {
  HealthView view{};
  view.warnings = gpu_state.warnings;
  const bool lost = device_lost() || gpu_state.lost;  // the driver also detects this on an idle device
  view.dead = lost || stuck();
  const auto warn = [&](const std::string& text) { view.warnings.push_back({"", text}); };
  if (lost) warn("the device was lost");
  if (!lost && view.dead) warn("a batch takes far longer than predicted");
  for (const auto& ladder : options_.ladders) {
    view.ladders.push_back(ladder->view(unix_now()));
    for (const std::string& warning : view.ladders.back().warnings) warn(warning);
  }
  for (size_t m = 0; m < slots_.size(); ++m) {
    std::lock_guard lock(slots_[m]->mutex);
    const std::string& name = options_.models[m].name;
    const bool reported = std::ranges::any_of(view.ladders, [&](const LadderView& ladder) {
      return std::ranges::any_of(
          ladder.rungs, [&](const RungView& rung) { return rung.model == name && rung.fault == slots_[m]->fault; });
    });
    if (!slots_[m]->fault.empty() && !reported) warn(fmt::format("model {}: {}", name, slots_[m]->fault));
  }
  {
    std::lock_guard lock(gpu_mutex_);
    for (const auto& [ladder, faults] : gate_faults_)
      for (const std::string& fault : faults) warn(fault);
  }
  if (blocking_work_ != nullptr) {
    for (const std::string& fault : blocking_work_->queues().faults()) warn(fault);
    for (const std::string& fault : blocking_work_->jobs().faults()) warn(fault);
  }
  for (const Served& m : loaded()) {
    const ScorerLoad load = m->scorer->load();
    if (load.not_finite_texts > 0) warn(fmt::format("model {}: the output is not finite", m->name));
    view.wait_seconds = std::max(view.wait_seconds, load.wait_seconds);
    view.texts += load.texts;
    view.tokens += load.tokens;
  }
  const bool degraded = !gpu_state.healthy || std::ranges::any_of(view.warnings, &Warning::degrades);
  view.status = draining_ ? "draining" : view.dead ? "unhealthy" : degraded ? "degraded" : "ok";
  return view;
}

std::vector<std::string> Service::warnings() const { return sentences(health_view({}).warnings); }

std::vector<std::string> sentences(const std::vector<Warning>& warnings) {
  std::vector<std::string> texts;
  for (const Warning& warning : warnings) texts.push_back(warning.text);
  return texts;
}

void Service::health(Call& call) {
  const GpuReadings gpu_state = this->gpu_readings();
  const HealthView view = health_view(gpu_state);
  Json ladders = nullptr;
  if (!view.ladders.empty()) ladders = Json::object();
  for (const LadderView& ladder : view.ladders) {
    Json rungs = Json::array();
    for (const RungView& rung : ladder.rungs)
      rungs.push_back({{"model", rung.model},
                       {"available", rung.available},
                       {"gate", verdict_name(rung.gate.verdict)},
                       {"why", rung.fault.empty() ? rung.gate.why : rung.fault}});
    ladders[ladder.name] = {{"active", ladder.active}, {"reason", reason_name(ladder.reason)}, {"rungs", rungs}};
  }
  Json gpu = Json::parse(gpu_state.health_json), busy, mfu;
  {
    std::lock_guard lock(snapshot_mutex_);
    if (busy_) busy = *busy_ * 100;
    if (mfu_) mfu = *mfu_ * 100;
  }
  if (gpu.is_object() && gpu_state.computes) {
    if (view.dead) gpu["healthy"] = false;
    gpu["mfu_pct"] = mfu;
    gpu["device_busy_pct"] = busy;
  }
  const std::vector<Served> models = loaded();
  const Json all = {
      {"status", view.status},
      {"version", version()},
      {"uptime_seconds", static_cast<int64_t>(seconds_since(started_ns_))},
      {"model", view.ladders.empty() ? options_.models[0].name : view.ladders[0].active},
      {"ladder", ladders},
      {"queue",
       {{"requests", at_work_.load()},
        {"texts", view.texts},
        {"tokens", view.tokens},
        {"wait_ms", static_cast<int64_t>(view.wait_seconds * 1e3)}}},
      {"device",
       {{"name", models.empty() ? Json() : Json(models[0]->scorer->device())}, {"busy_pct", busy}, {"mfu_pct", mfu}}},
      {"gpu", gpu},
      {"warnings", sentences(view.warnings)}};
  std::string body = all.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (!draining_ && !view.dead) return answer(call, std::move(body));
  Response response{.status = 503, .body = std::move(body)};
  response.fields = fmt::format("Retry-After: 1\r\nX-Request-Id: {}\r\n", call.id);
  call.done = true;
  call.exchange->answer(std::move(response));
}

void Service::metrics(Call& call) {
  const Counts counts = metrics_->total();
  MetricsText text;
  const auto model_name = [&](int m) -> std::string_view {
    return m < 0 ? std::string_view("") : std::string_view(options_.models[static_cast<size_t>(m)].name);
  };
  const auto route_path = [](int r) -> std::string_view { return r < 0 ? "" : routes()[static_cast<size_t>(r)].path; };
  text.family("brim_requests_total", "counter", "requests; code 499 means that the client closed the connection");
  uint64_t all = 0, succeeded = 0;
  std::map<std::tuple<std::string_view, int, int>, uint64_t> requests_by_path;  // the route's methods together
  std::map<std::string_view, Histogram> durations_by_path;
  for (const auto& [route, histogram] : counts.durations) durations_by_path[route_path(route)].merge(histogram);
  for (const auto& [key, n] : counts.requests) {
    const auto& [route, model, code] = key;
    requests_by_path[{route_path(route), model, code}] += n;
    if (route < 0 || !routes()[static_cast<size_t>(route)].scores) continue;
    all += n;  // includes requests rejected before a model was chosen
    if (is_success(code)) succeeded += n;
  }
  for (const auto& [key, n] : requests_by_path) {
    const auto& [path, model, code] = key;
    const std::string status = std::to_string(code);
    const Label labels[] = {{"route", path}, {"model", model_name(model)}, {"code", status}};
    text.value("brim_requests_total", labels, static_cast<double>(n));
  }
  text.family("brim_texts_total", "counter", "scored texts, by the reason for the choice of model");
  for (size_t m = 0; m < options_.models.size(); ++m)
    for (size_t c = 0; c < 2; ++c)
      for (size_t r = 0; r < kReasonCount; ++r) {
        const auto reason = static_cast<Reason>(r);
        // The other reasons need a ladder.
        if (options_.ladders.empty() && reason != Reason::requested && reason != Reason::by_default) continue;
        const Label labels[] = {{"model", options_.models[m].name},
                                {"class", c == 0 ? "interactive" : "bulk"},
                                {"reason", reason_name(reason)}};
        text.value("brim_texts_total", labels, static_cast<double>(counts.texts[m][c][r]));
      }
  const auto by_model = [&](const char* name, const char* type, const char* help, const auto& value) {
    text.family(name, type, help);
    for (size_t m = 0; m < options_.models.size(); ++m) {
      const Label labels[] = {{"model", options_.models[m].name}};
      text.value(name, labels, static_cast<double>(value(m)));
    }
  };
  std::vector<ScorerLoad> loads(slots_.size());
  std::vector<MemoryPlan> plans(slots_.size());
  std::vector<ScorerWork> works(slots_.size());
  std::vector<std::string> states(slots_.size());
  for (size_t m = 0; m < slots_.size(); ++m) {
    std::lock_guard lock(slots_[m]->mutex);
    states[m] = slots_[m]->state_now();
    if (slots_[m]->served == nullptr) continue;
    const Scorer& scorer = *slots_[m]->served->scorer;
    loads[m] = scorer.load();
    plans[m] = scorer.plan();
    works[m] = scorer.work();
  }
  by_model("brim_tokens_total", "counter", "tokens in scored texts", [&](size_t m) { return counts.tokens[m]; });
  by_model("brim_queue_texts", "gauge", "waiting texts", [&](size_t m) { return loads[m].texts; });
  by_model("brim_queue_tokens", "gauge", "tokens of waiting texts", [&](size_t m) { return loads[m].tokens; });
  by_model("brim_queue_wait_seconds", "gauge", "predicted queue time of a new text",
           [&](size_t m) { return loads[m].wait_seconds; });
  by_model("brim_model_planned_bytes", "gauge", "planned device memory of a resident model, without shared memory",
           [&](size_t m) { return plans[m].peak_bytes - plans[m].shared_bytes; });
  const MemoryPlan memory = planned();
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
  put_work(text, options_.models, works);
  text.family("brim_model_state", "gauge", "1 for the current state of a model");
  for (size_t m = 0; m < states.size(); ++m) {
    const Label labels[] = {{"model", options_.models[m].name}, {"state", states[m]}};
    text.value("brim_model_state", labels, 1);
  }
  {
    std::lock_guard lock(snapshot_mutex_);
    if (!ladder_switches_.empty())
      text.family("brim_ladder_switches_total", "counter", "changes of a ladder's active rung, by the new reason");
    for (size_t l = 0; l < ladder_switches_.size(); ++l)
      for (size_t r = 0; r < kReasonCount; ++r) {
        if (static_cast<Reason>(r) == Reason::requested) continue;  // never a ladder's own reason
        const Label labels[] = {{"ladder", options_.ladders[l]->rules().name},
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
  if (!options_.queues.empty()) {
    text.family("brim_queue_items", "gauge", "items waiting in a queue");
    for (const std::string& name : blocking_work_->queues().names()) {
      const Label labels[] = {{"queue", name}};
      text.value("brim_queue_items", labels, static_cast<double>(blocking_work_->queues().find(name)->size()));
    }
  }
  if (blocking_work_ != nullptr) {
    const JobsStore::Rows rows = blocking_work_->jobs().rows_done();
    text.family("brim_job_rows_total", "counter", "rows processed by jobs, by status");
    for (const bool good : {true, false}) {
      const Label labels[] = {{"status", good ? "completed" : "failed"}};
      text.value("brim_job_rows_total", labels, static_cast<double>(good ? rows.completed : rows.failed));
    }
  }
  if (!options_.ladders.empty()) {
    text.family("brim_ladder_rung", "gauge", "active rung of a ladder for requests without options; 0 is the best");
    for (const auto& ladder : options_.ladders) {
      const LadderView view = ladder->view(unix_now());
      const Label labels[] = {{"ladder", view.name}};
      const auto active = std::find_if(view.rungs.begin(), view.rungs.end(),
                                       [&](const RungView& rung) { return rung.model == view.active; });
      text.value("brim_ladder_rung", labels, static_cast<double>(active - view.rungs.begin()));
    }
  }
  for (const bool accuracy : {true, false}) {
    const char* name = accuracy ? "brim_gate_accuracy_ratio" : "brim_gate_agreement_ratio";
    bool has_family = false;
    for (const auto& ladder : options_.ladders) {
      const LadderView view = ladder->view(unix_now());
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
  text.family("brim_request_duration_seconds", "histogram",
              "time from the first byte of a request to the last byte of its response");
  for (const auto& [path, histogram] : durations_by_path) {
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
  const auto single = [&](const char* name, const char* type, const char* help, double value) {
    text.family(name, type, help);
    text.value(name, {}, value);
  };
  single("brim_cancelled_total", "counter", "requests cancelled because the client disconnected",
         static_cast<double>(counts.cancelled));
  single("brim_deadline_missed_total", "counter", "requests that missed their deadline",
         static_cast<double>(counts.deadlines_missed));
  text.family("brim_connections", "gauge", "open connections");
  const Label busy[] = {{"state", "busy"}}, idle[] = {{"state", "idle"}};
  const size_t working = server_->busy(), open = server_->connections();
  text.value("brim_connections", busy, static_cast<double>(working));
  text.value("brim_connections", idle, static_cast<double>(open > working ? open - working : 0));
  single("brim_refused_connections_total", "counter", "connections refused over the limit",
         static_cast<double>(server_->refused_connections()));
  single("brim_process_resident_bytes", "gauge", "resident memory of the process",
         static_cast<double>(monitor::own_resident_bytes()));
  single("brim_process_open_fds", "gauge", "open file descriptors", static_cast<double>(open_descriptors()));
  single("brim_process_cpu_seconds_total", "counter", "CPU time", process_seconds());
  text.family("brim_build_info", "gauge", "always 1");
  const Label build[] = {{"version", version()}};
  text.value("brim_build_info", build, 1);
  // Aliases for text-embeddings-inference's metric names.
  single("te_request_count", "counter", "scoring requests", static_cast<double>(all));
  single("te_request_success", "counter", "successful scoring requests", static_cast<double>(succeeded));
  single("te_request_failure", "counter", "failed scoring requests", static_cast<double>(all - succeeded));
  double queued = 0;
  for (const ScorerLoad& load : loads) queued += static_cast<double>(load.texts);
  single("te_queue_size", "gauge", "waiting texts", queued);
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
  if (const ScorerWork device = work_of_all(works); !device.batch_tokens.counts.empty()) {
    alias("te_batch_next_tokens", "tokens per batch", device.batch_tokens);
    alias("te_batch_next_size", "sequences per batch", device.batch_sequences);
  }
  for (const char* route : {"predict", "embed"}) {
    std::array<uint64_t, 2> n{};  // failed, successful
    for (const auto& [key, count] : counts.requests)
      if (route_path(std::get<0>(key)) == fmt::format("/{}", route)) n[is_success(std::get<2>(key))] += count;
    const auto named = [&](const char* suffix) { return fmt::format("te_{}_{}", route, suffix); };
    single(named("count").c_str(), "counter", "requests", static_cast<double>(n[0] + n[1]));
    single(named("success").c_str(), "counter", "successful requests", static_cast<double>(n[1]));
    single(named("failure").c_str(), "counter", "failed requests", static_cast<double>(n[0]));
    alias(named("duration").c_str(), "duration of a request in seconds", durations_by_path[fmt::format("/{}", route)]);
  }
  std::string body = text.take();
  {
    std::lock_guard lock(gpu_mutex_);
    body += gpu_.metrics_text;
  }
  answer(call, std::move(body), "text/plain; version=0.0.4; charset=utf-8");
}

}  // namespace brim::serve
