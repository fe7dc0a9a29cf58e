// SPDX-License-Identifier: Apache-2.0
// An HTTP server for models: options, lifecycle, draining. Tests run it in-process; `brim serve` adds the command line.
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
  std::optional<ListenAddress> socket;  // an inherited listening socket, used instead of `listen`
  std::vector<ServedModel> models;
  std::vector<std::shared_ptr<Ladder>> ladders;
  std::vector<QueueRules> queues;
  std::string state_dir;      // directory for queues and jobs; empty: both disabled
  bool state_needed = false;  // false: run without jobs if another server uses the directory
  std::string jobs_root;      // clients may submit files below it by path; empty: none
  double keep_jobs_seconds = JobsStore::Options().keep_seconds;
  JobQuota::Limits job_limits;
  ApiKeys keys;
  TrustedProxies proxies;                                // proxies with trusted forwarding headers
  std::string tls_cert, tls_key;                         // PEM files; empty: no TLS
  bool insecure = false;                                 // allow a non-loopback address without API keys
  std::vector<std::string> allowed_hosts, cors_origins;  // see ServiceOptions
  double max_queue_ms = 1000;
  int64_t payload_limit = 16 << 20;
  int64_t max_client_batch_size = 1024;
  bool truncates = true, tags_whole_texts = true, merges_windows = false;  // see ServiceOptions
  int64_t max_requests = 0;
  double release_device_seconds = -1, load_retry_seconds = 10;
  std::function<int64_t()> unix_clock;
  double tick_seconds = 1;  // interval of GPU readings, statistics and model maintenance; shorter in tests
  // See ServiceOptions.
  std::function<ServedModel(const std::string& name, const Scorer* peer, bool peer_stays)> reopen;
  std::function<std::string(const std::string& name)> revision_of;
  std::function<std::string(const std::string& name)> tagger_of;
  std::function<ApiKeys()> read_keys;
  monitor::WatchLimits watch;  // GPU limits beyond which health warns
  int io_threads = 0;          // 0: chosen from the number of cores
  int64_t connections_per_address = 256;
  double head_seconds = HttpOptions().head_seconds;
  std::string access_log;        // file name; "-": stdout; empty: none
  double lame_duck_seconds = 2;  // time for load balancers to notice a draining server, which still answers
  double drain_seconds = 30;     // then the limit for finishing requests
};

// Fingerprint of a model directory in 8 hexadecimal digits, from the names, sizes and times of its files.
std::string model_revision(const std::string& directory);

// Fails if the address is not loopback and there are neither API keys nor `insecure`.
void require_allowed(const ServerOptions& options);

class Server {
 public:
  explicit Server(ServerOptions options);  // starts listening; throws on failure
  ~Server();                               // stops without draining
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void start();
  uint16_t port() const;
  std::string address() const;  // "http://127.0.0.1:8080"; https with TLS
  // Blocks until `stop` is set or a client requests a drain, then drains. Returns false if the device was lost. Setting
  // `reload` reloads keys and changed models; run() clears it. Calls `draining` before it drains.
  bool run(const std::atomic<bool>& stop, std::atomic<bool>* reload = nullptr,
           const std::function<void()>& draining = {});
  // Rejects new texts, finishes accepted ones, closes.
  void drain();
  // Instead of start(): measures the ladders' gates and returns the warnings that /health would report.
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
