// SPDX-License-Identifier: Apache-2.0
// Admission: the route table and all checks that need only the request head.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "base/units.h"
#include "serve/service.h"

namespace brim::serve {
namespace {

constexpr uint64_t kStreamedBytes = uint64_t{64} << 30;  // for bodies that are streamed, never held in memory

// IP addresses are always allowed: DNS rebinding needs a host name.
bool is_allowed_host(std::string_view host, const std::vector<std::string>& allowed) {
  return IpAddress::read(host) || same_ignoring_case(host, "localhost") ||
         std::ranges::any_of(allowed, [&](const std::string& name) { return same_ignoring_case(host, name); });
}

bool is_from_this_machine(const Exchange& exchange) {
  if (exchange.client_unclear()) return false;
  const std::optional<IpAddress> address = IpAddress::read(exchange.client());
  return exchange.client() == "unix" || (address && address->is_loopback());
}

// In a pattern, {name} matches one path segment and a final * the rest.
bool matches(std::string_view pattern, std::string_view path) {
  if (pattern.ends_with('*')) return path.starts_with(pattern.substr(0, pattern.size() - 1));
  for (size_t brace; (brace = pattern.find('{')) != std::string_view::npos;) {
    if (path.substr(0, brace) != pattern.substr(0, brace)) return false;
    path.remove_prefix(brace);
    pattern.remove_prefix(pattern.find('}') + 1);
    const size_t part = std::min(path.find('/'), path.size());
    if (part == 0) return false;
    path.remove_prefix(part);
  }
  return path == pattern;
}

bool is_json_type(std::string_view type) {
  const std::string_view kind = type.substr(0, std::min(type.find(';'), type.size()));
  return same_ignoring_case(kind, "application/json") || same_ignoring_case(kind, "application/json ");
}

}  // namespace

const std::vector<Service::Route>& Service::routes() {
  using S = Service;
  constexpr auto kTei = ErrorShape::tei, kOpenAi = ErrorShape::openai;
  static const std::vector<Route> all = {
      {"GET", "/ping", Scope::open, kTei, false, &S::ping},
      {"GET", "/health", Scope::open, kTei, false, &S::health},
      {"GET", "/health/live", Scope::open, kTei, false, &S::live},
      {"GET", "/health/ready", Scope::open, kTei, false, &S::ready},
      {"GET", "/metrics", Scope::metrics, kTei, false, &S::metrics},
      {"GET", "/", Scope::open, kTei, false, &S::dashboard},
      {"GET", "/dashboard", Scope::open, kTei, false, &S::dashboard},
      {"GET", "/snapshot", Scope::metrics, kTei, false, &S::snapshot},
      {"GET", "/history", Scope::metrics, kTei, false, &S::history},
      {"GET", "/events", Scope::metrics, kTei, false, &S::events},
      {"GET", "/trace", Scope::admin, kTei, false, &S::trace},
      {"GET", "/openapi.json", Scope::open, kTei, false, &S::openapi},
      {"GET", "/info", Scope::score, kTei, false, &S::info},
      {"POST", "/predict", Scope::score, kTei, true, &S::predict},
      {"POST", "/embed", Scope::score, kTei, true, &S::embed},
      {"POST", "/similarity", Scope::score, kTei, true, &S::similarity},
      {"POST", "/tokenize", Scope::score, kTei, true, &S::tokenize},
      {"POST", "/", Scope::score, kTei, true, &S::by_task},
      {"POST", "/invocations", Scope::score, kTei, true, &S::by_task},
      {"POST", "/rerank", Scope::score, kTei, true, &S::rerank},
      {"POST", "/embed_all", Scope::score, kTei, true, &S::embed_all},
      {"POST", "/embed_sparse", Scope::score, kTei, true, &S::embed_sparse},
      {"POST", "/decode", Scope::score, kTei, true, &S::decode},
      {"POST", "/v1/embeddings", Scope::score, kOpenAi, true, &S::embeddings},
      {"POST", "/embeddings", Scope::score, kOpenAi, true, &S::embeddings},
      {"GET", "/v1/models", Scope::score, kOpenAi, false, &S::list_models},
      {"GET", "/v1/models/*", Scope::score, kOpenAi, false, &S::show_model},
      {"POST", "/classify", Scope::score, kTei, true, &S::classify},
      {"POST", "/ner", Scope::score, kTei, true, &S::ner},
      {"POST", "/analyze", Scope::score, kTei, true, &S::analyze},
      {"POST", "/queues/{queue}/score_or_queue", Scope::queue, kTei, true, &S::queue_call},
      {"POST", "/queues/{queue}/flush_and_apply", Scope::queue, kTei, true, &S::queue_call},
      {"GET", "/queues/{queue}", Scope::queue, kTei, false, &S::queue_call},
      {"GET", "/queues/{queue}/flushes", Scope::queue, kTei, false, &S::queue_call},
      {"GET", "/queues/{queue}/flushes/{id}", Scope::queue, kTei, false, &S::queue_call},
      {"DELETE", "/queues/{queue}/flushes/{id}", Scope::queue, kTei, false, &S::queue_call},
      {"POST", "/models/*", Scope::score, kTei, true, &S::hugging_face},
      {"POST", "/score", Scope::score, kTei, true, &S::stream_ended, &S::begin_score},
      {"POST", "/admin/*", Scope::admin, kTei, false, &S::admin},
      {"POST", "/jobs", Scope::jobs, kTei, true, &S::stream_ended, &S::begin_job},
      {"GET", "/jobs", Scope::jobs, kTei, false, &S::list_jobs},
      {"GET", "/jobs/{id}", Scope::jobs, kTei, false, &S::job_call},
      {"DELETE", "/jobs/{id}", Scope::jobs, kTei, false, &S::job_call},
      {"GET", "/jobs/{id}/output", Scope::jobs, kTei, false, &S::job_call},
  };
  return all;
}

std::vector<std::pair<std::string, std::string>> Service::route_names() {
  std::vector<std::pair<std::string, std::string>> names;
  for (const Route& route : routes()) names.emplace_back(route.method, route.path);
  return names;
}

std::optional<Response> Service::admit(Exchange& exchange) {
  auto owned = std::make_unique<Call>();
  Call& call = *owned.release();  // release() deletes it
  exchange.tag = reinterpret_cast<uint64_t>(&call);
  call.exchange = &exchange;
  call.thread = exchange.thread();
  const RequestHead& head = exchange.head();
  const std::string_view request_id = head.find("x-request-id");
  const bool usable = !request_id.empty() && request_id.size() <= 128 &&
                      std::all_of(request_id.begin(), request_id.end(), [](char c) { return c > 0x20 && c < 0x7F; });
  call.id = usable ? std::string(request_id) : fmt::format("{}{:x}", id_prefix_, ++next_id_);

  const std::string_view path = exchange.path();
  std::string_view method = head.method == "HEAD" ? std::string_view("GET") : head.method;
  std::string allowed;
  for (const Route& route : routes()) {
    if (!matches(route.path, path)) continue;
    if (method == route.method) call.route = &route;
    allowed += (allowed.empty() ? "" : ", ") + std::string(route.method);
  }
  const std::string_view origin = head.find("origin");
  const auto listed = [&](std::string_view name) {
    return !origin.empty() &&
           std::find(options_.cors_origins.begin(), options_.cors_origins.end(), name) != options_.cors_origins.end();
  };
  const bool cors_allowed = listed(origin) || listed("*");
  if (cors_allowed)
    exchange.fields = fmt::format(
        "Access-Control-Allow-Origin: {}\r\nVary: Origin\r\nAccess-Control-Expose-Headers: {}\r\n", origin,
        "Retry-After, Server-Timing, X-Request-Id, X-Brim-Model, X-Brim-Reason, X-Brim-Instead-Of, X-Brim-Errors, "
        "X-Brim-Ignored");
  const bool preflight = cors_allowed && head.method == "OPTIONS" && !allowed.empty() &&
                         !head.find("access-control-request-method").empty();
  const auto refusal = [&]() -> std::optional<Refusal> {
    const bool open = call.route != nullptr && call.route->scope == Scope::open;
    const std::string_view host = host_of(head.host);
    if (!open && !head.host.empty() && !is_allowed_host(host, options_.allowed_hosts))
      return Refusal{403, "Unauthorized", fmt::format("host '{}' is not allowed (add it with `allowed_host`)", host)};
    if (preflight) return std::nullopt;  // browsers send preflights without credentials
    std::shared_ptr<const ApiKeys> keys;
    {
      std::lock_guard lock(keys_mutex_);
      keys = keys_;
    }
    if (!keys->empty() && !open) {
      const Scope scope = call.route != nullptr ? call.route->scope : Scope::score;
      const bool exempt = scope == Scope::metrics && is_from_this_machine(exchange);
      const ApiKey* key = keys->find(head.find("authorization"));
      if (key != nullptr) call.key_name = key->name;
      if (key == nullptr && !exempt)
        return Refusal{
            401, "Unauthorized",
            head.find("authorization").empty() ? "missing API key (send Authorization: Bearer KEY)" : "unknown API key",
            "WWW-Authenticate: Bearer\r\n"};
      if (key != nullptr && !exempt && !key->allows(scope))
        return Refusal{403, "Unauthorized", fmt::format("API key '{}' lacks scope '{}'", key->name, scope_name(scope))};
    }
    // Cross-origin pages can send these requests without a preflight, because their bodies need no particular content
    // type or there is no body. With API keys, "*" in cors_origins allows them.
    const bool cross_origin = origin.empty()
                                  ? head.find("sec-fetch-site") == "cross-site"
                                  : origin.substr(std::min(origin.size(), origin.find("://") + 3)) != head.host;
    if (cross_origin && !listed(origin) && !(cors_allowed && !keys->empty()) && call.route != nullptr &&
        (call.route->begin != nullptr || call.route->scope == Scope::admin || call.route->scope == Scope::jobs ||
         call.route->scope == Scope::queue))
      return Refusal{403, "Unauthorized", "cross-origin request refused"};
    if (call.route == nullptr && !allowed.empty())
      return Refusal{405, "NotFound", fmt::format("{}: method not allowed (use {})", path, allowed),
                     fmt::format("Allow: {}\r\n", allowed)};
    if (call.route == nullptr) {
      std::vector<std::string> paths;
      for (const Route& route : routes()) paths.emplace_back(route.path);
      const std::string near = nearest_name(path.substr(0, 200), paths);
      return Refusal{404, "NotFound",
                     fmt::format("unknown route {}{}", path.substr(0, 200),
                                 near.empty() ? "" : fmt::format(" (did you mean {}?)", near))};
    }
    if (call.route->scores) {
      if (refusing_) return Refusal{503, "Unhealthy", "the server is shutting down", retry_after(1)};
      const bool has_body = head.chunked || head.length > 0;
      if (has_body && call.route->begin == nullptr && !is_json_type(head.find("content-type")))
        return Refusal{415, "Validation", "Content-Type must be application/json"};
      if (const std::string_view coding = head.find("content-encoding");
          has_body && call.route->begin == nullptr && !coding.empty() && !same_ignoring_case(coding, "identity"))
        return Refusal{415, "Validation", "Content-Encoding is not supported by this route",
                       "Accept-Encoding: identity\r\n"};
    }
    if (call.route->begin == nullptr) return std::nullopt;
    try {
      (this->*call.route->begin)(call);
      exchange.stream_body();
    } catch (const Refusal& thrown) {
      return thrown;
    } catch (const Error& error) {
      return refusal_of_blocking_work(error);
    }
    return std::nullopt;
  }();
  if (!refusal && preflight) {
    call.done = true;
    // Clients add their own headers (OpenAI's client adds a dozen). They are ignored here, so allow all of them.
    std::string_view fields = head.find("access-control-request-headers");
    if (fields.empty() || fields.size() > 1024 || !std::all_of(fields.begin(), fields.end(), [](char c) {
          return c == '-' || c == ',' || c == ' ' || c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                 (c >= 'A' && c <= 'Z');
        }))
      fields = "Authorization, Content-Type";
    return Response{.fields = fmt::format("Access-Control-Allow-Methods: {}\r\nAccess-Control-Allow-Headers: {}\r\n"
                                          "Access-Control-Max-Age: 600\r\n",
                                          allowed, fields)};
  }
  if (!refusal) return std::nullopt;
  count_refusal(exchange.thread(), refusal->status);
  call.done = true;
  Response response = error_response(*refusal, call.route != nullptr ? call.route->shape : ErrorShape::tei);
  response.fields += fmt::format("X-Request-Id: {}\r\n", call.id);
  return response;
}

void Service::handle(Exchange& exchange) {
  Call& call = *reinterpret_cast<Call*>(exchange.tag);
  try {
    if (call.route->scores && call.route->scope == Scope::score && call.route->begin == nullptr) {
      call.counted = true;
      if (const size_t others = at_work_++; options_.requests > 0 && others >= options_.requests)
        throw Refusal{429, "Overloaded",
                      fmt::format("Model is overloaded: at most {} concurrent requests", options_.requests),
                      retry_after(0)};
      refuse_if_full(call);
    }
  } catch (const Refusal& refusal) {
    return refuse(call, refusal);
  }
  if (call.counted && exchange.body().size() > kHelperBytes) return parse_on_helper(call);
  run_route(call);
}

void Service::run_route(Call& call) {
  try {
    (this->*call.route->handle)(call);
  } catch (const ModelBeingReplaced& replacing) {
    hold(call, replacing.model);
  } catch (const Refusal& refusal) {
    refuse(call, refusal);
  } catch (const Error& error) {
    refuse(call, {424, "Backend", fmt::format("Backend error: {}", error.what())});
  }
}

// Fair scheduling is per API key, or per address without one.
uint64_t Service::client_of(const Call& call) {
  return std::hash<std::string_view>()(call.key_name.empty() ? call.exchange->client() : call.key_name);
}

// Under overload most requests are rejected, so reject before parsing the body if every model's queue is full.
void Service::refuse_if_full(const Call& call) const {
  double shortest = options_.queue_seconds;
  // A request with a deadline goes before its client's texts without one. Finding the key in the raw body is enough for
  // this estimate; longer bodies are not searched on an I/O thread.
  std::optional<std::chrono::steady_clock::time_point> soonest;
  const std::string& body = call.exchange->body();
  if ((body.size() <= kHelperBytes && body.find("timeout_ms") != std::string::npos) ||
      !call.exchange->head().find("x-envoy-expected-rq-timeout-ms").empty())
    soonest = std::chrono::steady_clock::time_point::min();
  for (const auto& slot : slots_) {
    std::lock_guard lock(slot->mutex);
    if (slot->served == nullptr) continue;
    const double wait = slot->served->scorer->wait_of(client_of(call), 0, false, soonest).begin_seconds;
    if (wait <= options_.queue_seconds) return;
    shortest = shortest == options_.queue_seconds ? wait : std::min(shortest, wait);
  }
  if (shortest > options_.queue_seconds) throw overloaded(shortest, options_.queue_seconds, shortest);
}

Refusal Service::overloaded(double wait, double limit, double retry_seconds) {
  // Rounded up, so that `queue_ms` is above `limit_ms`; JSON has no infinity.
  const double wait_ms = std::min(std::ceil(wait * 1e3), 1e12);
  return {429, "Overloaded", "Model is overloaded", retry_after(retry_seconds),
          fmt::format(",\"queue_ms\":{:.0f},\"limit_ms\":{:.0f}", wait_ms, limit * 1e3)};
}

Response Service::refused(int status, const std::string& problem) {
  const char* type = status == 408   ? "Timeout"
                     : status == 503 ? "Overloaded"
                     : status == 500 ? "Backend"
                                     : "Validation";
  Refusal refusal{status, type, problem};
  if (status == 503) refusal.fields = retry_after(1);
  return error_response(refusal, ErrorShape::tei);
}

std::optional<uint64_t> Service::body_limit(const RequestHead& head) const {
  const std::string_view path = head.target.substr(0, std::min(head.target.find('?'), head.target.size()));
  const bool streams = std::any_of(routes().begin(), routes().end(), [&](const Route& route) {
    return route.begin != nullptr && route.path == path && route.method == head.method;
  });
  return streams ? std::optional(kStreamedBytes) : std::nullopt;
}

}  // namespace brim::serve
