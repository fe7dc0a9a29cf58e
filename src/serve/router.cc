// SPDX-License-Identifier: Apache-2.0
#include "serve/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "base/units.h"
#include "serve/routes/routes.h"

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

Response preflight_response(const RequestHead& head, const std::string& methods) {
  // Clients add their own headers (OpenAI's client adds a dozen). They are ignored here, so allow all of them.
  std::string_view fields = head.find("access-control-request-headers");
  if (fields.empty() || fields.size() > 1024 || !std::all_of(fields.begin(), fields.end(), [](char c) {
        return c == '-' || c == ',' || c == ' ' || c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
               (c >= 'A' && c <= 'Z');
      }))
    fields = "Authorization, Content-Type";
  return {.fields = fmt::format("Access-Control-Allow-Methods: {}\r\nAccess-Control-Allow-Headers: {}\r\n"
                                "Access-Control-Max-Age: 600\r\n",
                                methods, fields)};
}

}  // namespace

Router::Router(ServerParts& server) : server_(server) {
  std::random_device random;
  id_prefix_ = fmt::format("{:08x}-", random());
}

Routes Router::routes() {
  static const std::vector<Route> all = [] {
    std::vector<Route> list;
    for (const Routes part : {operations_routes(), tei_routes(), token_routes(), openai_routes(), brim_routes(),
                              queue_routes(), row_routes(), admin_routes(), job_routes()})
      list.insert(list.end(), part.begin(), part.end());
    return list;
  }();
  return all;
}

std::vector<std::pair<std::string, std::string>> Router::route_names() {
  std::vector<std::pair<std::string, std::string>> names;
  for (const Route& route : routes()) names.emplace_back(route.method, route.path);
  return names;
}

std::string Router::request_id(const RequestHead& head) {
  const std::string_view given = head.find("x-request-id");
  const bool usable = !given.empty() && given.size() <= 128 &&
                      std::all_of(given.begin(), given.end(), [](char c) { return c > 0x20 && c < 0x7F; });
  return usable ? std::string(given) : fmt::format("{}{:x}", id_prefix_, ++next_id_);
}

Router::Origin Router::origin_of(const RequestHead& head, bool known_path) const {
  Origin origin;
  origin.name = head.find("origin");
  const auto& allowed = server_.options.cors_origins;
  const auto has = [&](std::string_view name) {
    return !origin.name.empty() && std::find(allowed.begin(), allowed.end(), name) != allowed.end();
  };
  origin.listed = has(origin.name);
  origin.allowed = origin.listed || has("*");
  origin.preflight =
      origin.allowed && head.method == "OPTIONS" && known_path && !head.find("access-control-request-method").empty();
  return origin;
}

std::optional<Response> Router::admit(Exchange& exchange) {
  Call& call = server_.dispatcher.begin(exchange);
  const RequestHead& head = exchange.head();
  call.id = request_id(head);
  const std::string_view method = head.method == "HEAD" ? std::string_view("GET") : head.method;
  std::string methods;
  for (const Route& route : routes()) {
    if (!matches(route.path, exchange.path())) continue;
    if (method == route.method) call.route = &route;
    methods += (methods.empty() ? "" : ", ") + std::string(route.method);
  }
  const Origin origin = origin_of(head, !methods.empty());
  if (origin.allowed)
    exchange.fields = fmt::format(
        "Access-Control-Allow-Origin: {}\r\nVary: Origin\r\nAccess-Control-Expose-Headers: {}\r\n", origin.name,
        "Retry-After, Server-Timing, X-Request-Id, X-Brim-Model, X-Brim-Reason, X-Brim-Instead-Of, X-Brim-Errors, "
        "X-Brim-Ignored");
  const std::optional<Refusal> refusal = check(call, origin, methods);
  call.done = refusal || origin.preflight;
  if (!refusal) return origin.preflight ? std::optional(preflight_response(head, methods)) : std::nullopt;
  server_.dispatcher.count_refusal(exchange.thread(), refusal->status);
  Response response = error_response(*refusal, call.route != nullptr ? call.route->shape : ErrorShape::tei);
  response.fields += fmt::format("X-Request-Id: {}\r\n", call.id);
  return response;
}

std::optional<Refusal> Router::check(Call& call, const Origin& origin, const std::string& methods) {
  const RequestHead& head = call.exchange->head();
  const bool open = call.route != nullptr && call.route->scope == Scope::open;
  const std::string_view host = host_of(head.host);
  if (!open && !head.host.empty() && !is_allowed_host(host, server_.options.allowed_hosts))
    return Refusal{403, "Unauthorized", fmt::format("host '{}' is not allowed (add it with `allowed_host`)", host)};
  if (origin.preflight) return std::nullopt;  // browsers send preflights without credentials
  const std::shared_ptr<const ApiKeys> keys = server_.keys.get();
  if (!keys->empty() && !open)
    if (auto refusal = check_key(call, *keys)) return refusal;
  // Cross-origin pages can send these requests without a preflight, because their bodies need no particular content
  // type or there is no body. With API keys, "*" in cors_origins allows them.
  const bool cross_origin =
      origin.name.empty() ? head.find("sec-fetch-site") == "cross-site"
                          : origin.name.substr(std::min(origin.name.size(), origin.name.find("://") + 3)) != head.host;
  if (cross_origin && !origin.listed && !(origin.allowed && !keys->empty()) && call.route != nullptr &&
      (call.route->begin != nullptr || call.route->scope == Scope::admin || call.route->scope == Scope::jobs ||
       call.route->scope == Scope::queue))
    return Refusal{403, "Unauthorized", "cross-origin request refused"};
  if (auto refusal = check_route(call, methods)) return refusal;
  if (call.route->scores)
    if (auto refusal = check_body(call)) return refusal;
  if (call.route->begin == nullptr) return std::nullopt;
  try {
    RequestContext context{call, server_};
    call.stream = call.route->begin(context);
    call.exchange->stream_body();
  } catch (const Refusal& thrown) {
    return thrown;
  } catch (const Error& error) {
    return server_.dispatcher.refusal_of_error(error);
  }
  return std::nullopt;
}

