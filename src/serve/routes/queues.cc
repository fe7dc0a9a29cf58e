// SPDX-License-Identifier: Apache-2.0
// /queues: items that are collected, scored together, and survive a kill.
#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "serve/routes/routes.h"
#include "serve/server_parts.h"

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

std::optional<Reply> queue_call(RequestContext& context) {
  Call& call = context.call;
  ServerParts& server = context.server;
  if (server.durable == nullptr || server.options.queues.empty())
    throw Refusal{404, "NotFound", "this server has no queues"};
  Exchange& exchange = *call.exchange;
  const QueuePath path = parse_queue_path(exchange.path());
  const std::string method(exchange.head().method == "HEAD" ? "GET" : exchange.head().method);
  const std::string key(exchange.head().find("idempotency-key"));
  const std::string after = query_value(exchange.query(), "after");
  Workers& workers = method == "POST" ? server.durable->flushing() : server.durable->disk();
  return server.dispatcher.run_on(
      workers, call, [&server, path, method, key, after, route = call.route->path, held = Dispatcher::hold_body(call)] {
        Reply result;
        if (!held->take()) return result;  // the client has disconnected
        QueueJson body = QueueJson::object();
        if (!held->text.empty()) {
          // Enforces limits with the usual error messages.
          result.fields = ignored_field(ignored_keys(route, parse_body(held->text)));
          body = QueueJson::parse(held->text);  // keeps the key order of items
          require_short_texts(body, server.options.text_bytes());
        }
        const QueueAnswer answer = run_queue_call(server.durable->queues(), method, path, body, key, after);
        result.status = answer.status;
        result.body = answer.body.dump(-1, ' ', false, QueueJson::error_handler_t::replace);
        result.texts = answer.texts;
        result.tokens = answer.tokens;
        result.pairs = answer.pairs;
        result.model = answer.model;
        return result;
      });
}

constexpr Route kQueueRoutes[] = {
    {"POST", "/queues/{queue}/score_or_queue", Scope::queue, kTei, true, queue_call},
    {"POST", "/queues/{queue}/flush_and_apply", Scope::queue, kTei, true, queue_call},
    {"GET", "/queues/{queue}", Scope::queue, kTei, false, queue_call},
    {"GET", "/queues/{queue}/flushes", Scope::queue, kTei, false, queue_call},
    {"GET", "/queues/{queue}/flushes/{id}", Scope::queue, kTei, false, queue_call},
    {"DELETE", "/queues/{queue}/flushes/{id}", Scope::queue, kTei, false, queue_call},
};

}  // namespace

Routes queue_routes() { return kQueueRoutes; }

}  // namespace brim::serve
