// SPDX-License-Identifier: Apache-2.0
#include "serve/telemetry.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/clock.h"

namespace brim::serve {

namespace {

using OrderedJson = nlohmann::ordered_json;

}  // namespace

Telemetry::Telemetry(const ServerOptions& options, const ModelRegistry& models, const ServerState& state,
                     std::vector<RouteLabel> routes)
    : options_(options), models_(models), state_(state), routes_(std::move(routes)), metrics_(models.capacity()) {}

void Telemetry::attach(const IoThreads& threads, const HttpServer* server) {
  server_ = server;
  metrics_.set_threads(threads.count);
  events_.attach(threads);
}

void Telemetry::set_gpu(GpuReadings readings) {
  std::lock_guard lock(gpu_mutex_);
  gpu_ = std::move(readings);
}

GpuReadings Telemetry::gpu() const {
  std::lock_guard lock(gpu_mutex_);
  return gpu_;
}

HealthView Telemetry::health(const GpuReadings& gpu) const {
  HealthView view{};
  view.warnings = gpu.warnings;
  const bool lost = models_.device_lost() || gpu.lost;  // the driver also detects this on an idle device
  view.dead = lost || state_.stuck(models_);
  const auto warn = [&](const std::string& text) { view.warnings.push_back({"", text}); };
  if (lost) warn("the device was lost");
  if (!lost && view.dead) warn("a batch takes far longer than predicted");
  for (const auto& ladder : models_.ladders()) {
    view.ladders.push_back(ladder->view(models_.unix_now()));
    for (const std::string& warning : view.ladders.back().warnings) warn(warning);
  }
  for (size_t m = 0; m < models_.size(); ++m) {
    const std::string fault = models_.status(m).fault;
    const std::string& name = models_.name(m);
    const bool reported = std::ranges::any_of(view.ladders, [&](const LadderView& ladder) {
      return std::ranges::any_of(ladder.rungs,
                                 [&](const RungView& rung) { return rung.model == name && rung.fault == fault; });
    });
    if (!fault.empty() && !reported) warn(fmt::format("model {}: {}", name, fault));
  }
  for (const std::string& fault : models_.gates().faults()) warn(fault);
  if (durable_ != nullptr) {
    for (const std::string& fault : durable_->queues().faults()) warn(fault);
    for (const std::string& fault : durable_->jobs().faults()) warn(fault);
  }
  for (const Served& m : models_.loaded()) {
    const ScorerLoad load = m->scorer->load();
    if (load.not_finite_texts > 0) warn(fmt::format("model {}: the output is not finite", m->name));
    view.wait_seconds = std::max(view.wait_seconds, load.wait_seconds);
    view.texts += load.texts;
    view.tokens += load.tokens;
  }
  const bool degraded = !gpu.healthy || std::ranges::any_of(view.warnings, &Warning::degrades);
  view.status = state_.draining ? "draining" : view.dead ? "unhealthy" : degraded ? "degraded" : "ok";
  return view;
}

std::string Telemetry::health_json(const GpuReadings& gpu_state, const HealthView& view) const {
  OrderedJson ladders = nullptr;
  if (!view.ladders.empty()) ladders = OrderedJson::object();
  for (const LadderView& ladder : view.ladders) {
    OrderedJson rungs = OrderedJson::array();
    for (const RungView& rung : ladder.rungs)
      rungs.push_back({{"model", rung.model},
                       {"available", rung.available},
                       {"gate", verdict_name(rung.gate.verdict)},
                       {"why", rung.fault.empty() ? rung.gate.why : rung.fault}});
    ladders[ladder.name] = {{"active", ladder.active}, {"reason", reason_name(ladder.reason)}, {"rungs", rungs}};
  }
  OrderedJson gpu = OrderedJson::parse(gpu_state.health_json), busy, mfu;
  {
    std::lock_guard lock(snapshot_mutex_);
    if (busy_) busy = *busy_ * 100;
    if (mfu_) mfu = *mfu_ * 100;
  }
  if (gpu.is_object() && gpu_state.computes) {
    if (view.dead) gpu["healthy"] = false;
    gpu["mfu_pct"] = mfu;
    gpu["device_busy_pct"] = busy;
  }
  const std::vector<Served> models = models_.loaded();
  const OrderedJson all = {{"status", view.status},
                           {"version", version()},
                           {"uptime_seconds", static_cast<int64_t>(seconds_since(state_.started_ns))},
                           {"model", view.ladders.empty() ? models_.name(0) : view.ladders[0].active},
                           {"ladder", ladders},
                           {"queue",
                            {{"requests", state_.requests.load()},
                             {"texts", view.texts},
                             {"tokens", view.tokens},
                             {"wait_ms", static_cast<int64_t>(view.wait_seconds * 1e3)}}},
                           {"device",
                            {{"name", models.empty() ? OrderedJson() : OrderedJson(models[0]->scorer->device())},
                             {"busy_pct", busy},
                             {"mfu_pct", mfu}}},
                           {"gpu", gpu},
                           {"warnings", sentences(view.warnings)}};
  return all.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace brim::serve
