// SPDX-License-Identifier: Apache-2.0
// Health, metrics and dashboard routes. They do not use the scoring queues.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "serve/routes/routes.h"
#include "serve/server_parts.h"

namespace brim::serve {
namespace {

constexpr size_t kMaxUnsent = 64 << 10;  // clients that fall further behind are disconnected
constexpr int kKeepAliveSeconds = 15;
constexpr int64_t kHistoryMinutes = 15;

class EventStream final : public Stream, public EventSubscriber {
 public:
  EventStream(ServerParts& server, Call& call, int interval)
      : Stream(call), server_(server), interval_(interval), thread_(call.thread) {
    server_.telemetry.events().add(thread_, *this);
  }
  ~EventStream() override { server_.telemetry.events().remove(thread_, *this); }
  // Sends snapshots at the client's interval, other events at once.
  void deliver(const std::string& event, bool is_snapshot) override {
    if (call_ == nullptr || call_->done) return;
    Exchange& exchange = *call_->exchange;
    if (exchange.unsent() > kMaxUnsent) return exchange.drop();
    if (!is_snapshot || ++seconds_ % interval_ == 0)
      exchange.send(event);
    else if (seconds_ % kKeepAliveSeconds == 0)
      exchange.send(":\n\n");
    if (is_snapshot || !server_.state.draining) return;
    call_->done = true;
    exchange.end_answer();
  }

 private:
  ServerParts& server_;
  const int interval_;  // seconds
  int seconds_ = 0;
  const int thread_;
};

// A whole number from a query; `fallback` if it is missing. Throws Refusal.
int64_t query_number(std::string_view value, int64_t fallback, int64_t most, const char* problem) {
  if (value.empty()) return fallback;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < 1 || number > most) throw invalid(problem);
  return number;
}

std::optional<Reply> ping(RequestContext&) { return Reply{}; }

std::optional<Reply> live(RequestContext&) { return Reply{.body = R"({"status":"ok"})"}; }

std::optional<Reply> ready(RequestContext& context) {
  const ServerParts& server = context.server;
  if (server.state.draining) throw Refusal{503, "Unhealthy", "draining", "Retry-After: 1\r\n"};
  if (server.models.device_lost() || server.telemetry.gpu().lost)
    throw Refusal{503, "Unhealthy", "the device was lost"};
  // The model that answers requests without a model name.
  int model = std::max(0, server.models.first_of({ModelKind::classifier, ModelKind::rules}));
  if (!server.models.ladders().empty()) {
    const LadderView view = server.models.ladders()[0]->view(server.models.unix_now());
    if (view.active.empty()) throw Refusal{503, "Unhealthy", view.warnings.back(), retry_after(1)};
    model = server.models.find(view.active);
  }
  try {
    (void)server.models.get(model);
  } catch (const ModelBeingReplaced& replacing) {  // do not wait for it
    throw Refusal(replacing);
  }
  return Reply{.body = R"({"status":"ok"})"};
}

std::optional<Reply> health(RequestContext& context) {
  const Telemetry& telemetry = context.server.telemetry;
  const GpuReadings gpu = telemetry.gpu();
  const HealthView view = telemetry.health(gpu);
  Reply reply{.body = telemetry.health_json(gpu, view)};
  if (!context.server.state.draining && !view.dead) return reply;
  reply.status = 503;
  reply.fields = "Retry-After: 1\r\n";
  return reply;
}

std::optional<Reply> metrics(RequestContext& context) {
  return Reply{.body = context.server.telemetry.metrics_text(),
               .content_type = "text/plain; version=0.0.4; charset=utf-8"};
}

std::optional<Reply> dashboard(RequestContext&) {
  return Reply{.body = std::string(dashboard_html()),
               .content_type = "text/html; charset=utf-8",
               .fields = fmt::format("Content-Security-Policy: {}\r\nX-Content-Type-Options: nosniff\r\n"
                                     "Referrer-Policy: no-referrer\r\nCache-Control: no-cache\r\n",
                                     dashboard_policy())};
}

std::optional<Reply> snapshot(RequestContext& context) { return Reply{.body = context.server.telemetry.snapshot()}; }

std::optional<Reply> history(RequestContext& context) {
  const std::string value = query_value(context.call.exchange->query(), "minutes");
  return Reply{.body = context.server.telemetry.history(
                   query_number(value, kHistoryMinutes, INT64_MAX, "`minutes` must be a positive integer"))};
}

std::optional<Reply> events(RequestContext& context) {
  Call& call = context.call;
  const ServerParts& server = context.server;
  if (server.state.draining) throw Refusal{503, "Unhealthy", "the server is shutting down", "Retry-After: 1\r\n"};
  if (context.server.telemetry.events().full())
    throw Refusal{503, "Overloaded", fmt::format("too many event streams (at most {})", EventHub::kMaxSubscribers),
                  "Retry-After: 60\r\n"};
  std::string value = query_value(call.exchange->query(), "interval");
  if (value.ends_with('s')) value.pop_back();
  const int64_t interval = query_number(value, 1, 60, "`interval` must be from 1s to 60s");
  call.stream = std::make_shared<EventStream>(context.server, call, static_cast<int>(interval));
  call.exchange->begin_answer({.body = fmt::format("event: snapshot\ndata: {}\n\n", server.telemetry.snapshot()),
                               .content_type = "text/event-stream",
                               .fields = fmt::format("Cache-Control: no-store\r\nX-Request-Id: {}\r\n", call.id)},
                              std::nullopt);
  // If draining began after the check above, this stream has missed the event.
  if (server.state.draining) call.exchange->send("event: drain\ndata: {}\n\n");
  if (!server.state.draining && call.exchange->head().method != "HEAD") return kRespondsLater;
  call.done = true;
  call.exchange->end_answer();
  return kRespondsLater;
}

constexpr Route kOperationsRoutes[] = {
    {"GET", "/ping", Scope::open, kTei, false, ping},
    {"GET", "/health", Scope::open, kTei, false, health},
    {"GET", "/health/live", Scope::open, kTei, false, live},
    {"GET", "/health/ready", Scope::open, kTei, false, ready},
    {"GET", "/metrics", Scope::metrics, kTei, false, metrics},
    {"GET", "/", Scope::open, kTei, false, dashboard},
    {"GET", "/dashboard", Scope::open, kTei, false, dashboard},
    {"GET", "/snapshot", Scope::metrics, kTei, false, snapshot},
    {"GET", "/history", Scope::metrics, kTei, false, history},
    {"GET", "/events", Scope::metrics, kTei, false, events},
    {"GET", "/openapi.json", Scope::open, kTei, false, openapi},
};

}  // namespace

Routes operations_routes() { return kOperationsRoutes; }

}  // namespace brim::serve
