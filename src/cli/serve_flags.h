// SPDX-License-Identifier: Apache-2.0
// Flags of brim serve.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/settings.h"
#include "cli/engine_flags.h"
#include "cli/tei_flags.h"
#include "serve/serve.h"

namespace CLI {
class App;
}

namespace brim::cli {

// The options of the server, and those from which other options and its models are made.
struct ServeFlags : serve::ServerOptions {
  std::vector<std::string> model_names, embedding_models, adapters;
  std::string config, cors_allow_origin, trusted_proxy, api_key_file, api_key;
  Pooling pooling = Pooling::automatic;
  double keep_alive = -1;
  int64_t max_jobs = serve::JobQuota::Limits().jobs, max_jobs_bytes = serve::JobQuota::Limits().bytes;
  int64_t parked_limit = int64_t{4} << 30, cache_bytes = 0;
  int64_t max_batch_tokens = 0;
  bool check = false;
  std::string at;           // time of the rungs that --check reports
  bool cuts_texts = false;  // set explicitly, so that it applies to taggers too
  EngineFlags engine;
  TeiFlags tei;
};

const SettingsTable<ServeFlags>& serve_settings();
void add_serve_flags(CLI::App& app, ServeFlags& flags);

}  // namespace brim::cli
