// SPDX-License-Identifier: Apache-2.0
#include "cli/serve_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>

#include "base/units.h"
#include "cli/help.h"
#include "cli/serve_settings.h"
#include "cli/setting_flags.h"
#include "hub/model_dir.h"
#include "serve/serve_config.h"

namespace brim::cli {
namespace {

// A member of ServerOptions as one of ServeFlags, for the table below.
template <class T>
constexpr T ServeFlags::*option(T serve::ServerOptions::*member) {
  return member;
}

// A size such as 16MiB; `expected` completes the error for values outside of `least` to `most`.
template <class T>
SettingValue<ServeFlags> byte_count(T ServeFlags::*member, const char* expected, int64_t least = 0,
                                    int64_t most = INT64_MAX) {
  const auto read = [=](std::string_view text) {
    const auto bytes = parse_bytes(text);
    if (!bytes || *bytes < least || *bytes > most) throw BadValue{expected};
    return static_cast<T>(*bytes);
  };
  return setting::typed(member, read, [](T bytes) { return format_bytes(static_cast<int64_t>(bytes)); });
}

std::string seconds_text(double seconds) {
  if (seconds < 0) return "never";
  const bool hours = seconds > 0 && std::fmod(seconds, 3600) == 0;
  return hours ? fmt::format("{}h", seconds / 3600) : fmt::format("{}s", seconds);
}

}  // namespace

const SettingsTable<ServeFlags>& serve_settings() {
  using namespace setting;  // NOLINT: the kinds of values
  using F = ServeFlags;
  static const SettingsTable<F> table({
      {"listen",
       "address to listen on: 127.0.0.1:8080, [::1]:8080, :8080 or unix:PATH; a socket from systemd takes precedence",
       setting::text(option(&F::listen))},
      {"api_key_file", "file of keys, one NAME:SCOPES:SHA256 per line; scopes: score, queue, jobs, metrics, admin",
       setting::text(&F::api_key_file)},
      {"api_key", "a single key for everything but administration; set BRIM_API_KEY to keep it out of process lists",
       setting::text(&F::api_key)},
      {"tls_cert", "certificate chain of the server (PEM); enables https", setting::text(option(&F::tls_cert))},
      {"tls_key", "private key of --tls-cert (PEM); SIGHUP reloads both", setting::text(option(&F::tls_key))},
      {"cors_allow_origin", "allowed origins of web pages, separated by commas: https://a.example; *: all",
       setting::text(&F::cors_allow_origin)},
      {"trusted_proxy", "proxies whose X-Forwarded-For header is used: 10.0.0.7,192.168.0.0/16,fd00::/8,unix",
       setting::text(&F::trusted_proxy)},
      {"insecure", "allow addresses other than loopback without API keys", truth(option(&F::insecure))},
      {"max_queue_ms", "reject requests with a predicted wait above this many milliseconds (429)",
       number(option(&F::max_queue_ms), above_zero)},
      {"payload_limit", "maximum size of a request body",
       byte_count(option(&F::payload_limit), "must be a size from 1KiB to 2GiB, such as 16MiB", 1024,
                  int64_t{1} << 31)},
      {"max_client_batch_size", "maximum texts per request",
       number(option(&F::max_client_batch_size),
              [](double n) { return n >= 1 && n <= 65536 ? nullptr : "must be from 1 to 65536"; })},
      {"max_concurrent_requests",
       "maximum concurrent requests with texts, further ones get 429; 0: limited only by the predicted wait",
       number(option(&F::max_requests),
              [](double n) { return n >= 0 && n <= 1 << 20 ? nullptr : "must be from 0 to 1048576"; })},
      {"max_batch_tokens", "maximum tokens per interactive batch, if less than planned; 0: as planned",
       number(&F::max_batch_tokens,
              [](double n) { return n >= 0 && n <= 1 << 30 ? nullptr : "must be from 0 to 1073741824"; })},
      {"pooling",
       "pooling of embedding models: mean, cls, none (token vectors for /embed_all) or auto (from their "
       "sentence-transformers files, else mean)",
       choice(&F::pooling,
              {{"auto", Pooling::automatic}, {"mean", Pooling::mean}, {"cls", Pooling::cls}, {"none", Pooling::none}})},
      {"keep_alive", "unload a model after this idle time (10m, 0s, never)",
       typed(&F::keep_alive, serve::read_seconds, seconds_text)},
      {"parked_limit", "host memory to keep the weights of unloaded models in, for fast reloads; 0: none",
       byte_count(&F::parked_limit, "must be a size such as 8GiB")},
      {"cache", "memory for results of repeated texts, for all models together (64MiB); 0: none",
       byte_count(&F::cache_bytes, "must be a size such as 64MiB, or 0")},
      {"release_device_after", "release the device and its context after this time without loaded models (10m, never)",
       typed(option(&F::release_device_seconds), serve::read_seconds, seconds_text)},
      {"state_dir", "directory of queues and jobs (default: serve in the cache directory)",
       setting::text(option(&F::state_dir))},
      {"jobs_root", "directory of files that jobs may read instead of uploads", setting::text(option(&F::jobs_root))},
      {"adapters_root", "directory of LoRA adapters of the first model that may be loaded at run time (admin scope)",
       setting::text(option(&F::adapters_root))},
      {"keep_jobs", "how long to keep files and records of finished jobs (720h, never: until deleted)",
       typed(option(&F::keep_jobs_seconds), serve::read_seconds, seconds_text)},
      {"max_jobs", "maximum stored jobs, including finished ones; further ones get 507",
       number(&F::max_jobs, [](double n) { return n >= 1 && n <= 1e6 ? nullptr : "must be from 1 to 1000000"; })},
      {"max_jobs_bytes", "maximum size of uploaded job files in total; further ones get 507",
       byte_count(&F::max_jobs_bytes, "must be a size of at least 1KiB, such as 64GiB", 1024)},
      {"connections_per_address", "maximum connections per client address, except trusted proxies",
       number(option(&F::connections_per_address),
              [](double n) { return n >= 1 && n <= 65536 ? nullptr : "must be from 1 to 65536"; })},
      {"io_threads", "threads for network I/O and tokenizing; 0: chosen by the number of cores",
       number(option(&F::io_threads), [](double n) { return n >= 0 && n <= 64 ? nullptr : "must be from 0 to 64"; })},
      {"access_log", "log one JSON line per request, without texts, to this file; -: stdout",
       setting::text(option(&F::access_log))},
      {"lame_duck_seconds", "after SIGTERM: seconds to keep accepting connections, so that load balancers notice",
       number(option(&F::lame_duck_seconds), not_negative)},
      {"drain_seconds", "after SIGTERM: seconds to finish accepted requests",
       number(option(&F::drain_seconds), not_negative)},
  });
  return table;
}

std::vector<std::string> serve_setting_names() {
  std::vector<std::string> names;
  for (const SettingInfo& info : serve_settings().infos()) names.push_back(info.name);
  for (const SettingInfo& info : engine_settings().infos()) names.push_back(info.name);
  return names;
}

void add_serve_flags(CLI::App& app, ServeFlags& f) {
  f.model_names = {hub::default_model()};
  app.add_option(
         "-m,--model,--model-id", f.model_names,
         "model directory, name or vader; NAME=MODEL sets its name; repeat for more models (the first one serves "
         "requests without a model)")
      ->allow_extra_args(false);
  show_default(*app.get_option("--model"), "default, or vader if not installed");
  app.add_option("--embedding-model", f.embedding_models, "model to serve for embeddings; also NAME=MODEL")
      ->allow_extra_args(false);
  app.add_option(
         "--adapter", f.adapters,
         "NAME=DIR: serve the first model with this LoRA adapter (PEFT) as the model NAME; repeat for more, which "
         "share the weights of that model")
      ->allow_extra_args(false);
  app.add_option("--allowed-host", f.allowed_hosts, "allowed host name in requests, besides localhost")
      ->allow_extra_args(false);
  add_flags(app, serve_settings(), f,
            {"listen",
             "api_key_file",
             "api_key",
             "tls_cert",
             "tls_key",
             "cors_allow_origin",
             "trusted_proxy",
             "insecure",
             "max_queue_ms",
             "payload_limit",
             "max_client_batch_size",
             "max_concurrent_requests",
             "max_batch_tokens",
             "pooling",
             "keep_alive",
             "parked_limit",
             "cache",
             "release_device_after",
             "state_dir",
             "jobs_root",
             "adapters_root",
             "keep_jobs",
             "max_jobs",
             "max_jobs_bytes",
             "connections_per_address",
             "io_threads",
             "access_log",
             "lame_duck_seconds",
             "drain_seconds"});
  add_flags(app, engine_settings(), f.engine,
            {"device", "precision", "memory_limit", "leave_free", "threads", "max_length", "long_text", "deterministic",
             "q,quiet"});
  f.tei.add_to(app);
  app.add_flag("--check", f.check, "check the configuration, load the models, evaluate the gates of ladders, and exit");
  app.add_option(
      "--at", f.at,
      "with --check: report which rung each ladder would use at this time, and why: \"2026-11-23 10:00\" (in "
      "the zone of the schedule) or 2026-11-23T15:00Z");
  app.add_option("--config", f.config, "YAML file of models, ladders, queues and these flags (see docs/serve.md)");
}

}  // namespace brim::cli
