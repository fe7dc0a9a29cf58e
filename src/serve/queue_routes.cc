// SPDX-License-Identifier: Apache-2.0
// /queues: items that are collected, scored together, and survive a kill.
#include <fmt/format.h>

#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "serve/blocking_work.h"
#include "serve/service.h"

namespace brim::serve {
namespace {

struct QueuePath {
  std::string queue, verb, id;
};

QueuePath parse_queue_path(std::string_view path) {
  path.remove_prefix(std::string_view("/queues/").size());
  QueuePath parts;
  for (std::string* part : {&parts.queue, &parts.verb, &parts.id}) {
    const size_t slash = std::min(path.find('/'), path.size());
    *part = path.substr(0, slash);
    path.remove_prefix(std::min(path.size(), slash + 1));
  }
  return parts;
}

uint64_t flush_id(const std::string& text) {
  uint64_t id = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (problem != std::errc() || end != text.data() + text.size()) throw Refusal{404, "NotFound", "flush not found"};
  return id;
}

QueueAnswer run_queue_call(Queues& queues, std::string_view method, const QueuePath& path, const QueueJson& body,
                           const std::string& key, const std::string& after) {
  Queue* queue = queues.find(path.queue);
  if (queue == nullptr)
    throw Refusal{
        404, "NotFound",
        fmt::format("queue {} not found (queues: {})", path.queue.substr(0, 200), fmt::join(queues.names(), ", "))};
  const Refusal not_found{404, "NotFound", "flush not found"};
  if (method == "POST" && path.verb == "score_or_queue") return queue->score_or_queue(body, key);
  if (method == "POST" && path.verb == "flush_and_apply") return queue->flush_and_apply(body, key);
  if (method == "GET" && path.verb.empty()) return {.body = queue->describe()};
  if (method == "GET" && path.verb == "flushes" && path.id.empty())
    return {.body = queue->flushes(after.empty() ? 0 : flush_id(after))};
  if (method == "GET" && path.verb == "flushes") {
    const auto flush = queue->flush(flush_id(path.id));
    if (!flush) throw not_found;
    return {.body = *flush};
  }
  if (method == "DELETE" && path.verb == "flushes" && !path.id.empty()) {
    if (!queue->acknowledge(flush_id(path.id))) throw not_found;
    return {.body = QueueJson{{"acknowledged", true}}};
  }
  throw Refusal{
      404, "NotFound",
      "unknown queue route (use POST score_or_queue or flush_and_apply, GET flushes, GET or DELETE flushes/ID)"};
}

void require_short_texts(const QueueJson& body, size_t max_bytes) {
  const auto check = [&](const QueueJson& entry) {
    const auto text = entry.is_object() ? entry.find("text") : entry.end();
    if (text == entry.end() || !text->is_string()) return;
    if (const size_t bytes = text->get_ref<const std::string&>().size(); bytes > max_bytes)
      throw too_large(bytes, max_bytes);
  };
  check(body);
  if (body.is_object() && body.contains("items"))
    for (const QueueJson& entry : body.at("items")) check(entry);
}

QueueScore queue_score(const ServedModel& model, const Predictions& scored, size_t row) {
  QueueScore score;
  score.model = model.name;
  if (scored.labels[row] < 0) return score;
  score.label = model.scorer->labels()[static_cast<size_t>(scored.labels[row])];
  score.score = scored.label_scores[row];
  const std::span row_scores(&scored.scores[row * scored.width], scored.width);
  if (const auto compound = compound_of(*model.scorer, row_scores)) score.compound = *compound;
  return score;
}

}  // namespace

void Service::queue_call(Call& call) {
  if (blocking_work_ == nullptr || options_.queues.empty()) throw Refusal{404, "NotFound", "this server has no queues"};
  Exchange& exchange = *call.exchange;
  const QueuePath path = parse_queue_path(exchange.path());
  const std::string method(exchange.head().method == "HEAD" ? "GET" : exchange.head().method);
  const std::string key(exchange.head().find("idempotency-key"));
  const std::string after = query_value(exchange.query(), "after");
  run_on(method == "POST" ? blocking_work_->flushing() : blocking_work_->disk(), call,
         [this, path, method, key, after, route = call.route->path, held = hold_body(call)] {
           BlockingAnswer result;
           if (!held->take()) return result;  // the client has disconnected
           QueueJson body = QueueJson::object();
           if (!held->text.empty()) {
             // Enforces limits with the usual error messages.
             result.fields = ignored_field(ignored_keys(route, parse_body(held->text)));
             body = QueueJson::parse(held->text);  // keeps the key order of items
             require_short_texts(body, options_.text_bytes);
           }
           const QueueAnswer answer = run_queue_call(blocking_work_->queues(), method, path, body, key, after);
           result.status = answer.status;
           result.body = answer.body.dump(-1, ' ', false, QueueJson::error_handler_t::replace);
           result.texts = answer.texts;
           result.tokens = answer.tokens;
           result.model = answer.model;
           return result;
         });
}

// Scores the items of a flush, each with the model that the queue's ladder chooses. Items of a rung that cannot be
// loaded move to the next one.
std::vector<QueueScore> Service::score(const QueueRules& rules, std::span<const QueueItem> items) {
  std::vector<QueueScore> scores(items.size());
  std::vector<RequestOptions> options(items.size());
  std::vector<size_t> left(items.size());
  std::iota(left.begin(), left.end(), size_t{0});
  std::map<int, Error> failed;  // by model, so that none is tried twice
  while (!left.empty()) {
    std::map<int, std::vector<size_t>> by_model;
    std::map<std::string, RequestOptions>
        chosen;  // by source; choosing again could wait for a model that this thread holds
    for (const size_t i : left) {
      try {
        auto [choice, first] = chosen.try_emplace(items[i].source);
        if (first) choice->second = choose_for_bulk(rules.model, items[i].source);
        options[i] = choice->second;
        if (const auto previous = failed.find(options[i].model); previous != failed.end()) throw previous->second;
      } catch (const Error& error) {
        fail(error.code(), "queue {}: {}", rules.name, error.what());
      }
      by_model[options[i].model].push_back(i);
    }
    left.clear();
    for (const auto& [model, indices] : by_model) {
      const ServedModel& served = *options[indices[0]].served;
      std::vector<std::string_view> texts;
      for (const size_t i : indices) texts.push_back(items[i].text);
      try {
        const Predictions scored = served.scorer->score(texts);
        for (size_t row = 0; row < texts.size(); ++row) {
          QueueScore& score = scores[indices[row]] = queue_score(served, scored, row);
          score.reason = options[indices[row]].reason;
          score.instead_of = options[indices[row]].instead_of;
        }
        for (const auto& [row, error] : scored.errors) scores[indices[row]].error = error.what();
        scores[indices[0]].tokens = scored.tokens;
        count_bulk(options[indices[0]], 0, scored.tokens);
        for (const size_t i : indices)
          if (scores[i].error.empty()) count_bulk(options[i], 1, 0);
      } catch (const Error& error) {
        if (!note_if_not_loaded(served, error)) throw;
        failed.emplace(model, error);
        left.insert(left.end(), indices.begin(), indices.end());
      }
    }
  }
  return scores;
}

}  // namespace brim::serve
