// SPDX-License-Identifier: Apache-2.0
// Passes admitted requests to scorers and their results back to clients. The files *_routes.cc, tei.cc and openai.cc
// parse the requests.
#include "serve/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "base/units.h"
#include "base/utf8.h"
#include "rows/jsonl.h"
#include "serve/service_inbox.h"

namespace brim::serve {
namespace {

constexpr int kClientClosedRequest = 499;  // status 499, as in nginx's logs

// Only the slots own scorers, so that an unloaded model is freed.
ServiceOptions without_scorers(ServiceOptions options) {
  for (ServedModel& model : options.models) model.scorer.reset();
  return options;
}

}  // namespace

Service::Service(ServiceOptions options)
    : options_(without_scorers(options)),
      started_ns_(now_ns()),
      started_unix_(std::time(nullptr)),
      helpers_(std::clamp(hardware_threads() / 4, 1, 4)) {
  for (ServedModel& model : options.models) {
    Slot& slot = *slots_.emplace_back(std::make_unique<Slot>());
    slot.opened = model.scorer != nullptr;
    if (slot.opened) {
      slot.kind = model.scorer->kind();
      slot.served = std::make_shared<const ServedModel>(std::move(model));
    } else {
      if (model.pooling) slot.kind = ModelKind::embedder;
      slot.state = "failed";
      slot.fault = model.fault;
      report_fault(model.name, model.fault);
    }
  }
  keys_ = std::make_shared<const ApiKeys>(options_.keys);
  BRIM_CHECK(!options_.models.empty(), "a service needs a model");
  std::random_device random;
  id_prefix_ = fmt::format("{:08x}-", random());
  metrics_ = std::make_unique<Metrics>(options_.models.size());
  if (options_.state_dir.empty()) return;
  try {
    JobsStore::Options jobs;
    jobs.retry_seconds = options_.load_retry_seconds;
    jobs.keep_seconds = options_.keep_jobs_seconds;
    jobs.limits = options_.job_limits;
    blocking_work_ = std::make_unique<BlockingWork>(
        options_.state_dir, options_.queues, *this, [this](const Job& job) { return job_model(job); }, jobs);
  } catch (const Error& error) {
    if (options_.state_needed || !options_.queues.empty()) throw;
    log_warning("{}; jobs are disabled", error.what());
  }
}

void Service::drain() {
  refuse_texts();
  begin_drain();
}

void Service::begin_drain() {
  draining_ = true;
  post_events("event: drain\ndata: {}\n\n", false);
  if (blocking_work_ != nullptr) blocking_work_->stop_jobs();
}

void Service::refuse_all() {
  cutting_ = true;
  for (int thread = 0; thread < server_->threads(); ++thread)
    server_->post(thread, [this, thread] {
      for (Call* const call : inboxes_[static_cast<size_t>(thread)]->calls()) {
        // Queue and admin calls may still complete, so an error response could be wrong: cut the connection instead.
        if (call->done || !call->counted) continue;
        call->stop.request_stop();
        refuse(*call, {503, "Unhealthy", "the server is shutting down", retry_after(1)});
      }
    });
}

Service::~Service() {
  admin_.stop();
  tracer_.stop();
  helpers_.stop();
  end_row_streams();
  blocking_work_.reset();
  for (const Served& model : loaded()) model->scorer->close();
  for (auto& inbox : inboxes_) inbox->drop_all();
}

void Service::attach(HttpServer& server) {
  server_ = &server;
  metrics_->set_threads(server.threads());
  for (int i = 0; i < server.threads(); ++i) inboxes_.push_back(std::make_unique<Inbox>(*this, i));
  events_.resize(static_cast<size_t>(server.threads()));
}

void Service::set_gpu(GpuReadings readings) {
  std::lock_guard lock(gpu_mutex_);
  gpu_ = std::move(readings);
}

std::vector<Served> Service::loaded() const {
  std::vector<Served> all;
  for (const auto& slot : slots_) {
    std::lock_guard lock(slot->mutex);
    if (slot->served != nullptr) all.push_back(slot->served);
  }
  return all;
}

MemoryPlan Service::planned() const {
  std::vector<std::shared_ptr<Scorer>> scorers;
  for (const Served& served : loaded()) scorers.push_back(served->scorer);
  return Scorer::plan_together(scorers);
}

Served Service::model_at(int model, bool may_wait) const {
  const Slot& slot = *slots_[static_cast<size_t>(model)];
  std::unique_lock lock(slot.mutex);
  if (may_wait) slot.replaced.wait(lock, [&] { return !slot.replacing; });
  if (slot.replacing)
    throw ModelBeingReplaced{
        {503, "Unhealthy", fmt::format("model {} is being replaced", options_.models[static_cast<size_t>(model)].name),
         retry_after(1)},
        model};
  if (slot.served == nullptr)
    throw Refusal{503, "Unhealthy",
                  fmt::format("model {} is not loaded{}", options_.models[static_cast<size_t>(model)].name,
                              slot.fault.empty() ? "" : ": " + slot.fault),
                  retry_after(1)};
  return slot.served;
}

double Service::queue_seconds(int model) const {
  const Slot& slot = *slots_[static_cast<size_t>(model)];
  std::lock_guard lock(slot.mutex);
  return slot.served == nullptr ? 0 : slot.served->scorer->load().wait_seconds;
}

bool Service::stuck() const {
  double predicted = 0;
  int64_t batches = 0;
  bool batch_is_late = false;  // rows, queues and jobs count as batches, not as outstanding texts
  for (const Served& model : loaded()) {
    const ScorerLoad load = model->scorer->load();
    predicted = std::max(predicted, load.wait_seconds);
    batches += model->scorer->work().batches;
    batch_is_late |= ProgressWatch::too_long(load.batch_seconds, load.batch_predicted_seconds);
  }
  return progress_.stuck(now_ns(), outstanding_ > 0, batches, predicted) || batch_is_late;
}

// --- requests for a model that is being replaced ---

void Service::hold(Call& call, int model) {
  call.left = 1;
  const uint32_t inbox_slot = inboxes_[static_cast<size_t>(call.thread)]->put(call);
  Slot& slot = *slots_[static_cast<size_t>(model)];
  {
    std::lock_guard lock(slot.mutex);
    if (slot.replacing) {
      slot.held.emplace_back(call.thread, inbox_slot);
      return;
    }
  }
  resume(call.thread, inbox_slot);
}

Service::Call* Service::reclaim(int thread, uint32_t inbox_slot) {
  Inbox& inbox = *inboxes_[static_cast<size_t>(thread)];
  Call& call = inbox.at(inbox_slot);
  inbox.remove(inbox_slot);
  call.left = 0;
  if (!call.ended) return &call;
  delete &call;
  return nullptr;
}

void Service::resume(int thread, uint32_t inbox_slot) {
  server_->post(thread, [this, thread, inbox_slot] {
    Call* const call = reclaim(thread, inbox_slot);
    if (call != nullptr && !call->done) run_held(*call);
  });
}

void Service::run_held(Call& call) {
  try {
    run_route(call);
  } catch (const std::exception& error) {
    log_warning("{}: {}", call.exchange->path(), error.what());
    if (!call.done) refuse(call, {500, "Backend", "internal error"});
  }
}

void Service::take(Exchange& exchange, std::string_view bytes) {
  Call& call = *reinterpret_cast<Call*>(exchange.tag);
  if (!call.done) call.stream->take(bytes);
}

void Service::sent(Exchange& exchange) { reinterpret_cast<Call*>(exchange.tag)->stream->sent(); }

void Service::stream_ended(Call& call) {
  if (!call.done) call.stream->ended();
}

void Service::run_on(Workers& workers, Call& call, std::function<std::optional<Refusal>()> work,
                     std::function<void(Call&)> then) {
  call.left = 1;
  const uint32_t slot = inboxes_[static_cast<size_t>(call.thread)]->put(call);
  workers.call([this, thread = call.thread, slot, work = std::move(work), then = std::move(then)] {
    server_->post(thread, [this, thread, slot, refusal = work(), then] {
      Call* const held = reclaim(thread, slot);
      if (held == nullptr || held->done) return;
      if (refusal)
        refuse(*held, *refusal);
      else
        then(*held);
    });
  });
}

void Service::run_on(Workers& workers, Call& call, std::function<BlockingAnswer()> work) {
  const auto answer = std::make_shared<BlockingAnswer>();
  const auto run = [this, answer, work = std::move(work)]() -> std::optional<Refusal> {
    try {
      *answer = work();
      return std::nullopt;
    } catch (const Refusal& refusal) {
      return refusal;
    } catch (const Error& error) {
      return refusal_of_blocking_work(error);
    } catch (const std::exception& error) {
      return refusal_of_blocking_work(Error(ErrorCode::internal, error.what()));
    }
  };
  run_on(workers, call, run, [this, answer](Call& held) {
    held.done = true;
    if (!answer->model.empty()) held.model = index_of(answer->model);
    held.rows = answer->texts;
    held.tokens = static_cast<size_t>(answer->tokens);
    answer->fields += ignored_field(held.ignored) + fmt::format("X-Request-Id: {}\r\n", held.id);
    held.exchange->answer(
        {.status = answer->status, .body = std::move(answer->body), .fields = std::move(answer->fields)});
  });
}

Refusal Service::refusal_of_blocking_work(const Error& error) const {
  switch (error.code()) {
    case ErrorCode::bad_data:
    case ErrorCode::usage:
      return invalid(error.what());
    case ErrorCode::busy:
      return {429, "Overloaded", error.what(), "Retry-After: 1\r\n"};
    case ErrorCode::cannot_write:
      return {507, "cannot_write", error.what(), retry_after(5)};
    case ErrorCode::does_not_fit:
      return {503, "Unhealthy", fmt::format("the model cannot be loaded now: {}", error.what()),
              retry_after(options_.load_retry_seconds)};
    default:
      return {424, "Backend", fmt::format("Backend error: {}", error.what())};
  }
}

void Service::take_answers(int thread, std::vector<Answer>& answers) {
  progress_.note(now_ns());
  outstanding_ -= answers.size();
  Inbox& inbox = *inboxes_[static_cast<size_t>(thread)];
  for (Answer& answer : answers) {
    Call& call = inbox.at(static_cast<uint32_t>(answer.ticket >> kIndexBits));
    const size_t index = answer.ticket & ((1u << kIndexBits) - 1);
    Prediction& prediction = call.predictions[index];
    prediction = std::move(answer.prediction);
    call.tokens += static_cast<size_t>(prediction.tokens);
    if (prediction.error)
      for (const Served& served : {call.served, call.other})
        if (served != nullptr) note_if_not_loaded(*served, *prediction.error);
    --call.left;
    if (prediction.error && !call.null_errors && !call.done) {
      refuse(call, refusal_of(call, prediction));
      call.stop.request_stop();
    }
    if (call.left > 0) continue;
    try {
      finish(call);
    } catch (const std::exception& error) {  // concerns one response only
      log_warning("{}: {}", call.exchange->path(), error.what());
      if (!call.done) refuse(call, {500, "Backend", "internal error"});
    }
  }
}

bool Service::note_if_not_loaded(const ServedModel& model, const Error& error) {
  const bool is_load_error = error.code() == ErrorCode::does_not_fit || error.code() == ErrorCode::bad_model;
  if (!is_load_error || model.scorer->residence() == Residence::resident) return false;
  note_not_loaded(static_cast<size_t>(find_model(model.name)), error.what());
  return true;
}

Refusal Service::refusal_of(const Call& call, const Prediction& prediction) const {
  const Error& error = *prediction.error;
  switch (error.code()) {
    case ErrorCode::timed_out:
      return {504, "Timeout",
              fmt::format("timed out after {:.0f} ms (limit {:.0f} ms)",
                          static_cast<double>(now_ns() - call.exchange->begun_ns()) * 1e-6, call.timeout_ms)};
    case ErrorCode::busy: {
      // Either this client's queue is too long, or all clients' queued bytes exceed the limit.
      const ClientWait wait = call.served->scorer->wait_of(client_of(call), prediction.tokens, call.bulk);
      const double counted = wait.own_tokens > 0 ? wait.end_seconds : wait.begin_seconds;
      const bool long_wait = counted > options_.queue_seconds;
      Refusal refusal =
          overloaded(counted, options_.queue_seconds, long_wait ? wait.begin_seconds : queue_seconds(call.model));
      if (!long_wait) refusal.extra.clear();  // the message has the limit that was exceeded
      refusal.message += fmt::format(": {}", error.what());
      return refusal;
    }
    case ErrorCode::cancelled:
      return {503, "Unhealthy", "the server is shutting down", retry_after(1)};
    case ErrorCode::does_not_fit:
      return refusal_of_blocking_work(error);
    case ErrorCode::bad_data: {
      const int64_t longest = call.served->scorer->max_length();
      if (prediction.tokens > longest)
        return invalid(fmt::format("`inputs` must have less than {} tokens. Given: {}", longest, prediction.tokens));
      return invalid(error.what());
    }
    default:
      return {424, "Backend", fmt::format("Backend error: {}", error.what())};
  }
}

// Called when all texts of a call have results.
void Service::finish(Call& call) {
  inboxes_[static_cast<size_t>(call.thread)]->remove(call.slot);
  call.finished_ns = now_ns();
  if (!call.done) {
    std::string out;
    call.write(out, call);
    const int64_t written_ns = now_ns();
    const std::array<double, kStages> seconds = stages_of(call, written_ns);
    metrics_->count(call.exchange->thread(), [&](Counts& c) {
      for (size_t i = 0; i < kStages; ++i) c.stages[i].add(seconds[i]);
      c.texts[static_cast<size_t>(call.model)][call.bulk ? 1 : 0][static_cast<size_t>(reason_of(call.reason))] +=
          call.predictions.size();
      c.tokens[static_cast<size_t>(call.model)] += call.tokens;
      const auto stage = static_cast<size_t>(std::ranges::max_element(seconds) - seconds.begin());
      const double total = static_cast<double>(written_ns - call.exchange->begun_ns()) * 1e-9;
      c.slowest[stage].add(total);
      c.models[static_cast<size_t>(call.model)].add(total);
    });
    answer(call, std::move(out));
  }
  call.served.reset();  // a slow reader must not keep a model loaded
  call.other.reset();
  if (call.ended) delete &call;
}

std::array<double, kStages> Service::stages_of(const Call& call, int64_t written_ns) {
  double waited = 0, computed = 0;
  for (const Prediction& p : call.predictions) {
    waited = std::max(waited, p.timing.waited);
    computed = std::max(computed, p.timing.computed);
  }
  const auto between = [](int64_t begin, int64_t end) {
    return static_cast<double>(std::max<int64_t>(0, end - begin)) * 1e-9;
  };
  // Helpers tokenize without a timestamp: tokenization is the rest of the time.
  const double tokenized = call.submitted_ns > 0
                               ? between(call.parsed_ns, call.submitted_ns)
                               : std::max(0.0, between(call.parsed_ns, call.finished_ns) - waited - computed);
  return {between(call.exchange->received_ns(), call.parsed_ns), tokenized, waited, computed,
          between(call.finished_ns, written_ns)};
}

std::string Service::compute_fields(const Call& call) const {
  const Exchange& e = *call.exchange;
  const int64_t now = now_ns();
  const double total = static_cast<double>(now - e.begun_ns()) * 1e-6;
  std::array<double, kStages> ms = stages_of(call, now);
  for (double& each : ms) each *= 1e3;
  const auto [parsed, tokenized, waited, computed, written] = ms;
  const auto errors = std::ranges::count_if(call.predictions, [](const Prediction& p) { return p.error.has_value(); });
  const ServedModel& model = *call.served;
  const bool on_gpu = !model.scorer->device().starts_with("cpu");
  std::string fields = fmt::format(
      "x-compute-type: {}\r\nx-compute-time: {:.0f}\r\nx-compute-characters: {}\r\nx-compute-tokens: {}\r\n"
      "x-total-time: {:.0f}\r\nx-tokenization-time: {:.0f}\r\nx-queue-time: {:.0f}\r\nx-inference-time: {:.0f}\r\n"
      "Server-Timing: parse;dur={:.3f}, tok;dur={:.3f}, queue;dur={:.3f}, infer;dur={:.3f}, write;dur={:.3f}\r\n"
      "X-Brim-Model: {}@{}\r\nX-Brim-Reason: {}\r\n",
      on_gpu ? "gpu+optimized" : "cpu+optimized", total, call.characters, call.tokens, total, tokenized, waited,
      computed, parsed, tokenized, waited, computed, written, model.name, model.revision, call.reason);
  if (!call.instead_of.empty()) fields += fmt::format("X-Brim-Instead-Of: {}\r\n", call.instead_of);
  if (errors > 0) fields += fmt::format("X-Brim-Errors: {}\r\n", errors);
  if (call.passes > 0) fields += fmt::format("X-Brim-Passes: {}\r\n", call.passes);
  return fields;
}

// --- answers ---

void Service::answer(Call& call, std::string body, const char* content_type) {
  if (call.ended) return;
  Response response;
  response.body = std::move(body);
  response.content_type = content_type;
  if (!call.predictions.empty()) response.fields = compute_fields(call);
  response.fields += ignored_field(call.ignored);
  response.fields += fmt::format("X-Request-Id: {}\r\n", call.id);
  call.done = true;
  call.exchange->answer(std::move(response));
}

void Service::count_refusal(int thread, int status) {
  metrics_->count(thread, [&](Counts& c) {
    const auto count = [&](Rejection reason) { ++c.rejected[static_cast<size_t>(reason)]; };
    if (status == 504) ++c.deadlines_missed;
    if (status == 504) count(Rejection::deadline);
    if (status == 429) count(Rejection::overloaded);
    if (status == 401 || status == 403) count(Rejection::auth);
    if (status == 503) count(draining_ ? Rejection::draining : Rejection::loading);
  });
}

void Service::refuse(Call& call, const Refusal& refusal) {
  call.done = true;
  if (call.ended) return;
  count_refusal(call.exchange->thread(), refusal.status);
  Response response = error_response(refusal, call.route->shape);
  response.fields += fmt::format("X-Request-Id: {}\r\n", call.id);
  call.exchange->answer(std::move(response));
}

void Service::abort_response(Call& call, const Refusal& refusal) {
  log_warning("{} {}: response aborted: {}", call.exchange->path(), call.id, refusal.message);
  call.done = true;
  call.broken = refusal.status;
  call.exchange->drop();
}

void Service::note_end(const Exchange& exchange, const Call* call, int status, size_t bytes) noexcept {
  const double seconds = seconds_since(exchange.begun_ns());
  const int route = call == nullptr || call->route == nullptr ? -1 : static_cast<int>(call->route - routes().data());
  metrics_->count(exchange.thread(), [&](Counts& c) {
    ++c.requests[{route, call == nullptr ? -1 : call->model, status}];
    c.durations[route].add(seconds);
    if (status == 413) ++c.rejected[static_cast<size_t>(Rejection::body)];  // also if rejected by the HTTP layer
  });
  if (options_.access_log) {
    const auto unix_ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
            .count();
    std::string line = fmt::format("{{\"t_unix_ms\":{},\"id\":", unix_ms);
    rows::append_json_string(line, call == nullptr ? "" : call->id);
    line += ",\"remote\":";
    rows::append_json_string(line, exchange.client());
    if (exchange.client() != exchange.remote()) {
      line += ",\"proxy\":";
      rows::append_json_string(line, exchange.remote());
    }
    line += ",\"key\":";
    if (call != nullptr && !call->key_name.empty())
      rows::append_json_string(line, call->key_name);
    else
      line += "null";
    line += ",\"route\":";
    rows::append_json_string(line, route < 0 ? "" : fmt::format("{} {}", call->route->method, call->route->path));
    line += ",\"model\":";
    if (call != nullptr && call->model >= 0)
      rows::append_json_string(line, options_.models[static_cast<size_t>(call->model)].name);
    else
      line += "null";
    line += fmt::format(",\"texts\":{},\"tokens\":{},\"code\":{},\"bytes\":{},\"ms\":{:.3f}}}\n",
                        call == nullptr ? 0 : call->predictions.size() + call->rows, call == nullptr ? 0 : call->tokens,
                        status, bytes, seconds * 1e3);
    options_.access_log(line);
  }
}

void Service::answered(Exchange& exchange, int status, size_t bytes) noexcept {
  Call* call = reinterpret_cast<Call*>(exchange.tag);
  note_end(exchange, call, status, bytes);
  if (call != nullptr) release(*call);
}

void Service::gone(Exchange& exchange) noexcept {
  Call* call = reinterpret_cast<Call*>(exchange.tag);
  if (call == nullptr) return;
  if (call->held_body != nullptr && call->held_body->take()) std::string().swap(call->held_body->text);
  // Disconnecting from /events cancels nothing.
  const bool streams = call->stream != nullptr && call->route->scores && !call->done;
  if (call->left > 0) call->stop.request_stop();
  const bool client_left = !cutting_;  // otherwise the server cut the connection
  if (client_left && (call->left > 0 || streams)) metrics_->count(exchange.thread(), [](Counts& c) { ++c.cancelled; });
  note_end(exchange, call, call->broken > 0 ? call->broken : client_left ? kClientClosedRequest : 503, 0);
  release(*call);
}

// The exchange is over; the call lives until its last result has arrived.
void Service::release(Call& call) noexcept {
  call.exchange->tag = 0;
  if (call.stream != nullptr) call.stream->leave();
  call.ended = true;
  call.done = true;
  if (std::exchange(call.counted, false)) --at_work_;
  if (call.left == 0) delete &call;
}

}  // namespace brim::serve
