// SPDX-License-Identifier: Apache-2.0
// Dashboard figures, sampled once per second for all clients.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "serve/telemetry.h"

namespace brim::serve {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kRecentSamples = 6;  // window of rates and percentiles, in seconds
constexpr size_t kMinutes = 15;       // window of the histograms
constexpr size_t kMaxSwitches = 20;
constexpr size_t kMaxJobs = 20;

int64_t unix_ms_now() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string text_of_json(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// A model loaded since the earlier sample restarts its counters.
double increase(double before, double after) { return std::max(0.0, after - before); }

}  // namespace

std::string Telemetry::snapshot() const {
  std::lock_guard lock(snapshot_mutex_);
  return snapshot_;
}

// Reads the counters, and adds the models and what waits for them to `s`.
Telemetry::Sample Telemetry::take_sample(DashboardSnapshot& s) const {
  Sample now;
  now.ns = now_ns();
  now.counts = metrics_.total();
  for (const auto& [key, n] : now.counts.requests) now.requests += n;
  for (const Histogram& slowest : now.counts.slowest) now.requests_by_duration.merge(slowest);
  std::vector<ScorerWork> works;
  for (size_t m = 0; m < models_.size(); ++m) {
    const ModelStatus status = models_.status(m);
    now.texts.push_back(now.counts.texts_of(m));
    now.scored.push_back(now.texts.back() + status.running_texts);
    DashboardModel model;
    model.id = models_.name(m);
    model.base = models_.base(m);
    model.state = status.state;
    model.keep_alive_s = status.keep_alive_left;
    if (status.served != nullptr) {
      const Scorer& scorer = *status.served->scorer;
      const MemoryPlan plan = scorer.plan();
      const ScorerWork work = scorer.work();
      const ScorerLoad load = scorer.load();
      if (scorer.kind() != ModelKind::rules) model.precision = scorer.precision();
      if (plan.peak_bytes > 0) model.bytes = plan.peak_bytes - plan.shared_bytes;
      if (plan.tokens_per_interactive_batch > 0) model.token_budget = plan.tokens_per_interactive_batch;
      s.queue.interactive_tokens += load.tokens - load.bulk_tokens;
      s.queue.bulk_tokens += load.bulk_tokens;
      if (s.device.name.empty() || work.flops_per_second > 0) s.device.name = scorer.device();
      works.push_back(work);
    }
    s.models.push_back(std::move(model));
  }
  now.work = work_of_all(works);
  return now;
}

void Telemetry::add_totals(DashboardSnapshot& s, const Sample& now, const HealthView& health) const {
  const Counts& counts = now.counts;
  s.batches.batches = now.work.batches;
  s.queue.wait_ms = health.wait_seconds * 1e3;
  s.queue.limit_ms = options_.max_queue_ms;
  for (const uint64_t n : counts.rejected) s.queue.rejected += static_cast<int64_t>(n);
  s.queue.cancelled = static_cast<int64_t>(counts.cancelled);
  s.queue.late = static_cast<int64_t>(counts.deadlines_missed);
  for (const uint64_t n : now.texts) s.texts += static_cast<int64_t>(n);
  for (const uint64_t n : counts.tokens) s.tokens += static_cast<int64_t>(n);
  s.requests = static_cast<int64_t>(now.requests);
  MemoryPlan memory = models_.planned();
  if (memory.peak_bytes > 0) s.device.planned = memory.peak_bytes;
  if (memory.limit_bytes > 0) s.device.limit = memory.limit_bytes;
  s.device.tags = std::move(memory.bytes);
}

void Telemetry::add_rates(DashboardSnapshot& s, const Sample& previous, const Sample& now) {
  const double seconds = static_cast<double>(now.ns - previous.ns) * 1e-9;
  const auto per_second = [&](double n) { return n / seconds; };
  uint64_t texts = 0, tokens = 0;
  for (size_t m = 0; m < std::min(now.texts.size(), previous.scored.size()); ++m) {
    // Failed texts of a bulk call are subtracted at its end.
    const uint64_t added = std::max(now.scored[m], previous.scored[m]) - previous.scored[m];
    texts += added;
    tokens += now.counts.tokens[m] - previous.counts.tokens[m];
    s.models[m].texts_s = per_second(static_cast<double>(added));
    const Histogram latency = now.counts.models[m].since(previous.counts.models[m]);
    if (latency.count() > 0) s.models[m].p99_ms = latency.quantile(0.99) * 1e3;
  }
  s.texts_s = per_second(static_cast<double>(texts));
  // The device counts tokens by batch; jobs are counted in blocks, which take long.
  s.tokens_s =
      per_second(now.work.queue == 0
                     ? static_cast<double>(tokens)
                     : std::max(0.0, static_cast<double>(now.work.tokens) - static_cast<double>(previous.work.tokens)));
  s.requests_s = per_second(static_cast<double>(now.requests - previous.requests));
  const Histogram latency = now.requests_by_duration.since(previous.requests_by_duration);
  if (latency.count() > 0) {
    s.p50_ms = latency.quantile(0.5) * 1e3;
    s.p95_ms = latency.quantile(0.95) * 1e3;
    s.p99_ms = latency.quantile(0.99) * 1e3;
  }
  add_device_rates(s, previous, now, seconds);
}

void Telemetry::add_device_rates(DashboardSnapshot& s, const Sample& previous, const Sample& now, double seconds) {
  const double busy = std::min(1.0, increase(previous.work.busy_seconds, now.work.busy_seconds) / seconds);
  const double batches = increase(static_cast<double>(previous.work.batches), static_cast<double>(now.work.batches));
  s.device.busy = busy;
  if (const double rate = now.work.flops_per_second; rate > 0)
    s.device.mfu = increase(previous.work.flops, now.work.flops) / seconds / rate;
  s.batches.batches_s = batches / seconds;
  if (now.work.queue != 0) {
    const auto before = by_cause(previous.work.idle);
    size_t cause = 0;
    for (const auto& [name, after] : by_cause(now.work.idle))
      s.batches.idle.emplace_back(name, std::min(1.0, increase(before[cause++].second, after) / seconds));
  }
  if (batches > 0) {
    s.batches.mean_tokens =
        increase(static_cast<double>(previous.work.tokens), static_cast<double>(now.work.tokens)) / batches;
    s.batches.fill = increase(previous.work.batch_fill.sum, now.work.batch_fill.sum) / batches;
    s.batches.graph_share =
        increase(static_cast<double>(previous.work.graph_batches), static_cast<double>(now.work.graph_batches)) /
        batches;
  }
}

void Telemetry::add_histograms(DashboardSnapshot& s, const Sample& oldest, const Sample& now) {
  for (size_t i = 0; i < Histogram::kBounds; ++i) {
    LatencyBucket bucket;
    bucket.le_ms = Histogram::bounds()[i] * 1e3;
    for (size_t stage = 0; stage < kStages; ++stage) {
      const uint64_t before = oldest.counts.slowest[stage].bucket(i);
      if (const uint64_t n = now.counts.slowest[stage].bucket(i) - before; n > 0)
        bucket.stages[stage_name(static_cast<Stage>(stage))] = n;
    }
    s.buckets.push_back(std::move(bucket));
  }
  for (size_t i = 0; i < now.work.batch_tokens.counts.size(); ++i) {
    const ValueCounts& current = now.work.batch_tokens;
    const bool known = !oldest.work.batch_tokens.counts.empty();
    const int64_t before = known ? oldest.work.batch_tokens.counts[i] : 0;
    s.batches.tokens.emplace_back(i < current.bounds.size() ? std::optional(current.bounds[i]) : std::nullopt,
                                  std::max<int64_t>(0, current.counts[i] - before));
  }
}

void Telemetry::add_ladders(DashboardSnapshot& s, const HealthView& health, const Counts& oldest,
                            const Counts& now) const {
  for (size_t l = 0; l < health.ladders.size(); ++l) {
    DashboardLadder ladder{health.ladders[l], schedule_of_day(*models_.ladders()[l], s.t_unix_ms / 1000), {}, {}};
    if (const auto& schedule = models_.ladders()[l]->rules().schedule) ladder.zone = schedule->zone().name();
    double all = 0, spilled = 0;
    for (size_t i = 0; i < kReasonCount; ++i) {
      const auto reason = static_cast<Reason>(i);
      const auto n = static_cast<double>(now.texts_by(reason) - oldest.texts_by(reason));
      all += n;
      if (reason == Reason::load) spilled = n;
    }
    if (all > 0) ladder.spill_share = spilled / all;
    s.ladders.push_back(std::move(ladder));
  }
}

void Telemetry::add_durable(DashboardSnapshot& s) const {
  if (durable_ == nullptr) return;
  for (const std::string& name : durable_->queues().names())
    s.queues.push_back(durable_->queues().find(name)->describe());
  for (const Job& job : durable_->jobs().list(kMaxJobs)) {
    s.jobs.push_back(to_json(job));
    s.jobs.back().erase("errors");  // may quote a row; /jobs/ID has them, with its own scope
  }
}

DashboardSnapshot Telemetry::figures(std::optional<int64_t> held_bytes, const HealthView& health,
                                     const GpuReadings& gpu) {
  DashboardSnapshot s;
  s.t_unix_ms = unix_ms_now();
  s.state = health.status;
  s.version = version();
  s.uptime_s = seconds_since(state_.started_ns);
  s.model = health.ladders.empty() ? models_.name(0) : health.ladders[0].active;
  s.reason = health.ladders.empty() ? "default" : reason_name(health.ladders[0].reason);
  s.warnings = sentences(health.warnings);
  s.device.held = held_bytes;
  s.device.gpu = OrderedJson::parse(gpu.health_json);
  Sample now = take_sample(s);
  add_totals(s, now, health);
  if (!recent_.empty()) add_rates(s, recent_.front(), now);
  // The first minute begins at the start of the server; a late first sample would hide earlier requests.
  if (minutes_.empty()) minutes_.emplace_back().ns = state_.started_ns;
  add_histograms(s, minutes_.front(), now);
  add_ladders(s, health, minutes_.front().counts, now.counts);
  add_durable(s);

  if (now.ns - minutes_.back().ns > 60'000'000'000) {
    minutes_.push_back(now);
    if (minutes_.size() > kMinutes) minutes_.pop_front();
  }
  recent_.push_back(std::move(now));
  if (recent_.size() > kRecentSamples) recent_.pop_front();
  return s;
}

void Telemetry::sample(std::optional<int64_t> held_bytes) {
  const GpuReadings gpu_state = gpu();
  const HealthView view = health(gpu_state);
  DashboardSnapshot s = figures(held_bytes, view, gpu_state);
  for (size_t l = 0; l < models_.ladders().size(); ++l) note_rung(l);
  std::set<std::string> kinds;
  for (const Warning& warning : view.warnings) {
    const std::string& kind = warning.kind.empty() ? warning.text : warning.kind;
    if (!kinds.insert(kind).second || warned_.contains(kind)) continue;
    events_.post("warning", text_of_json({{"t_unix_ms", s.t_unix_ms}, {"text", warning.text}}));
  }
  warned_ = std::move(kinds);
  {
    std::lock_guard lock(snapshot_mutex_);
    s.switches.assign(switches_.begin(), switches_.end());
  }
  history_.add(s);
  std::string text = text_of_json(to_json(s));
  events_.post("snapshot", text);
  std::lock_guard lock(snapshot_mutex_);
  snapshot_ = std::move(text);
  busy_ = s.device.busy;
  mfu_ = s.device.mfu;
  held_bytes_ = held_bytes;
}

// The first call only records the rung. The view is read under the lock, so that pins and samples are seen in order.
void Telemetry::note_rung(size_t l) {
  DashboardSnapshot::Switch change{.t_unix_ms = unix_ms_now(), .text = ""};
  {
    std::lock_guard lock(snapshot_mutex_);
    const LadderView view = models_.ladders()[l]->view(models_.unix_now());
    const std::string choice = fmt::format("{} ({})", view.active, reason_name(view.reason));
    std::string rung = choice;
    for (const RungView& each : view.rungs)
      if (each.spilling) rung += fmt::format(", {} is overloaded", each.model);
    active_rungs_.resize(models_.ladders().size());
    ladder_switches_.resize(models_.ladders().size());
    const std::string before = std::exchange(active_rungs_[l], rung);
    if (before.empty() || before == rung) return;
    ++ladder_switches_[l][static_cast<size_t>(before.starts_with(choice) ? Reason::load : view.reason)];
    change.text = fmt::format("{}: {}", view.name, rung);
    switches_.push_front(change);
    while (switches_.size() > kMaxSwitches) switches_.pop_back();
  }
  events_.post("switch", text_of_json({{"t_unix_ms", change.t_unix_ms}, {"text", change.text}}));
}

}  // namespace brim::serve
