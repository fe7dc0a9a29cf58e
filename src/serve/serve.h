// SPDX-License-Identifier: Apache-2.0
// The server: models behind a port. Tests run it in-process; `brim serve` is a thin door to it.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "brim/brim.h"
#include "monitor/watch.h"
#include "serve/auth.h"
#include "serve/http.h"
#include "serve/service.h"

namespace brim::serve {

struct ServerOptions {
  std::string listen = "127.0.0.1:8080";
  std::vector<ServedModel> models;
  std::vector<std::shared_ptr<Ladder>> ladders;
  std::vector<QueueRules> queues;
  std::string state_dir;      // where queues and jobs are kept; empty: there are none
  bool state_needed = false;  // else a directory that another server has means no jobs
  std::string jobs_root;      // files below it may be scored where they lie
  ApiKeys keys;
  bool insecure = false;  // another address than loopback without keys
  std::vector<std::string> allowed_hosts;
  double max_queue_ms = 1000;
  int64_t payload_limit = 16 << 20;
  int64_t max_client_batch_size = 1024;
  bool truncates = true;
  monitor::WatchLimits watch;    // of the card, past which health warns
  int io_threads = 0;            // 0: by the cores
  std::string access_log;        // a file; "-" is stdout; empty: none
  double lame_duck_seconds = 2;  // a draining server still answers, so that balancers see it go
  double drain_seconds = 30;     // then what is under way is finished, at most for so long
};

// What a model directory's files are, in 8 hexadecimal digits: their names, sizes and times.
std::string model_revision(const std::string& directory);

// Fails where the address is one that others reach and there are no keys.
void require_allowed(const ServerOptions& options);

class Server {
 public:
  explicit Server(ServerOptions options);  // listens; fails where it cannot or may not
  ~Server();                               // stops at once
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void start();
  uint16_t port() const;
  std::string address() const;  // "http://127.0.0.1:8080"
  // Until `stop` is set; then drains. False: the device was lost.
  bool run(const std::atomic<bool>& stop);
  // Refuses texts, finishes what was taken, closes.
  void drain();

 private:
  class Sampler;
  class AccessLog;
  ServerOptions options_;
  std::unique_ptr<AccessLog> log_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<Sampler> sampler_;
  std::jthread gates_;
};

}  // namespace brim::serve
