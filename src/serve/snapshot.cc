// SPDX-License-Identifier: Apache-2.0
// Dashboard figures: sampled once per second for all clients, and pushed to subscribers of /events.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "io/sha256.h"
#include "serve/gate_run.h"
#include "serve/service.h"

namespace brim::serve {
namespace {

constexpr size_t kRecentSamples = 6;  // window of rates and percentiles, in seconds
constexpr size_t kMinutes = 15;       // window of the histograms
constexpr size_t kMaxSwitches = 20;
constexpr size_t kMaxJobs = 20;
constexpr int kMaxSubscribers = 32;
constexpr size_t kMaxUnsent = 64 << 10;  // clients that fall further behind are disconnected
constexpr int kKeepAliveSeconds = 15;

int64_t unix_ms_now() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

class Service::EventStream final : public Stream {
 public:
  EventStream(Service& service, Call& call, int interval) : Stream(call), service_(service), interval_(interval) {
    ++service_.subscribers_;
    thread_ = static_cast<size_t>(call.thread);
    service_.events_[thread_].insert(this);
  }
  ~EventStream() override {
    --service_.subscribers_;
    service_.events_[thread_].erase(this);
  }
  // Sends snapshots at the client's interval, other events at once.
  void deliver(const std::string& event, bool snapshot) {
    if (call_ == nullptr || call_->done) return;
    Exchange& exchange = *call_->exchange;
    if (exchange.unsent() > kMaxUnsent) return exchange.drop();
    if (!snapshot || ++seconds_ % interval_ == 0)
      exchange.send(event);
    else if (seconds_ % kKeepAliveSeconds == 0)
      exchange.send(":\n\n");
    if (snapshot || !service_.draining_) return;
    call_->done = true;
    exchange.end_answer();
  }

