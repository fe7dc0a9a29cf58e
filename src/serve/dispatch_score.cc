// SPDX-License-Identifier: Apache-2.0
// Checks the texts of a request and submits them to scorers.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/utf8.h"
#include "serve/inbox.h"
#include "serve/zero_shot.h"

namespace brim::serve {
namespace {

Refusal empty_inputs() { return {400, "Empty", "Input validation error: `inputs` cannot be empty"}; }

// The deadline of a request with `timeout_ms`.
std::optional<std::chrono::steady_clock::time_point> deadline_of(const Call& call, double timeout_ms) {
  if (timeout_ms <= 0) return std::nullopt;
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(call.exchange->begun_ns())) +
         std::chrono::microseconds(static_cast<int64_t>(timeout_ms * 1e3));
}

size_t unanswered(const Call& call, size_t begin) {
  return static_cast<size_t>(std::count_if(call.predictions.begin() + static_cast<std::ptrdiff_t>(begin),
                                           call.predictions.end(), [](const Prediction& p) { return !p.error; }));
}

// Copies of texts and token ids that outlive the request body.
struct Submission {
  Served served;
  std::vector<Request> requests;
  std::string bytes;
  std::vector<int32_t> ids;

  Submission(const Served& model, const std::vector<Request>& views) : served(model), requests(views) {
    size_t total = 0, tokens = 0;
    for (const Request& request : views) {
      total += request.text.size() + request.pair.value_or("").size();
      tokens += request.ids.size();
    }
    bytes.reserve(total);  // the views below need stable addresses
    ids.reserve(tokens);
    for (Request& request : requests) {
      request.text = copy(request.text);
      if (request.pair) request.pair = copy(*request.pair);
      const size_t begin = ids.size();
      ids.insert(ids.end(), request.ids.begin(), request.ids.end());
      request.ids = std::span(ids).subspan(begin);
    }
  }

 private:
  std::string_view copy(std::string_view text) {
    const size_t begin = bytes.size();
    bytes += text;
    return std::string_view(bytes).substr(begin);
  }
};

}  // namespace

std::shared_ptr<HeldBody> Dispatcher::hold_body(Call& call) {
  call.held_body = std::make_shared<HeldBody>();
  call.held_body->text = std::move(call.exchange->body());
  return call.held_body;
}

// The helper owns the body during this time, because the client may disconnect and destroy the exchange.
void Dispatcher::parse_on_helper(Call& call, std::function<void(Call&)> then) {
  const auto body = hold_body(call);
  const auto parsed = std::make_shared<nlohmann::json>();
  const auto parse = [body, parsed]() -> std::optional<Refusal> {
    if (!body->take()) return std::nullopt;  // the client has disconnected
    try {
      *parsed = parse_body(body->text);
      return std::nullopt;
    } catch (const Refusal& refusal) {
      return refusal;
    } catch (const std::exception& error) {
      return Refusal{500, "Backend", error.what()};
    }
  };
  run_on(helpers_, call, parse, [this, body, parsed, then = std::move(then)](Call& held) {
    held.exchange->body() = std::move(body->text);
    held.parsed = parsed;
    continue_call(held, then);
  });
}

// Fair scheduling is per API key, or per address without one.
uint64_t Dispatcher::client_of(const Call& call) {
  return std::hash<std::string_view>()(call.key_name.empty() ? call.exchange->client() : call.key_name);
}

// Under overload most requests are rejected, so reject before parsing the body if every model's queue is full.
void Dispatcher::refuse_if_full(const Call& call) const {
  double shortest = options_.queue_seconds();
  // A request with a deadline goes before its client's texts without one. Finding the key in the raw body is enough for
  // this estimate; longer bodies are not searched on an I/O thread.
  std::optional<std::chrono::steady_clock::time_point> soonest;
  const std::string& body = call.exchange->body();
  if ((body.size() <= kHelperBytes && body.find("timeout_ms") != std::string::npos) ||
      !call.exchange->head().find("x-envoy-expected-rq-timeout-ms").empty())
    soonest = std::chrono::steady_clock::time_point::min();
  for (const Served& model : models_.loaded()) {
    const double wait = model->scorer->wait_of(client_of(call), 0, false, soonest).begin_seconds;
    if (wait <= options_.queue_seconds()) return;
    shortest = shortest == options_.queue_seconds() ? wait : std::min(shortest, wait);
  }
  if (shortest > options_.queue_seconds()) throw overloaded(shortest, options_.queue_seconds(), shortest);
}

