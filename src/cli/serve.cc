// SPDX-License-Identifier: Apache-2.0
// brim serve: command-line setup of the HTTP server. The server itself is in src/serve.
#include "serve/serve.h"

#include <malloc.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <csignal>
#include <functional>
#include <memory>

#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/env_file.h"
#include "cli/serve_flags.h"
#include "cli/serve_models.h"
#include "cli/serve_settings.h"
#include "cli/verb.h"
#include "hub/model_files.h"
#include "serve/ladder_preview.h"
#include "serve/serve_config.h"

namespace brim::cli {
namespace {

std::atomic<bool> reload_requested{false};  // set by SIGHUP

constexpr double kGpuLogSeconds = 60;

void name_first_model(const ServeFlags& f, serve::ServeConfig& config) {
  const std::string& name = f.tei.served_model_name;
  if (name.empty()) return;
  if (named_model(f.model_names[0]).id != f.model_names[0])
    fail(ErrorCode::usage, "--served-model-name {}: --model {} already sets a name", name, f.model_names[0]);
  config.models[0].name = name;
}

// Adds the adapters of --adapter to the models. Their base, the first model, stays only if it has a head.
void add_adapters(const ServeFlags& f, serve::ServeConfig& config) {
  if (f.adapters.empty()) return;
  if (config.models.empty()) fail(ErrorCode::usage, "--adapter {}: requires a --model", f.adapters[0]);
  const serve::ModelEntry base = config.models[0];
  const std::string dir = find_model(base.path);
  if (dir.empty()) fail(ErrorCode::usage, "--adapter {}: VADER has no adapters; choose a --model", f.adapters[0]);
  if (!base.adapter.empty() || base.pooling)
    fail(ErrorCode::usage, "--adapter {}: the first model, {}, is {}; name a classifier or its encoder first",
         f.adapters[0], base.name, base.pooling ? "an embedding model" : "an adapter");
  const auto [hf, weights] = hub::open_model(dir);
  if (head_kind(hf, weights->names()) == hub::HeadKind::encoder) config.models.erase(config.models.begin());
  for (const std::string& given : f.adapters) {
    const serve::ServedModel model = named_model(given, "--adapter");
    for (const serve::ModelEntry& other : config.models)
      if (other.name == model.name)
        fail(ErrorCode::usage, "--adapter {}: duplicate name {}; set another one with --adapter NAME={}", given,
             model.name, model.id);
    config.models.push_back({.name = model.name,
                             .path = base.path,
                             .precision = base.precision,
                             .keep_alive_seconds = base.keep_alive_seconds,
                             .adapter = model.id});
  }
}

// Adapters loaded later are for the base of the first adapter, or for the first model.
const serve::ModelEntry& base_of_adapters(const serve::ServeConfig& config) {
  const auto adapter = std::ranges::find_if(config.models, [](const auto& model) { return !model.adapter.empty(); });
  return adapter != config.models.end() ? *adapter : config.models.front();
}

void require_adapters_root(const ServeFlags& f, serve::ServeConfig& config) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(f.adapters_root, ignored))
    fail(ErrorCode::usage, "--adapters-root {}: not a directory", f.adapters_root);
  if (config.models.empty()) fail(ErrorCode::usage, "--adapters-root {}: requires a --model", f.adapters_root);
  const std::string path = base_of_adapters(config).path;
  if (hub::names_vader(path)) fail(ErrorCode::usage, "--adapters-root: VADER has no adapters; choose a --model");
  for (serve::ModelEntry& model : config.models)
    if (model.path == path) model.share_base = true;
}

void require_jobs_root(const ServeFlags& f) {
  std::error_code ignored;
  if (!f.jobs_root.empty() && !std::filesystem::is_directory(f.jobs_root, ignored))
    fail(ErrorCode::usage, "--jobs-root {}: not a directory", f.jobs_root);
}

// The device is released only while no model is on it.
void warn_of_models_that_stay(const ServeFlags& f, const serve::ServeConfig& config) {
  if (f.release_device_seconds < 0) return;
  std::vector<std::string> stay = f.keep_alive < 0 ? f.embedding_models : std::vector<std::string>();
  for (const serve::ModelEntry& model : config.models)
    if (!hub::names_vader(model.path) && model.keep_alive_seconds.value_or(f.keep_alive) < 0)
      stay.push_back(model.name);
  if (!stay.empty())
    log_warning("--release-device-after has no effect, because {} {} never unloaded; set --keep-alive",
                fmt::join(stay, ", "), stay.size() == 1 ? "is" : "are");
}