 private:
  Service& service_;
  const int interval_;  // seconds
  int seconds_ = 0;
  size_t thread_;
};

void Service::dashboard(Call& call) {
  call.done = true;
  call.exchange->answer({.body = std::string(dashboard_html()),
                         .content_type = "text/html; charset=utf-8",
                         .fields = fmt::format("Content-Security-Policy: {}\r\nX-Content-Type-Options: nosniff\r\n"
                                               "Referrer-Policy: no-referrer\r\nCache-Control: no-cache\r\n"
                                               "X-Request-Id: {}\r\n",
                                               dashboard_policy(), call.id)});
}

void Service::snapshot(Call& call) {
  std::string body;
  {
    std::lock_guard lock(snapshot_mutex_);
    body = snapshot_;
  }
  answer(call, std::move(body));
}

void Service::history(Call& call) {
  const std::string value = query_value(call.exchange->query(), "minutes");
  int64_t minutes = static_cast<int64_t>(kMinutes);
  const auto [end, problem] = std::from_chars(value.data(), value.data() + value.size(), minutes);
  if (!value.empty() && (problem != std::errc() || end != value.data() + value.size() || minutes < 1))
    throw invalid("`minutes` must be from 1 to 15");
  answer(call, history_.json(minutes));
}

void Service::events(Call& call) {
  if (draining_) throw Refusal{503, "Unhealthy", "the server is shutting down", "Retry-After: 1\r\n"};
  if (subscribers_ >= kMaxSubscribers)
    throw Refusal{503, "Overloaded", fmt::format("too many event streams (at most {})", kMaxSubscribers),
                  "Retry-After: 60\r\n"};
  std::string value = query_value(call.exchange->query(), "interval");
  if (value.ends_with('s')) value.pop_back();
  int interval = 1;
  const auto [end, problem] = std::from_chars(value.data(), value.data() + value.size(), interval);
  if (!value.empty() && (problem != std::errc() || end != value.data() + value.size() || interval < 1 || interval > 60))
    throw invalid("`interval` must be from 1s to 60s");
  call.stream = std::make_shared<EventStream>(*this, call, interval);
  std::string first;
  {
    std::lock_guard lock(snapshot_mutex_);
    first = fmt::format("event: snapshot\ndata: {}\n\n", snapshot_);
  }
  call.exchange->begin_answer({.body = std::move(first),
                               .content_type = "text/event-stream",
                               .fields = fmt::format("Cache-Control: no-store\r\nX-Request-Id: {}\r\n", call.id)},
                              std::nullopt);
  // If draining began after the check above, this stream has missed the event.
  if (draining_) call.exchange->send("event: drain\ndata: {}\n\n");
  if (!draining_ && call.exchange->head().method != "HEAD") return;
  call.done = true;
  call.exchange->end_answer();
}

void Service::deliver(int thread, const std::string& event, bool is_snapshot) {
  const std::set<EventStream*> all = events_[static_cast<size_t>(thread)];  // a copy: streams may end while sending
  for (EventStream* stream : all)
    if (events_[static_cast<size_t>(thread)].contains(stream)) stream->deliver(event, is_snapshot);
}

void Service::post_events(const std::string& event, bool is_snapshot) {
  if (server_ == nullptr || subscribers_ == 0) return;
  for (int thread = 0; thread < server_->threads(); ++thread)
    server_->post(thread, [this, thread, event, is_snapshot] { deliver(thread, event, is_snapshot); });
}

DashboardSnapshot Service::figures(std::optional<int64_t> held_bytes, const HealthView& health,
                                   const GpuReadings& gpu_state) {
  DashboardSnapshot s;
  s.t_unix_ms = unix_ms_now();
  s.state = health.status;
  s.version = version();
  s.uptime_s = seconds_since(started_ns_);
  s.model = health.ladders.empty() ? options_.models[0].name : health.ladders[0].active;
  s.reason = health.ladders.empty() ? "default" : reason_name(health.ladders[0].reason);
  s.warnings = sentences(health.warnings);

  Sample now;
  now.ns = now_ns();
  now.counts = metrics_->total();
  const Counts& counts = now.counts;
  for (const auto& [key, n] : counts.requests) now.requests += n;
  for (const Histogram& slowest : counts.slowest) now.requests_by_duration.merge(slowest);
  for (size_t m = 0; m < slots_.size(); ++m) {
    now.texts.push_back(counts.texts_of(m));
    now.scored.push_back(now.texts.back() + slots_[m]->running_texts);
  }
  std::vector<ScorerWork> works;
  for (size_t m = 0; m < slots_.size(); ++m) {
    Served served;
    DashboardModel model;
    model.id = options_.models[m].name;
    {
      std::lock_guard lock(slots_[m]->mutex);
      served = slots_[m]->served;
      model.state = slots_[m]->state_now();
      const double keep = options_.models[m].keep_alive_seconds;
      model.keep_alive_s = keep < 0 ? keep : std::max(0.0, keep - seconds_since(slots_[m]->used_ns));
    }
    if (served != nullptr) {
      const MemoryPlan plan = served->scorer->plan();
      const ScorerWork work = served->scorer->work();
      const ScorerLoad load = served->scorer->load();
      if (served->scorer->kind() != ModelKind::rules) model.precision = served->scorer->precision();
      if (plan.peak_bytes > 0) model.bytes = plan.peak_bytes - plan.shared_bytes;
      if (plan.tokens_per_interactive_batch > 0) model.token_budget = plan.tokens_per_interactive_batch;
      s.queue.interactive_tokens += load.tokens - load.bulk_tokens;
      s.queue.bulk_tokens += load.bulk_tokens;
      if (s.device.name.empty() || work.flops_per_second > 0) s.device.name = served->scorer->device();
      works.push_back(work);
    }
    s.models.push_back(std::move(model));
  }
  now.work = work_of_all(works);
  s.batches.batches = now.work.batches;
  s.queue.wait_ms = health.wait_seconds * 1e3;
  s.queue.limit_ms = options_.queue_seconds * 1e3;
  for (const uint64_t n : counts.rejected) s.queue.rejected += static_cast<int64_t>(n);
  s.queue.cancelled = static_cast<int64_t>(counts.cancelled);
  s.queue.late = static_cast<int64_t>(counts.deadlines_missed);
  for (const uint64_t n : now.texts) s.texts += static_cast<int64_t>(n);
  for (const uint64_t n : counts.tokens) s.tokens += static_cast<int64_t>(n);
  s.requests = static_cast<int64_t>(now.requests);
  MemoryPlan memory = planned();
  if (memory.peak_bytes > 0) s.device.planned = memory.peak_bytes;
  if (memory.limit_bytes > 0) s.device.limit = memory.limit_bytes;
  s.device.held = held_bytes;
  s.device.tags = std::move(memory.bytes);
  s.device.gpu = nlohmann::ordered_json::parse(gpu_state.health_json);

  if (!recent_.empty()) {
    const Sample& previous = recent_.front();
    const double seconds = static_cast<double>(now.ns - previous.ns) * 1e-9;
    const auto per_second = [&](double n) { return n / seconds; };
    uint64_t texts = 0, tokens = 0;
    for (size_t m = 0; m < now.texts.size(); ++m) {
      // Failed texts of a bulk call are subtracted at its end.
      const uint64_t added = std::max(now.scored[m], previous.scored[m]) - previous.scored[m];
      texts += added;
      tokens += counts.tokens[m] - previous.counts.tokens[m];
      s.models[m].texts_s = per_second(static_cast<double>(added));
      const Histogram latency = counts.models[m].since(previous.counts.models[m]);
      if (latency.count() > 0) s.models[m].p99_ms = latency.quantile(0.99) * 1e3;
    }
    s.texts_s = per_second(static_cast<double>(texts));
    // The device counts tokens by batch; jobs are counted in blocks, which take long.
    s.tokens_s = per_second(now.work.queue == 0 ? static_cast<double>(tokens)
                                                : std::max(0.0, static_cast<double>(now.work.tokens) -
                                                                    static_cast<double>(previous.work.tokens)));
    s.requests_s = per_second(static_cast<double>(now.requests - previous.requests));
    const Histogram latency = now.requests_by_duration.since(previous.requests_by_duration);
    if (latency.count() > 0) {
      s.p50_ms = latency.quantile(0.5) * 1e3;
      s.p95_ms = latency.quantile(0.95) * 1e3;
      s.p99_ms = latency.quantile(0.99) * 1e3;
    }
    // A model loaded since then restarts its counters.
    const auto increase = [&](double before, double after) { return std::max(0.0, after - before); };
    const double busy = std::min(1.0, increase(previous.work.busy_seconds, now.work.busy_seconds) / seconds);
    const double batches = increase(static_cast<double>(previous.work.batches), static_cast<double>(now.work.batches));
    s.device.busy = busy;
    if (const double rate = now.work.flops_per_second; rate > 0)
      s.device.mfu = increase(previous.work.flops, now.work.flops) / seconds / rate;
    s.batches.batches_s = per_second(batches);
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
  // The first minute begins at the start of the server; a late first sample would hide earlier requests.
  if (minutes_.empty()) minutes_.emplace_back().ns = started_ns_;
  const Sample& oldest = minutes_.front();
  for (size_t i = 0; i < Histogram::kBounds; ++i) {
    LatencyBucket bucket;
    bucket.le_ms = Histogram::bounds()[i] * 1e3;
    for (size_t stage = 0; stage < kStages; ++stage) {
      const uint64_t before = oldest.counts.slowest[stage].bucket(i);
      if (const uint64_t n = counts.slowest[stage].bucket(i) - before; n > 0)
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
  for (size_t l = 0; l < health.ladders.size(); ++l) {
    DashboardLadder ladder{health.ladders[l], schedule_of_day(*options_.ladders[l], s.t_unix_ms / 1000), {}, {}};
    if (const auto& schedule = options_.ladders[l]->rules().schedule) ladder.zone = schedule->zone().name();
    double all = 0, spilled = 0;
    for (size_t i = 0; i < kReasonCount; ++i) {
      const auto reason = static_cast<Reason>(i);
      const auto n = static_cast<double>(counts.texts_by(reason) - oldest.counts.texts_by(reason));
      all += n;
      if (reason == Reason::load) spilled = n;
    }
    if (all > 0) ladder.spill_share = spilled / all;
    s.ladders.push_back(std::move(ladder));
  }
  if (blocking_work_ != nullptr) {
    for (const std::string& name : blocking_work_->queues().names())
      s.queues.push_back(blocking_work_->queues().find(name)->describe());
    for (const Job& job : blocking_work_->jobs().list(kMaxJobs)) {
      s.jobs.push_back(to_json(job));
      s.jobs.back().erase("errors");  // may quote a row; /jobs/ID has them, with its own scope
    }
  }

  if (now.ns - minutes_.back().ns > 60'000'000'000) {
    minutes_.push_back(now);
    if (minutes_.size() > kMinutes) minutes_.pop_front();
  }
  recent_.push_back(std::move(now));
  if (recent_.size() > kRecentSamples) recent_.pop_front();
  return s;
}

void Service::sample(std::optional<int64_t> held_bytes) {
  const GpuReadings gpu_state = this->gpu_readings();
  const HealthView health = health_view(gpu_state);
  DashboardSnapshot s = figures(held_bytes, health, gpu_state);
  for (size_t l = 0; l < options_.ladders.size(); ++l) note_rung(l);
  std::set<std::string> kinds;
  for (const Warning& warning : health.warnings) {
    const std::string& kind = warning.kind.empty() ? warning.text : warning.kind;
    if (!kinds.insert(kind).second || warned_.contains(kind)) continue;
    const nlohmann::ordered_json event = {{"t_unix_ms", s.t_unix_ms}, {"text", warning.text}};
    post_events(fmt::format("event: warning\ndata: {}\n\n",
                            event.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)),
                false);
  }
  warned_ = std::move(kinds);
  {
    std::lock_guard lock(snapshot_mutex_);
    s.switches.assign(switches_.begin(), switches_.end());
  }
  history_.add(s);
  std::string text = to_json(s).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  post_events(fmt::format("event: snapshot\ndata: {}\n\n", text), true);
  std::lock_guard lock(snapshot_mutex_);
  snapshot_ = std::move(text);
  busy_ = s.device.busy;
  mfu_ = s.device.mfu;
  held_bytes_ = held_bytes;
}

// Counts and announces a change of a ladder's active rung since the last call; the first one only records it. The view
// is read under the lock, so that pins and samples are seen in order.
void Service::note_rung(size_t l) {
  DashboardSnapshot::Switch change{.t_unix_ms = unix_ms_now(), .text = ""};
  {
    std::lock_guard lock(snapshot_mutex_);
    const LadderView view = options_.ladders[l]->view(unix_now());
    const std::string choice = fmt::format("{} ({})", view.active, reason_name(view.reason));
    std::string rung = choice;
    for (const RungView& each : view.rungs)
      if (each.spilling) rung += fmt::format(", {} is overloaded", each.model);
    active_rungs_.resize(options_.ladders.size());
    ladder_switches_.resize(options_.ladders.size());
    const std::string before = std::exchange(active_rungs_[l], rung);
    if (before.empty() || before == rung) return;
    ++ladder_switches_[l][static_cast<size_t>(before.starts_with(choice) ? Reason::load : view.reason)];
    change.text = fmt::format("{}: {}", view.name, rung);
    switches_.push_front(change);
    while (switches_.size() > kMaxSwitches) switches_.pop_back();
  }
  const nlohmann::ordered_json event = {{"t_unix_ms", change.t_unix_ms}, {"text", change.text}};
  post_events(fmt::format("event: switch\ndata: {}\n\n",
                          event.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)),
              false);
}

void Service::measure_gates(const std::stop_token& stop, bool repeat) {
  for (const auto& ladder : options_.ladders) measure_again(ladder->rules().rungs.front().model);
  std::unique_lock lock(gates_mutex_);
  while (!stop.stop_requested()) {
    if (repeat) gates_changed_.wait(lock, stop, [this] { return !unmeasured_.empty(); });
    if (unmeasured_.empty()) return;
    Ladder& ladder = *unmeasured_.front();
    unmeasured_.erase(unmeasured_.begin());
    std::stop_source measuring;
    measuring_ = measuring;
    lock.unlock();
    {
      const std::stop_callback ending(stop, [&measuring] { measuring.request_stop(); });
      measure_gates_of(ladder, measuring.get_token());
    }
    lock.lock();
  }
}

void Service::measure_gates_of(Ladder& ladder, const std::stop_token& stop) {
  const auto model = [&](const std::string& name) {
    try {
      const Served served = model_at(find_model(name), true);
      return gate_model(served->scorer, name, fmt::format("{} {}", served->id, served->revision));
    } catch (const Refusal& refusal) {
      fail(ErrorCode::bad_model, "{}", refusal.message);
    }
  };
  const std::string& name = ladder.rules().name;
  std::vector<std::string> faults;
  try {
    std::filesystem::path cache;
    if (blocking_work_ != nullptr)
      cache = blocking_work_->state().folder("gates") / (io::sha256_hex(name).substr(0, 16) + ".json");
    faults = measure_gate(ladder, model, cache, stop);
  } catch (const std::exception& error) {
    if (stop.stop_requested()) return measure_again(ladder.rules().rungs.front().model);
    faults.push_back(fmt::format("ladder {}: cannot measure the gate: {}", name, error.what()));
  }
  for (const std::string& fault : faults) log_warning("{}", fault);
  for (const RungView& rung : ladder.view(unix_now()).rungs)
    if (rung.gate.figures)
      log_info("ladder {}: {} {}: {}", name, rung.model, verdict_name(rung.gate.verdict), rung.gate.why);
  std::lock_guard lock(gpu_mutex_);
  gate_faults_[name] = std::move(faults);
}

void Service::measure_again(const std::string& model) {
  {
    std::lock_guard lock(gates_mutex_);
    for (const auto& ladder : options_.ladders)
      if (ladder->has(model) && !ladder->rules().gate.data.empty() &&
          std::find(unmeasured_.begin(), unmeasured_.end(), ladder.get()) == unmeasured_.end())
        unmeasured_.push_back(ladder.get());
  }
  gates_changed_.notify_all();
}

// Stops a running measurement, because it holds its models, and restarts it.
void Service::forget_gates(const std::string& model) {
  for (const auto& ladder : options_.ladders)
    if (ladder->has(model)) ladder->forget_gate(model);
  measure_again(model);
  std::stop_source measuring{std::nostopstate};
  {
    std::lock_guard lock(gates_mutex_);
    measuring = measuring_;
  }
  measuring.request_stop();
}

}  // namespace brim::serve
