// SPDX-License-Identifier: Apache-2.0
// Parses request bodies and submits their texts to scorers.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/utf8.h"
#include "serve/service_inbox.h"

namespace brim::serve {

std::shared_ptr<Service::HeldBody> Service::hold_body(Call& call) {
  call.held_body = std::make_shared<HeldBody>();
  call.held_body->text = std::move(call.exchange->body());
  return call.held_body;
}

// The helper owns the body during this time, because the client may disconnect and destroy the exchange.
void Service::parse_on_helper(Call& call) {
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
  run_on(helpers_, call, parse, [this, body, parsed](Call& held) {
    held.exchange->body() = std::move(body->text);
    held.parsed = parsed;
    run_held(held);
  });
}

nlohmann::json Service::body_of(Call& call) {
  const auto parsed = std::exchange(call.parsed, nullptr);
  nlohmann::json body = parsed != nullptr ? std::move(*parsed) : parse_body(call.exchange->body());
  call.ignored = ignored_keys(call.route->path, body);
  return body;
}

namespace {

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

void Service::score(Call& call, const RequestOptions& options, const std::vector<std::string_view>& texts,
                    Write write) {
  std::vector<Text> all;
  all.reserve(texts.size());
  for (const std::string_view text : texts) all.push_back({options.model, text});
  score(call, options, all, std::move(write));
}

void Service::score(Call& call, const RequestOptions& options, const std::vector<Text>& texts, Write write) {
  const Refusal empty{400, "Empty", "Input validation error: `inputs` cannot be empty"};
  if (texts.empty()) throw empty;
  if (texts.size() > options_.texts_per_request)
    throw invalid(
        fmt::format("batch size {} > maximum allowed batch size {}", texts.size(), options_.texts_per_request));
  call.parsed_ns = now_ns();
  call.model = options.model;
  call.served = options.served;
  call.reason = options.reason;
  call.instead_of = options.instead_of;
  call.bulk = options.bulk;
  call.null_errors = options.null_errors;
  call.timeout_ms = options.timeout_ms;
  call.write = std::move(write);
  call.predictions.assign(texts.size(), {});
  call.characters = 0;
  std::vector<Request> requests;
  requests.reserve(texts.size());
  std::optional<std::chrono::steady_clock::time_point> deadline;
  if (options.timeout_ms > 0)
    deadline = std::chrono::steady_clock::time_point(std::chrono::nanoseconds(call.exchange->begun_ns())) +
               std::chrono::microseconds(static_cast<int64_t>(options.timeout_ms * 1e3));
  const uint64_t client = client_of(call);
  size_t bytes = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string_view text = texts[i].text, pair = texts[i].pair.value_or("");
    bytes += text.size() + pair.size() + 4 * texts[i].ids.size();
    std::optional<Refusal> problem;
    if ((text.empty() && texts[i].ids.empty()) || (texts[i].pair && pair.empty())) problem = empty;
    if (const size_t longer = std::max(text.size(), pair.size()); longer > options_.text_bytes)
      problem = too_large(longer, options_.text_bytes);
    if (problem && !options.null_errors) throw *problem;
    if (problem) {
      call.predictions[i].error.emplace(ErrorCode::bad_data, problem->message);
      continue;
    }
    call.characters += count_code_points(text) + count_code_points(pair);
  }
  const double limit =
      options.timeout_ms > 0 ? std::min(options_.queue_seconds, options.timeout_ms * 1e-3) : options_.queue_seconds;
  // Estimates four bytes per token. If the client has nothing waiting, only the wait for other clients' texts must be
  // below the limit, plus the deadline; the time for its own texts does not count.
  const ClientWait wait = call.served->scorer->wait_of(client, static_cast<int64_t>(bytes / 4), options.bulk, deadline);
  const double counted = wait.own_tokens > 0 ? wait.end_seconds : wait.begin_seconds;
  const double timeout = options.timeout_ms * 1e-3;
  if (wait.begin_seconds > 0 && counted > limit) throw overloaded(counted, limit, wait.begin_seconds);
  if (wait.begin_seconds > 0 && options.timeout_ms > 0 && wait.end_seconds > timeout)
    throw overloaded(wait.end_seconds, timeout, wait.begin_seconds);
  for (const Text& text : texts)
    if (text.model != call.model && call.other == nullptr) call.other = model_at(text.model);
  Inbox& inbox = *inboxes_[static_cast<size_t>(call.exchange->thread())];
  call.stop = std::stop_source();
  call.slot = inbox.put(call);
  call.left = static_cast<size_t>(
      std::count_if(call.predictions.begin(), call.predictions.end(), [](const Prediction& p) { return !p.error; }));
  if (call.left == 0) return finish(call);
  if (outstanding_.fetch_add(call.left) == 0) progress_.note(now_ns());
  // Submits texts of the same model together, so that an idle device starts with all of them. Taggers read long texts
  // in windows unless the request asks for truncation.
  for (size_t begin = 0; begin < texts.size();) {
    size_t end = begin;
    requests.clear();
    const Served& served = texts[begin].model == call.model ? call.served : call.other;
    std::optional<LongText> long_text = options.long_text;
    const bool tags = options.entities || served->scorer->kind() == ModelKind::tagger;
    if (!long_text && options_.truncates && options_.tags_whole_texts && tags) long_text = LongText::window_mean;
    for (; end < texts.size() && texts[end].model == texts[begin].model; ++end) {
      if (call.predictions[end].error) continue;
      Request request;
      request.text = texts[end].text;
      request.pair = texts[end].pair;
      request.ticket = uint64_t{call.slot} << kIndexBits | end;
      request.deadline = deadline;
      request.stop = call.stop.get_token();
      request.long_text = long_text;
      request.keep_end = options.keep_end;
      request.raw_scores = options.raw;
      request.bulk = options.bulk;
      request.client = client;
      request.ids = texts[end].ids;
      request.aggregation = options.aggregation;
      request.overlap = options.overlap;
      request.entities = options.entities;
      requests.push_back(std::move(request));
    }
    try {
      if (bytes > kHelperBytes)
        submit_on_helper(served, requests, inbox);
      else
        served->scorer->submit(requests, inbox);
    } catch (...) {  // these and the following texts will get no result
      const auto unsubmitted =
          static_cast<size_t>(std::count_if(call.predictions.begin() + static_cast<std::ptrdiff_t>(begin),
                                            call.predictions.end(), [](const Prediction& p) { return !p.error; }));
      outstanding_ -= unsubmitted;
      call.left -= unsubmitted;
      call.stop.request_stop();
      if (call.left == 0) inbox.remove(call.slot);
      throw;
    }
    begin = end;
  }
  call.submitted_ns = bytes > kHelperBytes ? 0 : now_ns();
}

// Every request gets a result, from the scorer or as an error.
void Service::submit_on_helper(const Served& served, const std::vector<Request>& requests, Inbox& inbox) {
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