// Models, ladders and queues from serve.yaml, from a news bot's .env, or from flags.
serve::ServeConfig configuration(ServeFlags& f, CLI::App& app) {
  serve::ServeConfig config;
  const bool named = app.get_option("--model")->count() > 0 || app.get_option("--embedding-model")->count() > 0;
  if (!f.config.empty()) {
    config = serve::read_serve_config(f.config, serve_setting_names());
    if (f.allowed_hosts.empty()) f.allowed_hosts = config.allowed_hosts;
  } else if (!named) {
    config = serve::config_from_env([](const char* name) { return env(name); });
  }
  for (const serve::PlainSetting& setting : config.settings) {
    const CLI::Option* flag = app.get_option_no_throw("--" + dashed(setting.key));
    if (flag == nullptr || flag->count() > 0) continue;  // command line and environment take precedence
    if (serve_settings().find(setting.key) != nullptr)
      serve_settings().apply(f, setting.key, setting.value, setting.where);
    else
      engine_settings().apply(f.engine, setting.key, setting.value, setting.where);
    if (setting.key == "long_text") f.cuts_texts = f.engine.long_text == LongText::truncate;
  }
  // Models given by flags may be used by ladders and queues. Embedding models are added in open_models().
  if (app.get_option("--model")->count() > 0 || config.models.empty()) {
    warn_of_rules_by_default(app);
    for (const std::string& given : f.model_names) {
      const serve::ServedModel model = named_model(given);
      config.models.push_back({.name = model.name, .path = model.id});
    }
    name_first_model(f, config);
  } else if (!f.tei.served_model_name.empty()) {
    fail(ErrorCode::usage, "--served-model-name: the models are set by {}",
         f.config.empty() ? "the environment" : f.config);
  }
  add_adapters(f, config);
  serve::check_names(config);
  serve::share_bases(config);
  if (!f.adapters_root.empty()) require_adapters_root(f, config);
  require_jobs_root(f);
  warn_of_models_that_stay(f, config);
  return config;
}

std::vector<std::string> read_origins(const std::string& text) {
  std::vector<std::string> origins;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string origin = text.substr(at, end - at);
    const size_t name = origin.starts_with("https://") ? 8 : origin.starts_with("http://") ? 7 : 0;
    const bool plain = std::all_of(origin.begin(), origin.end(), [](char c) { return c > 0x20 && c < 0x7F; });
    if (origin != "*" && (name == 0 || name == origin.size() || origin.find('/', name) != std::string::npos || !plain))
      fail(ErrorCode::usage, "--cors-allow-origin {}: must be https://NAME or https://NAME:PORT", origin);
    origins.push_back(origin);
    at = end + 1;
  }
  return origins;
}

// Maps text-embeddings-inference's flags to Brim's.
void apply_tei_flags(ServeFlags& f, const CLI::App& app) {
  const auto given = [&](const char* flag) { return app.get_option(flag)->count() > 0; };
  const auto refuse_both = [&](const char* theirs, const char* ours) {
    if (given(ours)) fail(ErrorCode::usage, "{} and {} set the same; use only one of them", theirs, ours);
  };
  if (const auto listen = f.tei.listen()) {
    refuse_both(f.tei.port < 0 ? "--hostname" : "--port", "--listen");
    f.listen = *listen;
  }
  if (const auto precision = f.tei.precision()) {
    refuse_both("--dtype", "--precision");
    engine_settings().apply(f.engine, "precision", *precision, "--dtype");
  }
  if (const auto truncates = f.tei.truncates()) {
    refuse_both("--auto-truncate", "--long-text");
    f.engine.long_text = *truncates ? LongText::truncate : LongText::error;
    f.cuts_texts = *truncates;
  }
  if (f.tei.tokenization_workers > 0) {
    refuse_both("--tokenization-workers", "--io-threads");
    f.io_threads = static_cast<int>(f.tei.tokenization_workers);
  }
}

// Reports which rung each ladder would use at a time.
void log_previews(const std::string& at, const std::vector<std::shared_ptr<serve::Ladder>>& ladders) {
  if (ladders.empty()) fail(ErrorCode::usage, "--at {}: there are no ladders", at);
  for (const auto& ladder : ladders) {
    const int64_t time =
        read_setting("--at", at, [&](std::string_view text) { return serve::parse_preview_time(text, *ladder); });
    for (const std::string& line : serve::preview_lines(*ladder, time)) log_info("{}", line);
  }
}

