// SPDX-License-Identifier: Apache-2.0
// Options of a server. Its parts read them by const reference; nothing copies them.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "monitor/watch.h"
#include "serve/auth.h"
#include "serve/durable/jobs_store.h"
#include "serve/durable/queue_rules.h"
#include "serve/http_names.h"
#include "serve/ladder.h"
#include "serve/served_model.h"

namespace brim::serve {

struct ServerOptions {
  std::string listen = "127.0.0.1:8080";
  std::optional<ListenAddress> socket;           // an inherited listening socket, used instead of `listen`
  std::vector<ServedModel> models;               // the first one is the default
  std::vector<std::shared_ptr<Ladder>> ladders;  // use these models; the first one is the default for classification
  std::vector<QueueRules> queues;
  std::string state_dir;      // directory for queues and jobs; empty: both disabled
  bool state_needed = false;  // false: run without jobs if another server uses the directory
  std::string jobs_root;      // clients may submit files below it by path; empty: none
  double keep_jobs_seconds = JobsStore::Options().keep_seconds;
  JobQuota::Limits job_limits;
  ApiKeys keys;                   // empty: no authentication
  TrustedProxies proxies;         // proxies with trusted forwarding headers
  std::string tls_cert, tls_key;  // PEM files; empty: no TLS
  bool insecure = false;          // allow a non-loopback address without API keys
  std::vector<std::string> allowed_hosts;
  std::vector<std::string> cors_origins;  // origins whose pages may send requests and read responses; "*": any
  double max_queue_ms = 1000;             // reject requests with a longer predicted wait
  int64_t payload_limit = 16 << 20;       // limit on a body, and on a request's texts, counting a text once per use
  int64_t max_client_batch_size = 1024;   // texts per request
  int64_t max_text_bytes = 1 << 20;
  bool truncates = true;         // default for texts that are too long
  bool tags_whole_texts = true;  // taggers split texts that are too long into windows instead
  bool merges_windows = false;   // default for classifiers: split into windows and merge the scores
  int64_t max_requests = 0;      // maximum number of concurrent scoring requests; 0: unlimited
  // Close the device after this time without an encoder on it; it reopens on demand. Negative: never.
  double release_device_seconds = -1;
  double load_retry_seconds = 10;       // retry interval for models that failed to load
  std::function<int64_t()> unix_clock;  // clock of the ladders' schedules, for tests; empty: the system clock
  double tick_seconds = 1;              // interval of GPU readings, statistics and model maintenance; shorter in tests
  // Callbacks for reloading; empty: not supported. `reopen` loads a model from its current files, sharing the device
  // queue of `peer` (may be null). `peer` may have to leave the device for it unless `peer_stays`; then does_not_fit is
  // thrown. `revision_of` is the current fingerprint of a model's files, `tagger_of` the tagger that now shares its
  // encoder (or "").
  std::function<ServedModel(const std::string& name, const Scorer* peer, bool peer_stays)> reopen;
  std::function<std::string(const std::string& name)> revision_of;
  std::function<std::string(const std::string& name)> tagger_of;
  // Makes an adapter in a directory known to `reopen`; returns the model without its scorer. Empty: not supported.
  std::function<ServedModel(const std::string& name, const std::string& dir)> add_adapter;
  std::string adapters_root;  // adapters below it may be loaded at run time; empty: none
  std::function<ApiKeys()> read_keys;
  monitor::WatchLimits watch;  // GPU limits beyond which health warns
  double gpu_log_seconds = 0;  // interval of log lines with GPU readings; 0: none
  int io_threads = 0;          // 0: chosen from the number of cores
  int64_t connections_per_address = 256;
  double head_seconds = HttpOptions().head_seconds;
  std::string access_log;        // file name; "-": stdout; empty: none
  double lame_duck_seconds = 2;  // time for load balancers to notice a draining server, which still answers
  double drain_seconds = 30;     // then the limit for finishing requests

  double queue_seconds() const { return max_queue_ms * 1e-3; }
  size_t texts_per_request() const { return static_cast<size_t>(max_client_batch_size); }
  size_t text_bytes() const { return static_cast<size_t>(max_text_bytes); }
  size_t payload_bytes() const { return static_cast<size_t>(payload_limit); }
};

// Connections of a server's parts to its surroundings; empty functions: none.
struct ServerHooks {
  std::function<void(std::string_view line)> access_log;
  std::function<void()> read_certificate;  // reloads the TLS certificate
};

}  // namespace brim::serve
