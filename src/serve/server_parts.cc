// SPDX-License-Identifier: Apache-2.0
#include "serve/server_parts.h"

#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace brim::serve {
namespace {

std::vector<RouteLabel> labels_of(Routes routes) {
  std::vector<RouteLabel> labels;
  for (const Route& route : routes) labels.push_back({route.path, route.scores});
  return labels;
}

JobsStore::Options job_options(const ServerOptions& options) {
  JobsStore::Options jobs;
  jobs.retry_seconds = options.load_retry_seconds;
  jobs.keep_seconds = options.keep_jobs_seconds;
  jobs.limits = options.job_limits;
  return jobs;
}

}  // namespace

ServerParts::ServerParts(const ServerOptions& server_options, std::vector<ServedModel> served, Routes routes,
                         ServerHooks server_hooks)
    : options(server_options),
      hooks(std::move(server_hooks)),
      models(options, std::move(served)),
      telemetry(options, models, state, labels_of(routes)),
      dispatcher(options, models, state, telemetry.counters(), routes, hooks.access_log),
      bulk(models, telemetry.counters()),
      keys(options.keys) {
  if (options.state_dir.empty()) return;
  try {
    durable = std::make_unique<BlockingWork>(
        options.state_dir, options.queues, bulk, [this](const Job& job) { return bulk.job_model(job); },
        job_options(options));
    telemetry.set_durable(durable.get());
  } catch (const Error& error) {
    if (options.state_needed || !options.queues.empty()) throw;
    log_warning("{}; jobs are disabled", error.what());
  }
}

ServerParts::~ServerParts() {
  models.stop();
  tracer.stop();
  dispatcher.stop_helpers();
  row_streams.wait_for_all();
  telemetry.set_durable(nullptr);
  if (durable != nullptr) durable->stop();  // its tasks use `durable`, which reset() clears before it waits for them
  durable.reset();
  models.close_all();
}

void ServerParts::attach(HttpServer& server) {
  attach({.count = server.threads(),
          .post = [&server](int thread, std::function<void()> work) { server.post(thread, std::move(work)); }},
         &server);
}

void ServerParts::attach(const IoThreads& threads, const HttpServer* server) {
  dispatcher.attach(threads);
  telemetry.attach(threads, server);
}

void ServerParts::begin_drain() {
  state.draining = true;
  telemetry.events().post("drain", "{}");
  if (durable != nullptr) durable->stop_jobs();
}

void ServerParts::refuse_all() {
  state.cutting = true;
  dispatcher.refuse_all();
}

void ServerParts::measure_gates(const std::stop_token& stop, bool repeat) {
  GateQueue::Cache cache;
  if (durable != nullptr) cache = [this] { return durable->state().folder("gates"); };
  models.gates().measure(stop, repeat, cache);
}

// On an error the old state stays.
std::vector<std::string> ServerParts::reload() {
  std::vector<std::string> problems;
  const auto attempt = [&problems](const auto& work) {
    try {
      work();
    } catch (const std::exception& error) {
      problems.push_back(error.what());
    }
  };
  if (options.read_keys) attempt([this] { keys.set(options.read_keys()); });
  if (hooks.read_certificate) attempt(hooks.read_certificate);
  const int opened = models.reopen_changed(problems);
  for (const std::string& problem : problems) log_warning("reload: {}", problem);
  if (problems.empty()) log_info("reloaded keys and {} of {} models", opened, models.size());
  return problems;
}

void ServerParts::request_reload() {
  models.thread().call([this] {
    try {
      reload();
    } catch (const std::exception& error) {
      log_warning("reload: {}", error.what());
    }
  });
}

}  // namespace brim::serve