// Options of the flags alone, without models.
serve::ServerOptions options_of(const ServeFlags& f) {
  serve::ServerOptions options = f;
  options.socket = serve::inherited_socket();
  options.cors_origins = read_origins(f.cors_allow_origin);
  options.proxies = serve::TrustedProxies(f.trusted_proxy);
  options.truncates = f.engine.long_text != LongText::error;
  options.tags_whole_texts = !f.cuts_texts;
  options.merges_windows = f.engine.long_text == LongText::window_mean || f.engine.long_text == LongText::window_max;
  options.read_keys = [file = f.api_key_file, key = f.api_key] {
    serve::ApiKeys keys;
    if (!file.empty()) keys = serve::ApiKeys::load(file);
    if (!key.empty()) keys.add(key, "api-key");
    return keys;
  };
  options.keys = options.read_keys();
  options.watch.max_utilization_percent = env_number("GPU_MAX_UTILIZATION_WARN", options.watch.max_utilization_percent);
  options.watch.max_temperature_c = env_number("GPU_MAX_TEMPERATURE_C", options.watch.max_temperature_c);
  options.watch.min_free_mib = env_number("GPU_MIN_FREE_VRAM_MB", options.watch.min_free_mib);
  if (const auto logs = env("GPU_PROFILING_ENABLED"); logs && read_setting("GPU_PROFILING_ENABLED", *logs, read_truth))
    options.gpu_log_seconds = kGpuLogSeconds;
  options.state_needed = !f.state_dir.empty();
  options.job_limits = {f.max_jobs, f.max_jobs_bytes};
  if (f.state_dir.empty()) options.state_dir = (cache_dir() / "serve").string();
  return options;
}

// Does not open the port, queues or jobs.
int check_server(const ServeFlags& f, serve::ServerOptions options, const std::vector<std::string>& lines) {
  options.listen = "127.0.0.1:0";
  options.socket.reset();
  options.queues.clear();
  options.state_dir.clear();
  const auto ladders = options.ladders;
  serve::Server server(std::move(options));
  for (const std::string& line : lines) log_info("{}", line);
  const std::vector<std::string> warnings = server.check();
  if (!f.at.empty()) log_previews(f.at, ladders);
  for (const std::string& warning : warnings) log_warning("{}", warning);
  if (!warnings.empty())
    fail(ErrorCode::bad_model, "{}: the server would start, with {} warning{}", f.config.empty() ? "--check" : f.config,
         warnings.size(), warnings.size() == 1 ? "" : "s");
  log_info("configuration is valid");
  return 0;
}

int run_serve(ServeFlags f, CLI::App& app) {
  if (!f.at.empty() && !f.check) fail(ErrorCode::usage, "--at {}: requires --check", f.at);
  // Otherwise each thread's heap keeps up to twice the largest freed block, a model's weights, at its end.
  ::mallopt(M_MMAP_THRESHOLD, 4 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 512 << 10);
  f.cuts_texts = app.get_option("--long-text")->count() > 0 && f.engine.long_text == LongText::truncate;
  const serve::ServeConfig config = configuration(f, app);
  apply_tei_flags(f, app);
  if (f.engine.leave_free.text.empty()) f.engine.leave_free = leave_free_of_env(f.engine.device.kind);
  serve::ServerOptions options = options_of(f);
  serve::require_allowed(options);  // before models are loaded
  OpenModels open = open_models(f, config);
  if (!f.check) warn_of_faults(open, config);  // check_server() reports them as warnings of the server
  const std::vector<std::string> lines = describe_models(open);
  options.models = open.models;
  const auto asked = add_reopening(options, std::move(open));
  if (!f.adapters_root.empty()) add_adapter_loading(options, asked, f, base_of_adapters(config));
  for (const serve::LadderRules& rules : config.ladders)
    options.ladders.push_back(std::make_shared<serve::Ladder>(rules));
  options.queues = config.queues;
  if (f.check) return check_server(f, std::move(options), lines);
  serve::Server server(std::move(options));
  stop_on_signals();
  std::signal(SIGHUP, [](int) { reload_requested = true; });
  server.start();
  if (!f.engine.quiet) {
    for (const std::string& line : lines) log_info("{}", line);
    log_info("listening on {}", server.address());
  }
  const auto draining = [&] {
    if (!f.engine.quiet && stop_requested())
      log_info("draining: finishing accepted requests within {:g} s; another signal stops immediately",
               f.drain_seconds);
  };
  if (!server.run(stop_requested(), &reload_requested, draining))
    fail(ErrorCode::device_lost, "the device was lost; restart the server");
  if (!f.engine.quiet) log_info("drained");
  return 0;
}

}  // namespace

std::function<int()> setup_serve(CLI::App& app) {
  auto f = std::make_shared<ServeFlags>();
  add_serve_flags(app, *f);
  app.footer(
      "Routes: /predict /embed /tokenize /info /health /metrics (text-embeddings-inference), /v1/embeddings "
      "/v1/models\n"
      "(OpenAI), /models/NAME (Hugging Face), /classify /ner /analyze /score /queues /jobs /dashboard /admin");
  return [f, &app] { return run_serve(*f, app); };
}

}  // namespace brim::cli
