// SPDX-License-Identifier: Apache-2.0
// The parts of a server, created and destroyed in the right order. Handlers of routes receive them.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "serve/bulk.h"
#include "serve/dispatch.h"
#include "serve/durable/blocking_work.h"
#include "serve/models.h"
#include "serve/row_streams.h"
#include "serve/server_state.h"
#include "serve/telemetry.h"
#include "serve/zero_shot.h"

namespace brim::serve {

// The API keys that are in force.
class ActiveKeys {
 public:
  explicit ActiveKeys(const ApiKeys& keys) : keys_(std::make_shared<const ApiKeys>(keys)) {}
  std::shared_ptr<const ApiKeys> get() const {
    std::lock_guard lock(mutex_);
    return keys_;
  }
  void set(ApiKeys keys) {
    auto next = std::make_shared<const ApiKeys>(std::move(keys));
    std::lock_guard lock(mutex_);
    keys_ = std::move(next);
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const ApiKeys> keys_;
};

struct ServerParts {
  // `options` must outlive it. `routes` must be Router::routes(): calls point into it.
  ServerParts(const ServerOptions& options, std::vector<ServedModel> models, Routes routes, ServerHooks hooks = {});
  // The I/O threads must have stopped and every exchange ended: waits for row streams, then destroys the job store.
  ~ServerParts();
  ServerParts(const ServerParts&) = delete;
  ServerParts& operator=(const ServerParts&) = delete;

  // Call one of these before the first request.
  void attach(HttpServer& server);
  void attach(const IoThreads& threads, const HttpServer* server = nullptr);
  void begin_drain();  // requests on open connections are answered until state.refusing is set
  void refuse_all();   // ends waiting requests with 503; other connections will be cut
  void measure_gates(const std::stop_token& stop, bool repeat);  // see GateQueue
  std::vector<std::string> reload();                             // keys, certificate and models; returns problems
  void request_reload();                                         // on the models' thread

  const ServerOptions& options;
  const ServerHooks hooks;
  ServerState state;
  ModelRegistry models;
  Telemetry telemetry;
  Dispatcher dispatcher;
  BulkScoring bulk;
  ActiveKeys keys;
  LabelCache zero_shot_labels;
  RowStreams row_streams;
  std::unique_ptr<BlockingWork> durable;  // null without a state directory
  std::atomic<bool> tracing{false};
  Workers tracer{1};  // declared last, so that its tasks end before the members they use
};

}  // namespace brim::serve