Refusal Dispatcher::overloaded(double wait, double limit, double retry_seconds) {
  // `queue_ms` is rounded up and `limit_ms` is not rounded, so that the former is larger; JSON has no infinity. Ten
  // digits hide the rounding error of seconds in milliseconds.
  const double wait_ms = std::min(std::ceil(wait * 1e3), 1e12);
  return {429, "Overloaded", "Model is overloaded", retry_after(retry_seconds),
          fmt::format(",\"queue_ms\":{:.0f},\"limit_ms\":{:.10g}", wait_ms, limit * 1e3)};
}

std::nullopt_t Dispatcher::score(Call& call, const RequestOptions& options, const std::vector<std::string_view>& texts,
                                 WriteAnswer write) {
  return score(call, options, as_inputs(texts, options.model), std::move(write));
}

std::nullopt_t Dispatcher::score(Call& call, const RequestOptions& options, const std::vector<InputText>& texts,
                                 WriteAnswer write) {
  prepare(call, options, texts.size(), std::move(write));
  const size_t bytes = check_texts(call, options, texts);
  if (options.label_cost.labels > 0) count_pairs(call, options, texts);
  refuse_long_wait(call, options, bytes);
  for (const InputText& text : texts)
    if (text.model != call.model && call.other == nullptr) call.other = models_.get(text.model);
  call.stop = std::stop_source();
  call.left = unanswered(call, 0);
  if (call.left == 0) {
    finish(call);
    return kRespondsLater;
  }
  if (state_.texts.fetch_add(call.left) == 0) state_.progress.note(now_ns());
  submit(call, options, texts, bytes > kHelperBytes);
  return kRespondsLater;
}

void Dispatcher::prepare(Call& call, const RequestOptions& options, size_t texts, WriteAnswer write) const {
  if (texts == 0) throw empty_inputs();
  if (texts > options_.texts_per_request())
    throw invalid(fmt::format("batch size {} > maximum allowed batch size {}", texts, options_.texts_per_request()));
  call.parsed_ns = now_ns();
  call.model = options.model;
  call.served = options.served;
  call.reason = options.reason;
  call.instead_of = options.instead_of;
  call.bulk = options.bulk;
  call.null_errors = options.null_errors;
  call.timeout_ms = options.timeout_ms;
  call.write = std::move(write);
  call.predictions.assign(texts, {});
  call.pairs = 0;
  call.characters = 0;
}

// Returns the size of all texts, counting a text and its hypotheses once per zero-shot label, and the labels of
// entities once per text. Texts that cannot be scored get an error, or throw it.
size_t Dispatcher::check_texts(Call& call, const RequestOptions& options, const std::vector<InputText>& texts) const {
  size_t bytes = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string_view text = texts[i].text, pair = texts[i].pair.value_or("");
    const LabelCost& cost = options.label_cost;
    bytes += (text.size() + pair.size() + kBytesPerToken * texts[i].ids.size()) * std::max<size_t>(1, cost.labels);
    bytes += cost.hypothesis_bytes;
    std::optional<Refusal> problem;
    if ((text.empty() && texts[i].ids.empty()) || (texts[i].pair && pair.empty())) problem = empty_inputs();
    if (const size_t longer = std::max(text.size(), pair.size()); longer > options_.text_bytes())
      problem = too_large(longer, options_.text_bytes());
    if (problem && !options.null_errors) throw Refusal(*problem);
    if (problem) {
      call.predictions[i].error.emplace(ErrorCode::bad_data, problem->message);
      continue;
    }
    call.characters += count_code_points(text) + count_code_points(pair);
  }
  return bytes;
}

// Throws if there are too many.
void Dispatcher::count_pairs(Call& call, const RequestOptions& options, const std::vector<InputText>& texts) const {
  const LongText none = options_.merges_windows ? LongText::window_mean : LongText::truncate;
  const LongText how = options.long_text.value_or(none);
  const bool in_parts = how == LongText::window_mean || how == LongText::window_max;
  const int64_t part_tokens = in_parts ? call.served->scorer->max_length() : 0;
  size_t most = 0;
  for (const InputText& text : texts) {
    if (text.model != call.model) continue;
    call.pairs += options.label_cost.labels;
    most += most_pairs(options.label_cost, text.text.size(), part_tokens, options.overlap);
  }
  limit_pairs(options.label_cost, texts.size(), most);
}

