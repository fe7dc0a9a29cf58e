// SPDX-License-Identifier: Apache-2.0
// brim serve: models behind a port.
#include "serve/serve.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/config_file.h"
#include "cli/engine_flags.h"
#include "cli/setting_flags.h"
#include "cli/verb.h"
#include "hub/model_dir.h"

namespace brim {
namespace {

struct ServeFlags {
  std::vector<std::string> models, embedding_models, allowed_hosts;
  std::string config;
  std::string listen = "127.0.0.1:8080", api_key_file, api_key, access_log;
  int64_t payload_limit = 16 << 20;
  Pooling pooling = Pooling::mean;
  bool insecure = false;
  double max_queue_ms = 1000, lame_duck_seconds = 2, drain_seconds = 30;
  int64_t max_client_batch_size = 1024;
  int io_threads = 0;
  EngineFlags engine;
};

int64_t read_byte_count(std::string_view text) {
  const auto bytes = parse_bytes(text);
  if (!bytes || *bytes < 1024 || *bytes > (int64_t{1} << 31)) throw BadValue{"give a size from 1KiB to 2GiB: 16MiB"};
  return *bytes;
}

const SettingsTable<ServeFlags>& serve_settings() {
  using namespace setting;  // NOLINT: the kinds of values
  using F = ServeFlags;
  static const SettingsTable<F> table({
      {"listen", "where to listen: 127.0.0.1:8080, [::1]:8080, :8080 or unix:PATH", text(&F::listen)},
      {"api_key_file", "keys: lines of NAME:SCOPES:SHA256, scopes score, queue, jobs, metrics, admin",
       text(&F::api_key_file)},
      {"api_key", "one key, for all but administration; BRIM_API_KEY keeps it out of process lists", text(&F::api_key)},
      {"insecure", "listen on another address than loopback without keys", truth(&F::insecure)},
      {"max_queue_ms", "a request that would wait longer, by prediction, is refused with 429",
       number(&F::max_queue_ms, above_zero)},
      {"payload_limit", "largest body of a request",
       typed(&F::payload_limit, read_byte_count, [](int64_t bytes) { return format_bytes(bytes); })},
      {"max_client_batch_size", "most texts in a request",
       number(&F::max_client_batch_size,
              [](double n) { return n >= 1 && n <= 65536 ? nullptr : "give a number from 1 to 65536"; })},
      {"pooling", "how embedding models make one vector of a text's: mean or cls",
       choice(&F::pooling, {{"mean", Pooling::mean}, {"cls", Pooling::cls}})},
      {"io_threads", "threads that read, tokenize and write; 0 chooses by the cores",
       number(&F::io_threads,
              [](double n) { return n >= 0 && n <= 64 ? nullptr : "give a number from 1 to 64, or 0"; })},
      {"access_log", "a file for a JSON line per request, without its texts; - is stdout", text(&F::access_log)},
      {"lame_duck_seconds", "after SIGTERM: how long connections are still taken, so that balancers see it go",
       number(&F::lame_duck_seconds, not_negative)},
      {"drain_seconds", "after SIGTERM: how long requests that were taken may need",
       number(&F::drain_seconds, not_negative)},
  });
  return table;
}

// "mood=models/default" is the model models/default, called mood; "models/default" is called by its directory.
serve::ServedModel named_model(const std::string& given) {
  const size_t equals = given.find('=');
  const bool named = equals != std::string::npos && equals > 0 && equals < given.find('/') &&
                     !std::filesystem::exists(given);  // a directory may have such a name
  serve::ServedModel model;
  model.name = named ? given.substr(0, equals) : "";
  model.id = named ? given.substr(equals + 1) : given;
  if (model.name.empty() && names_vader(model.id)) model.name = "vader";
  if (model.name.empty()) {
    std::filesystem::path path = std::filesystem::absolute(model.id).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();
    model.name = path.filename().string();
  }
  const bool plain = std::all_of(model.name.begin(), model.name.end(), [](char c) { return c > 0x20 && c < 0x7F; });
  if (!plain) fail(ErrorCode::usage, "--model {}: a served model's name has neither spaces nor controls", given);
  return model;
}

std::vector<serve::ServedModel> open_models(const ServeFlags& f) {
  std::vector<serve::ServedModel> models;
  std::vector<ScorerOptions> options;
  const auto add = [&](const std::string& given, std::optional<Pooling> pooling) {
    serve::ServedModel model = named_model(given);
    for (const serve::ServedModel& other : models)
      if (other.name == model.name)
        fail(ErrorCode::usage, "--model {}: two models are called {}; give this one a name of its own: --model NAME={}",
             given, model.name, model.id);
    EngineFlags flags = f.engine;
    flags.model = model.id;
    ScorerOptions o = flags.scorer_options();
    o.pooling = pooling;
    o.raw_scores = true;
    o.queue_seconds = f.max_queue_ms * 1e-3;
    model.revision = serve::model_revision(o.model);
    options.push_back(o);
    models.push_back(std::move(model));
  };
  for (const std::string& given : f.models) add(given, std::nullopt);
  for (const std::string& given : f.embedding_models) add(given, f.pooling);
  const auto scorers = Scorer::open_together(options);
  for (size_t m = 0; m < models.size(); ++m) models[m].scorer = scorers[m];
  return models;
}

int run_serve(const ServeFlags& f) {
  serve::ServerOptions options;
  options.listen = f.listen;
  options.insecure = f.insecure;
  options.allowed_hosts = f.allowed_hosts;
  options.max_queue_ms = f.max_queue_ms;
  options.payload_limit = f.payload_limit;
  options.max_client_batch_size = f.max_client_batch_size;
  options.truncates = f.engine.long_text != LongText::error;
  options.io_threads = f.io_threads;
  options.access_log = f.access_log;
  options.lame_duck_seconds = f.lame_duck_seconds;
  options.drain_seconds = f.drain_seconds;
  if (!f.api_key_file.empty()) options.keys = serve::ApiKeys::load(f.api_key_file);
  if (!f.api_key.empty()) options.keys.add(f.api_key, "api-key");
  serve::require_allowed(options);  // before models are loaded
  options.models = open_models(f);
  const auto models = options.models;
  serve::Server server(std::move(options));
  stop_on_signals();
  server.start();
  if (!f.engine.quiet) {
    for (const serve::ServedModel& m : models)
      log_info("{}: {} on {}, {}", m.name, m.id, m.scorer->device(), m.scorer->precision());
    log_info("listening on {}", server.address());
  }
  if (!server.run(stop_requested())) fail(ErrorCode::device_lost, "the device is lost; start the server again");
  if (!f.engine.quiet) log_info("drained");
  return 0;
}

}  // namespace

std::function<int()> setup_serve(CLI::App& app) {
  auto f = std::make_shared<ServeFlags>();
  f->models = {default_model()};
  app.add_option("-m,--model,--model-id", f->models,
                 "a model to serve: a directory, a name or vader; NAME=MODEL gives it another name. Given again, more "
                 "models; requests that name none get the first")
      ->allow_extra_args(false)
      ->capture_default_str();
  app.add_option("--embedding-model", f->embedding_models, "a model to serve as vectors; NAME=MODEL as well")
      ->allow_extra_args(false);
  app.add_option("--allowed-host", f->allowed_hosts, "a name this server goes by in Host, besides localhost")
      ->allow_extra_args(false);
  add_flags(app, serve_settings(), *f,
            {"listen", "api_key_file", "api_key", "insecure", "max_queue_ms", "payload_limit", "max_client_batch_size",
             "pooling", "io_threads", "access_log", "lame_duck_seconds", "drain_seconds"});
  add_flags(app, engine_settings(), f->engine,
            {"device", "precision", "memory_limit", "threads", "max_length", "long_text", "q,quiet"});
  app.add_option("--config", f->config, "a YAML file of these flags");
  app.footer(
      "Routes: /predict /embed /tokenize /info /health /metrics as text-embeddings-inference has them, /v1/embeddings\n"
      "/v1/models as OpenAI has them, /models/NAME as Hugging Face has it, /classify /ner /analyze. docs/serve.md.");
  return [f, &app] {
    if (!f->config.empty()) apply_config(app, f->config);
    return run_serve(*f);
  };
}

}  // namespace brim