std::optional<Refusal> Router::check_key(Call& call, const ApiKeys& keys) const {
  const RequestHead& head = call.exchange->head();
  const Scope scope = call.route != nullptr ? call.route->scope : Scope::score;
  const bool exempt = scope == Scope::metrics && is_from_this_machine(*call.exchange);
  const ApiKey* key = keys.find(head.find("authorization"));
  if (key != nullptr) call.key_name = key->name;
  if (key == nullptr && !exempt)
    return Refusal{
        401, "Unauthorized",
        head.find("authorization").empty() ? "missing API key (send Authorization: Bearer KEY)" : "unknown API key",
        "WWW-Authenticate: Bearer\r\n"};
  if (key != nullptr && !exempt && !key->allows(scope))
    return Refusal{403, "Unauthorized", fmt::format("API key '{}' lacks scope '{}'", key->name, scope_name(scope))};
  return std::nullopt;
}

std::optional<Refusal> Router::check_route(const Call& call, const std::string& methods) const {
  const std::string_view path = call.exchange->path();
  if (call.route != nullptr) return std::nullopt;
  if (!methods.empty())
    return Refusal{405, "NotFound", fmt::format("{}: method not allowed (use {})", path, methods),
                   fmt::format("Allow: {}\r\n", methods)};
  std::vector<std::string> paths;
  for (const Route& route : routes()) paths.emplace_back(route.path);
  const std::string near = nearest_name(path.substr(0, 200), paths);
  return Refusal{404, "NotFound",
                 fmt::format("unknown route {}{}", path.substr(0, 200),
                             near.empty() ? "" : fmt::format(" (did you mean {}?)", near))};
}

std::optional<Refusal> Router::check_body(const Call& call) const {
  const RequestHead& head = call.exchange->head();
  if (server_.state.refusing) return Refusal{503, "Unhealthy", "the server is shutting down", retry_after(1)};
  const bool has_body = head.chunked || head.length > 0;
  if (!has_body || call.route->begin != nullptr) return std::nullopt;
  if (!is_json_type(head.find("content-type")))
    return Refusal{415, "Validation", "Content-Type must be application/json"};
  const std::string_view coding = head.find("content-encoding");
  if (!coding.empty() && !same_ignoring_case(coding, "identity"))
    return Refusal{415, "Validation", "Content-Encoding is not supported by this route",
                   "Accept-Encoding: identity\r\n"};
  return std::nullopt;
}

void Router::handle(Exchange& exchange) {
  Call& call = server_.dispatcher.call_of(exchange);
  const auto limit = static_cast<size_t>(server_.options.max_requests);
  try {
    if (call.route->scores && call.route->scope == Scope::score && call.route->begin == nullptr) {
      call.counted = true;
      if (const size_t others = server_.state.requests++; limit > 0 && others >= limit)
        throw Refusal{429, "Overloaded", fmt::format("Model is overloaded: at most {} concurrent requests", limit),
                      retry_after(0)};
      server_.dispatcher.refuse_if_full(call);
    }
  } catch (const Refusal& refusal) {
    return server_.dispatcher.refuse(call, refusal);
  }
  if (call.counted && exchange.body().size() > Dispatcher::kHelperBytes)
    return server_.dispatcher.parse_on_helper(call, [this](Call& parsed) { run(parsed); });
  run(call);
}

void Router::run(Call& call) {
  if (call.route->begin != nullptr) {  // the body has ended
    if (!call.done) call.stream->ended();
    return;
  }
  try {
    RequestContext context{call, server_};
    if (std::optional<Reply> reply = call.route->handle(context)) server_.dispatcher.respond(call, std::move(*reply));
  } catch (const ModelBeingReplaced& replacing) {
    server_.dispatcher.hold(call, replacing.model, [this](Call& held) { run(held); });
  } catch (const Refusal& refusal) {
    server_.dispatcher.refuse(call, refusal);
  } catch (const Error& error) {
    server_.dispatcher.refuse(call, {424, "Backend", fmt::format("Backend error: {}", error.what())});
  }
}

void Router::take(Exchange& exchange, std::string_view bytes) {
  Call& call = server_.dispatcher.call_of(exchange);
  if (!call.done) call.stream->take(bytes);
}

void Router::sent(Exchange& exchange) { server_.dispatcher.call_of(exchange).stream->sent(); }

Response Router::refused(int status, const std::string& problem) {
  const char* type = status == 408   ? "Timeout"
                     : status == 503 ? "Overloaded"
                     : status == 500 ? "Backend"
                                     : "Validation";
  Refusal refusal{status, type, problem};
  if (status == 503) refusal.fields = retry_after(1);
  return error_response(refusal, ErrorShape::tei);
}

std::optional<uint64_t> Router::body_limit(const RequestHead& head) const {
  const std::string_view path = head.target.substr(0, std::min(head.target.find('?'), head.target.size()));
  const bool streams = std::ranges::any_of(routes(), [&](const Route& route) {
    return route.begin != nullptr && route.path == path && route.method == head.method;
  });
  return streams ? std::optional(kStreamedBytes) : std::nullopt;
}

}  // namespace brim::serve