// Estimates the tokens by their bytes, for each of a text's pairs. If the client has nothing waiting, only the wait for
// other clients' texts must be below the limit, plus the deadline; the time for its own texts does not count.
void Dispatcher::refuse_long_wait(const Call& call, const RequestOptions& options, size_t bytes) const {
  const double timeout = options.timeout_ms * 1e-3;
  const double limit = timeout > 0 ? std::min(options_.queue_seconds(), timeout) : options_.queue_seconds();
  const ClientWait wait = call.served->scorer->wait_of(client_of(call), static_cast<int64_t>(bytes / kBytesPerToken),
                                                       options.bulk, deadline_of(call, options.timeout_ms));
  const double counted = wait.own_tokens > 0 ? wait.end_seconds : wait.begin_seconds;
  if (wait.begin_seconds > 0 && counted > limit) throw overloaded(counted, limit, wait.begin_seconds);
  if (wait.begin_seconds > 0 && timeout > 0 && wait.end_seconds > timeout)
    throw overloaded(wait.end_seconds, timeout, wait.begin_seconds);
}

// The parts of a request that are the same for all texts of a call.
Request Dispatcher::common_request(const Call& call, const RequestOptions& options) {
  Request request;
  request.deadline = deadline_of(call, options.timeout_ms);
  request.stop = call.stop.get_token();
  request.long_text = options.long_text;
  request.keep_end = options.keep_end;
  request.raw_scores = options.raw;
  request.bulk = options.bulk;
  request.client = client_of(call);
  request.aggregation = options.aggregation;
  request.overlap = options.overlap;
  request.entities = options.entities;
  request.zero_shot = options.labels;
  return request;
}

// Submits texts of the same model together, so that an idle device starts with all of them.
void Dispatcher::submit(Call& call, const RequestOptions& options, const std::vector<InputText>& texts,
                        bool on_helper) {
  Inbox& inbox = *at(call.thread).inbox;
  const Request common = common_request(call, options);
  std::vector<Request> requests;
  requests.reserve(texts.size());
  for (size_t begin = 0; begin < texts.size();) {
    size_t end = begin;
    requests.clear();
    const Served& served = texts[begin].model == call.model ? call.served : call.other;
    // Taggers read long texts in windows unless the request asks for truncation.
    const bool tags = options.entities || served->scorer->kind() == ModelKind::tagger;
    const bool whole = !options.long_text && options_.truncates && options_.tags_whole_texts && tags;
    for (; end < texts.size() && texts[end].model == texts[begin].model; ++end) {
      if (call.predictions[end].error) continue;
      Request& request = requests.emplace_back(common);
      request.text = texts[end].text;
      request.pair = texts[end].pair;
      request.ids = texts[end].ids;
      request.ticket = uint64_t{call.slot} << kIndexBits | end;
      if (whole) request.long_text = LongText::window_mean;
    }
    try {
      if (on_helper)
        submit_on_helper(served, requests, inbox);
      else
        served->scorer->submit(requests, inbox);
    } catch (...) {  // these and the following texts will get no result
      const size_t unsubmitted = unanswered(call, begin);
      state_.texts -= unsubmitted;
      call.left -= unsubmitted;
      call.stop.request_stop();
      throw;
    }
    begin = end;
  }
  call.submitted_ns = on_helper ? 0 : now_ns();
}

// Every request gets a result, from the scorer or as an error.
void Dispatcher::submit_on_helper(const Served& served, const std::vector<Request>& requests, Inbox& inbox) {
  helpers_.call([work = std::make_shared<Submission>(served, requests), &inbox] {
    std::optional<Error> error;
    try {
      if (work->requests.front().stop.stop_requested()) fail(ErrorCode::cancelled, "the client disconnected");
      work->served->scorer->submit(work->requests, inbox);
    } catch (const Error& e) {
      error = e;
    } catch (const std::exception& e) {
      error.emplace(ErrorCode::internal, e.what());
    }
    if (!error) return;
    std::vector<Answer> answers;
    for (const Request& request : work->requests) {
      Answer& answer = answers.emplace_back();
      answer.ticket = request.ticket;
      answer.prediction.error = error;
    }
    inbox.done(answers);
  });
}

}  // namespace brim::serve
