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
#include "serve/http_names.h"
#include "serve/service.h"

namespace brim::serve {

struct ServerOptions {
  std::string listen = "127.0.0.1:8080";
  std::optional<ListenAddress> socket;  // one that listens already, in place of it
  std::vector<ServedModel> models;
  std::vector<std::shared_ptr<Ladder>> ladders;
  std::vector<QueueRules> queues;
  std::string state_dir;      // where queues and jobs are kept; empty: there are none
  bool state_needed = false;  // else a directory that another server has means no jobs
  std::string jobs_root;      // files below it may be scored where they lie
  double keep_jobs_seconds = JobsStore::Options().keep_seconds;
  JobQuota::Limits job_limits;
  ApiKeys keys;
  TrustedProxies proxies;                                // whose word about their clients is taken
  std::string tls_cert, tls_key;                         // PEM files; empty: no TLS
  bool insecure = false;                                 // another address than loopback without keys
  std::vector<std::string> allowed_hosts, cors_origins;  // the latter as ServiceOptions has them
  double max_queue_ms = 1000;
  int64_t payload_limit = 16 << 20;
  int64_t max_client_batch_size = 1024;
  bool truncates = true, tags_whole_texts = true, merges_windows = false;  // as ServiceOptions has them, as these
  int64_t max_requests = 0;
  double release_device_seconds = -1, load_retry_seconds = 10;
  std::function<int64_t()> unix_clock;
  double tick_seconds = 1;  // between two looks at card, figures and models; less in tests
  // As ServiceOptions has them.
  std::function<ServedModel(const std::string& name, const Scorer* beside, bool beside_stays)> reopen;
  std::function<std::string(const std::string& name)> revision_of;
  std::function<std::string(const std::string& name)> tagger_of;
  std::function<ApiKeys()> read_keys;
  monitor::WatchLimits watch;  // of the card, past which health warns
  int io_threads = 0;          // 0: by the cores
  int64_t connections_per_address = 256;
  double head_seconds = HttpOptions().head_seconds;
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
  std::string address() const;  // "http://127.0.0.1:8080"; https with TLS
  // Until `stop` is set or a client asks for it; then drains. False: the device was lost. `reload`, where it is set,
  // means keys and models whose files changed are read anew, and is cleared. `draining` is called before it drains.
  bool run(const std::atomic<bool>& stop, std::atomic<bool>* reload = nullptr,
           const std::function<void()>& draining = {});
  // Refuses texts, finishes what was taken, closes.
  void drain();
  // Instead of start(): measures the ladders' gates and says what health would warn of.
  std::vector<std::string> check();

 private:
  class Sampler;
  ServerOptions options_;
  std::unique_ptr<AccessLog> log_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<Sampler> sampler_;
  std::jthread gates_;
};

}  // namespace brim::serve
