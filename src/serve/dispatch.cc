// SPDX-License-Identifier: Apache-2.0
// The life of a call: results, responses and its end. dispatch_score.cc submits the texts.
#include "serve/dispatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "rows/json_writer.h"
#include "serve/inbox.h"

namespace brim::serve {
namespace {

constexpr int kClientClosedRequest = 499;  // status 499, as in nginx's logs

}  // namespace

Dispatcher::Dispatcher(const ServerOptions& options, ModelRegistry& models, ServerState& state, Metrics& metrics,
                       Routes routes, std::function<void(std::string_view)> access_log)
    : options_(options),
      models_(models),
      state_(state),
      metrics_(metrics),
      routes_(routes),
      access_log_(std::move(access_log)),
      helpers_(std::clamp(hardware_threads() / 4, 1, 4)) {}

Dispatcher::~Dispatcher() = default;

void Dispatcher::attach(IoThreads threads) {
  threads_ = std::move(threads);
  for (int i = 0; i < threads_.count; ++i)
    io_threads_.push_back({.inbox = std::make_unique<Inbox>(*this, i), .calls = {}});
}

Call& Dispatcher::begin(Exchange& exchange) {
  Call& call = at(exchange.thread()).calls.add();
  exchange.tag = uint64_t{call.slot} + 1;
  call.exchange = &exchange;
  call.thread = exchange.thread();
  return call;
}

void Dispatcher::refuse_all() {
  for (int thread = 0; thread < threads_.count; ++thread)
    post(thread, [this, thread] {
      for (Call* const call : at(thread).calls.all()) {
        // Queue and admin calls may still complete, so an error response could be wrong: cut the connection instead.
        if (call->done || !call->counted || call->left == 0) continue;
        call->stop.request_stop();
        refuse(*call, {503, "Unhealthy", "the server is shutting down", retry_after(1)});
      }
    });
}

// --- work on other threads ---

Call* Dispatcher::reclaim(int thread, uint32_t slot) {
  Call& call = at(thread).calls.at(slot);
  call.left = 0;
  if (!call.ended) return &call;
  at(thread).calls.erase(call);
  return nullptr;
}

void Dispatcher::continue_call(Call& call, const std::function<void(Call&)>& then) {
  try {
    then(call);
  } catch (const std::exception& error) {
    log_warning("{}: {}", call.exchange->path(), error.what());
    if (!call.done) refuse(call, {500, "Backend", "internal error"});
  }
}

void Dispatcher::hold(Call& call, int model, std::function<void(Call&)> then) {
  call.left = 1;
  models_.after_replacement(model, [this, thread = call.thread, slot = call.slot, then = std::move(then)] {
    post(thread, [this, thread, slot, then] {
      Call* const held = reclaim(thread, slot);
      if (held != nullptr && !held->done) continue_call(*held, then);
    });
  });
}

void Dispatcher::run_on(Workers& workers, Call& call, std::function<std::optional<Refusal>()> work,
                        std::function<void(Call&)> then) {
  call.left = 1;
  workers.call([this, thread = call.thread, slot = call.slot, work = std::move(work), then = std::move(then)] {
    post(thread, [this, thread, slot, refusal = work(), then] {
      Call* const held = reclaim(thread, slot);
      if (held == nullptr || held->done) return;
      if (refusal)
        refuse(*held, *refusal);
      else
        then(*held);
    });
  });
}

std::nullopt_t Dispatcher::run_on(Workers& workers, Call& call, std::function<Reply()> work) {
  const auto reply = std::make_shared<Reply>();
  const auto run = [this, reply, work = std::move(work)] { return refusal_from([&] { *reply = work(); }); };
  run_on(workers, call, run, [this, reply](Call& held) { respond(held, std::move(*reply)); });
  return kRespondsLater;
}

std::optional<Refusal> Dispatcher::refusal_from(const std::function<void()>& work) const {
  try {
    work();
    return std::nullopt;
  } catch (const Refusal& refusal) {
    return refusal;
  } catch (const Error& error) {
    return refusal_of_error(error);
  } catch (const std::exception& error) {
    return refusal_of_error(Error(ErrorCode::internal, error.what()));
  }
}

Refusal Dispatcher::refusal_of_error(const Error& error) const {
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

// --- results ---

void Dispatcher::take_answers(int thread, std::vector<Answer>& answers) {
  state_.progress.note(now_ns());
  state_.texts -= answers.size();
  CallTable& calls = at(thread).calls;
  for (Answer& answer : answers) {
    Call& call = calls.at(static_cast<uint32_t>(answer.ticket >> kIndexBits));
    const size_t index = answer.ticket & ((1u << kIndexBits) - 1);
    Prediction& prediction = call.predictions[index];
    prediction = std::move(answer.prediction);
    call.tokens += static_cast<size_t>(prediction.tokens);
    if (prediction.error)
      for (const Served& served : {call.served, call.other})
        if (served != nullptr) models_.note_if_not_loaded(*served, *prediction.error);
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

Refusal Dispatcher::refusal_of(const Call& call, const Prediction& prediction) const {
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
      const bool long_wait = counted > options_.queue_seconds();
      Refusal refusal = overloaded(counted, options_.queue_seconds(),
                                   long_wait ? wait.begin_seconds : models_.wait_seconds(call.model));
      if (!long_wait) refusal.extra.clear();  // the message has the limit that was exceeded
      refusal.message += fmt::format(": {}", error.what());
      return refusal;
    }
    case ErrorCode::cancelled:
      return {503, "Unhealthy", "the server is shutting down", retry_after(1)};
    case ErrorCode::does_not_fit:
      return refusal_of_error(error);
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
void Dispatcher::finish(Call& call) {
  call.finished_ns = now_ns();
  if (!call.done) {
    std::string out;
    rows::JsonWriter json(out);
    call.write(json, call);
    const int64_t written_ns = now_ns();
    const std::array<double, kStages> seconds = stages_of(call, written_ns);
    metrics_.count(call.exchange->thread(), [&](Counts& c) {
      for (size_t i = 0; i < kStages; ++i) c.stages[i].add(seconds[i]);
      c.texts[static_cast<size_t>(call.model)][call.bulk ? 1 : 0][static_cast<size_t>(reason_of(call.reason))] +=
          call.predictions.size();
      c.tokens[static_cast<size_t>(call.model)] += call.tokens;
      c.pairs[static_cast<size_t>(call.model)] += call.pairs;
      const auto stage = static_cast<size_t>(std::ranges::max_element(seconds) - seconds.begin());
      const double total = static_cast<double>(written_ns - call.exchange->begun_ns()) * 1e-9;
      c.slowest[stage].add(total);
      c.models[static_cast<size_t>(call.model)].add(total);
    });
    respond(call, {.body = std::move(out)});
  }
  call.served.reset();  // a slow reader must not keep a model loaded
  call.other.reset();
  if (call.ended) at(call.thread).calls.erase(call);
}

std::array<double, kStages> Dispatcher::stages_of(const Call& call, int64_t written_ns) {
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

std::string Dispatcher::compute_fields(const Call& call) {
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

// --- responses ---

void Dispatcher::respond(Call& call, Reply reply) {
  if (call.ended) return;
  if (!reply.model.empty()) call.model = models_.index_of(reply.model);
  if (reply.texts > 0) call.rows = reply.texts;
  if (reply.tokens > 0) call.tokens = static_cast<size_t>(reply.tokens);
  if (reply.pairs > 0) call.pairs = reply.pairs;
  Response response;
  response.status = reply.status;
  response.body = std::move(reply.body);
  response.content_type = reply.content_type;
  if (!call.predictions.empty()) response.fields = compute_fields(call);
  response.fields += reply.fields + ignored_field(call.ignored) + fmt::format("X-Request-Id: {}\r\n", call.id);
  call.done = true;
  call.exchange->answer(std::move(response));
}

void Dispatcher::count_refusal(int thread, int status) {
  metrics_.count(thread, [&](Counts& c) {
    const auto count = [&](Rejection reason) { ++c.rejected[static_cast<size_t>(reason)]; };
    if (status == 504) ++c.deadlines_missed;
    if (status == 504) count(Rejection::deadline);
    if (status == 429) count(Rejection::overloaded);
    if (status == 401 || status == 403) count(Rejection::auth);
    if (status == 503) count(state_.draining ? Rejection::draining : Rejection::loading);
  });
}

void Dispatcher::refuse(Call& call, const Refusal& refusal) {
  call.done = true;
  if (call.ended) return;
  count_refusal(call.exchange->thread(), refusal.status);
  Response response = error_response(refusal, call.route->shape);
  response.fields += fmt::format("X-Request-Id: {}\r\n", call.id);
  call.exchange->answer(std::move(response));
}

void Dispatcher::abort_response(Call& call, const Refusal& refusal) {
  log_warning("{} {}: response aborted: {}", call.exchange->path(), call.id, refusal.message);
  call.done = true;
  call.broken = refusal.status;
  call.exchange->drop();
}

std::string Dispatcher::log_line(const Exchange& exchange, const Call* call, int status, size_t bytes,
                                 double seconds) const {
  const auto unix_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  std::string line;
  rows::JsonWriter json(line);
  const auto text_or_null = [&](std::string_view key, std::string_view text) {
    json.key(key);
    text.empty() ? json.null() : json.value(text);
  };
  json.begin_object().member("t_unix_ms", unix_ms).member("id", call == nullptr ? "" : call->id);
  json.member("remote", exchange.client());
  if (exchange.client() != exchange.remote()) json.member("proxy", exchange.remote());
  text_or_null("key", call == nullptr ? "" : call->key_name);
  json.member("route", call == nullptr || call->route == nullptr
                           ? ""
                           : fmt::format("{} {}", call->route->method, call->route->path));
  text_or_null("model", call != nullptr && call->model >= 0 ? models_.name(static_cast<size_t>(call->model)) : "");
  if (call != nullptr && call->pairs > 0) json.member("pairs", call->pairs);
  json.member("texts", call == nullptr ? 0 : call->predictions.size() + call->rows);
  json.member("tokens", call == nullptr ? 0 : call->tokens).member("code", status).member("bytes", bytes);
  json.key("ms").raw(fmt::format("{:.3f}", seconds * 1e3)).end_object();
  line += '\n';
  return line;
}

void Dispatcher::note_end(const Exchange& exchange, const Call* call, int status, size_t bytes) noexcept {
  const double seconds = seconds_since(exchange.begun_ns());
  const int route = call == nullptr || call->route == nullptr ? -1 : static_cast<int>(call->route - routes_.data());
  metrics_.count(exchange.thread(), [&](Counts& c) {
    ++c.requests[{route, call == nullptr ? -1 : call->model, status}];
    c.durations[route].add(seconds);
    if (status == 413) ++c.rejected[static_cast<size_t>(Rejection::body)];  // also if rejected by the HTTP layer
  });
  if (access_log_) access_log_(log_line(exchange, call, status, bytes, seconds));
}

void Dispatcher::answered(Exchange& exchange, int status, size_t bytes) noexcept {
  Call* call = at(exchange.thread()).calls.of(exchange);
  note_end(exchange, call, status, bytes);
  if (call != nullptr) release(*call);
}

void Dispatcher::gone(Exchange& exchange) noexcept {
  Call* call = at(exchange.thread()).calls.of(exchange);
  if (call == nullptr) return;
  if (call->held_body != nullptr && call->held_body->take()) std::string().swap(call->held_body->text);
  // Disconnecting from /events cancels nothing.
  const bool streams = call->stream != nullptr && call->route->scores && !call->done;
  if (call->left > 0) call->stop.request_stop();
  const bool client_left = !state_.cutting;  // otherwise the server cut the connection
  if (client_left && (call->left > 0 || streams)) metrics_.count(exchange.thread(), [](Counts& c) { ++c.cancelled; });
  note_end(exchange, call, call->broken > 0 ? call->broken : client_left ? kClientClosedRequest : 503, 0);
  release(*call);
}

// The exchange is over; the call lives until its last result has arrived.
void Dispatcher::release(Call& call) noexcept {
  call.exchange->tag = 0;
  if (call.stream != nullptr) call.stream->leave();
  call.ended = true;
  call.done = true;
  if (std::exchange(call.counted, false)) --state_.requests;
  if (call.left == 0) at(call.thread).calls.erase(call);
}

}  // namespace brim::serve
