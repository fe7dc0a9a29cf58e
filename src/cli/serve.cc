// SPDX-License-Identifier: Apache-2.0
// brim serve: command-line setup of the HTTP server. The server itself is in src/serve.
#include "serve/serve.h"

#include <fmt/format.h>
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <functional>
#include <map>
#include <memory>

#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/engine_flags.h"
#include "cli/env_file.h"
#include "cli/help.h"
#include "cli/serve_settings.h"
#include "cli/setting_flags.h"
#include "cli/tei_flags.h"
#include "cli/verb.h"
#include "hub/model_dir.h"
#include "serve/serve_config.h"

namespace brim::cli {
namespace {

std::atomic<bool> reload_requested{false};  // set by SIGHUP

// Duration of a bulk batch (jobs, /score) that a submitted text may have to wait for. On an H200 with bulk load, 2,000
// texts per second have a p99 of 5.0 ms, and 5.7 ms with a value of 3 ms; bulk throughput drops to 0.90 and 0.91.
constexpr double kBulkSeconds = 0.0025;

struct ServeFlags {
  std::vector<std::string> models, embedding_models, allowed_hosts;
  std::string config, state_dir, jobs_root;
  std::string listen = "127.0.0.1:8080", cors_allow_origin, trusted_proxy, api_key_file, api_key, access_log, tls_cert,
              tls_key;
  int64_t payload_limit = 16 << 20;
  Pooling pooling = Pooling::automatic;
  double keep_alive = -1, release_device_after = -1;
  double keep_jobs = serve::ServerOptions().keep_jobs_seconds;
  int64_t max_jobs = serve::JobQuota::Limits().jobs, max_jobs_bytes = serve::JobQuota::Limits().bytes;
  int64_t parked_limit = int64_t{4} << 30;
  bool insecure = false;
  double max_queue_ms = 1000, lame_duck_seconds = 2, drain_seconds = 30;
  int64_t max_client_batch_size = 1024, max_concurrent_requests = 0, max_batch_tokens = 0;
  int io_threads = 0;
  int64_t connections_per_address = 256;
  bool check = false;
  bool cuts_texts = false;  // set explicitly, so that it applies to taggers too
  EngineFlags engine;
  TeiFlags tei;
};

int64_t read_byte_count(std::string_view text) {
  const auto bytes = parse_bytes(text);
  if (!bytes || *bytes < 1024 || *bytes > (int64_t{1} << 31))
    throw BadValue{"must be a size from 1KiB to 2GiB, such as 16MiB"};
  return *bytes;
}

std::string seconds_text(double seconds) {
  if (seconds < 0) return "never";
  const bool hours = seconds > 0 && std::fmod(seconds, 3600) == 0;
  return hours ? fmt::format("{}h", seconds / 3600) : fmt::format("{}s", seconds);
}

const SettingsTable<ServeFlags>& serve_settings() {
  using namespace setting;  // NOLINT: the kinds of values
  using F = ServeFlags;
  static const SettingsTable<F> table({
      {"listen",
       "address to listen on: 127.0.0.1:8080, [::1]:8080, :8080 or unix:PATH; a socket from systemd takes precedence",
       setting::text(&F::listen)},
      {"api_key_file", "file of keys, one NAME:SCOPES:SHA256 per line; scopes: score, queue, jobs, metrics, admin",
       setting::text(&F::api_key_file)},
      {"api_key", "a single key for everything but administration; set BRIM_API_KEY to keep it out of process lists",
       setting::text(&F::api_key)},
      {"tls_cert", "certificate chain of the server (PEM); enables https", setting::text(&F::tls_cert)},
      {"tls_key", "private key of --tls-cert (PEM); SIGHUP reloads both", setting::text(&F::tls_key)},
      {"cors_allow_origin", "allowed origins of web pages, separated by commas: https://a.example; *: all",
       setting::text(&F::cors_allow_origin)},
      {"trusted_proxy", "proxies whose X-Forwarded-For header is used: 10.0.0.7,192.168.0.0/16,fd00::/8,unix",
       setting::text(&F::trusted_proxy)},
      {"insecure", "allow addresses other than loopback without API keys", truth(&F::insecure)},
      {"max_queue_ms", "reject requests with a predicted wait above this many milliseconds (429)",
       number(&F::max_queue_ms, above_zero)},
      {"payload_limit", "maximum size of a request body",
       typed(&F::payload_limit, read_byte_count, [](int64_t bytes) { return format_bytes(bytes); })},
      {"max_client_batch_size", "maximum texts per request",
       number(&F::max_client_batch_size,
              [](double n) { return n >= 1 && n <= 65536 ? nullptr : "must be from 1 to 65536"; })},
      {"max_concurrent_requests",
       "maximum concurrent requests with texts, further ones get 429; 0: limited only by the predicted wait",
       number(&F::max_concurrent_requests,
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
       typed(
           &F::parked_limit,
           [](std::string_view text) {
             const auto bytes = parse_bytes(text);
             if (!bytes || *bytes < 0) throw BadValue{"must be a size such as 8GiB"};
             return *bytes;
           },
           [](int64_t bytes) { return format_bytes(bytes); })},
      {"release_device_after", "release the device and its context after this time without loaded models (10m, never)",
       typed(&F::release_device_after, serve::read_seconds, seconds_text)},
      {"state_dir", "directory of queues and jobs (default: serve in the cache directory)",
       setting::text(&F::state_dir)},
      {"jobs_root", "directory of files that jobs may read instead of uploads", setting::text(&F::jobs_root)},
      {"keep_jobs", "how long to keep files and records of finished jobs (720h, never: until deleted)",
       typed(&F::keep_jobs, serve::read_seconds, seconds_text)},
      {"max_jobs", "maximum stored jobs, including finished ones; further ones get 507",
       number(&F::max_jobs, [](double n) { return n >= 1 && n <= 1e6 ? nullptr : "must be from 1 to 1000000"; })},
      {"max_jobs_bytes", "maximum size of uploaded job files in total; further ones get 507",
       typed(
           &F::max_jobs_bytes,
           [](std::string_view text) {
             const auto bytes = parse_bytes(text);
             if (!bytes || *bytes < 1024) throw BadValue{"must be a size of at least 1KiB, such as 64GiB"};
             return *bytes;
           },
           [](int64_t bytes) { return format_bytes(bytes); })},
      {"connections_per_address", "maximum connections per client address, except trusted proxies",
       number(&F::connections_per_address,
              [](double n) { return n >= 1 && n <= 65536 ? nullptr : "must be from 1 to 65536"; })},
      {"io_threads", "threads for network I/O and tokenizing; 0: chosen by the number of cores",
       number(&F::io_threads, [](double n) { return n >= 0 && n <= 64 ? nullptr : "must be from 0 to 64"; })},
      {"access_log", "log one JSON line per request, without texts, to this file; -: stdout",
       setting::text(&F::access_log)},
      {"lame_duck_seconds", "after SIGTERM: seconds to keep accepting connections, so that load balancers notice",
       number(&F::lame_duck_seconds, not_negative)},
      {"drain_seconds", "after SIGTERM: seconds to finish accepted requests", number(&F::drain_seconds, not_negative)},
  });
  return table;
}

// "mood=models/default" is the model models/default with the name mood; "models/default" is named after its directory.
serve::ServedModel named_model(const std::string& given) {
  const size_t equals = given.find('=');
  const bool named = equals != std::string::npos && equals > 0 && equals < given.find('/') &&
                     !std::filesystem::exists(given);  // unless a directory has this name
  serve::ServedModel model;
  model.name = named ? given.substr(0, equals) : "";
  model.id = named ? given.substr(equals + 1) : given;
  if (model.name.empty() && hub::names_vader(model.id)) model.name = "vader";
  if (model.name.empty()) {
    std::filesystem::path path = std::filesystem::absolute(model.id).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();
    model.name = path.filename().string();
  }
  const bool plain = std::all_of(model.name.begin(), model.name.end(), [](char c) { return c > 0x20 && c < 0x7F; });
  if (!plain) fail(ErrorCode::usage, "--model {}: names must not contain spaces or control characters", given);
  return model;
}

// Models, ladders and queues from serve.yaml, from a news bot's .env, or from flags.
void name_first_model(const ServeFlags& f, serve::ServeConfig& config) {
  const std::string& name = f.tei.served_model_name;
  if (name.empty()) return;
  if (named_model(f.models[0]).id != f.models[0])
    fail(ErrorCode::usage, "--served-model-name {}: --model {} already sets a name", name, f.models[0]);
  config.models[0].name = name;
}

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
    for (const std::string& given : f.models) {
      const serve::ServedModel model = named_model(given);
      config.models.push_back({.name = model.name, .path = model.id});
    }
    name_first_model(f, config);
  } else if (!f.tei.served_model_name.empty()) {
    fail(ErrorCode::usage, "--served-model-name: the models are set by {}",
         f.config.empty() ? "the environment" : f.config);
  }
  serve::check_names(config);
  return config;
}

// Finds taggers that share a classifier's encoder: the classifier loads the head too, so that one pass gives labels and
// entities. Whole files are compared, so results are cached until one of the two changes.
class SharedEncoders {
 public:
  // Index into `options`; empty if none.
  std::optional<size_t> tagger_of(const ScorerOptions& classifier, const std::vector<ScorerOptions>& options) {
    if (classifier.pooling) return std::nullopt;
    for (size_t t = 0; t < options.size(); ++t)
      if (!options[t].model.empty() && options[t].model != classifier.model && !options[t].pooling &&
          options[t].precision == classifier.precision && are_of_one(classifier.model, options[t].model))
        return t;
    return std::nullopt;
  }

 private:
  bool are_of_one(const std::string& classifier, const std::string& tagger) {
    try {
      const std::string files = serve::model_revision(classifier) + serve::model_revision(tagger);
      const auto [found, is_new] = known_.try_emplace({classifier, tagger});
      if (is_new || found->second.files != files) found->second = {files, share_encoder(classifier, tagger)};
      return found->second.share;
    } catch (const Error&) {  // opening the model reports the error
      return false;
    }
  }
  struct Found {
    std::string files;
    bool share = false;
  };
  std::map<std::pair<std::string, std::string>, Found> known_;
};

struct OpenModels {
  std::vector<serve::ServedModel> models;
  std::vector<std::function<ScorerOptions()>> settings;  // per model; throws if it is missing
  std::vector<ScorerOptions> options;                    // per model as configured, without taggers; empty if it failed
  SharedEncoders encoders;
};

// Adds the head of a tagger with the same encoder to a classifier, based on their current files.
void add_tagger(OpenModels& open, serve::ServedModel& model, ScorerOptions& options) {
  const std::optional<size_t> tagger = open.encoders.tagger_of(options, open.options);
  options.tagger = tagger ? open.options[*tagger].model : "";
  model.tagger = tagger ? open.models[*tagger].name : "";
  model.tagger_revision = tagger ? serve::model_revision(options.tagger) : "";
}

// Models that cannot be opened have a fault and no scorer; if none can, startup fails.
OpenModels open_models(const ServeFlags& f, const serve::ServeConfig& config) {
  OpenModels open;
  const auto is_rung = [&](const std::string& name) {
    return std::any_of(config.ladders.begin(), config.ladders.end(), [&](const serve::LadderRules& ladder) {
      return std::any_of(ladder.rungs.begin(), ladder.rungs.end(),
                         [&](const auto& rung) { return rung.model == name; });
    });
  };
  const auto add = [&](const serve::ModelEntry& entry, std::optional<Pooling> pooling) {
    for (const serve::ServedModel& other : open.models)
      if (other.name == entry.name)
        fail(ErrorCode::usage, "--model {}: duplicate name {}; set another one with --model NAME={}", entry.path,
             entry.name, entry.path);
    open.models.push_back(
        {entry.name, entry.path, "", nullptr, pooling, entry.keep_alive_seconds.value_or(f.keep_alive)});
    open.settings.push_back([&f, entry, pooling] {
      EngineFlags flags = f.engine;
      flags.model = entry.path;
      ScorerOptions o = flags.scorer_options();
      if (entry.precision != "auto") o.precision = entry.precision;
      o.pooling = pooling;
      o.labels = entry.labels;
      o.raw_scores = true;
      o.bulk_seconds = kBulkSeconds;
      o.queue_seconds = f.max_queue_ms * 1e-3;
      o.in_turn = true;
      o.parked_bytes = f.parked_limit;
      o.batch_tokens = f.max_batch_tokens;
      return o;
    });
  };
  for (const serve::ModelEntry& entry : config.models) add(entry, entry.pooling);
  for (const std::string& given : f.embedding_models) {
    const serve::ServedModel model = named_model(given);
    add({.name = model.name, .path = model.id}, f.pooling);
  }
  open.options.resize(open.models.size());
  std::optional<Error> first_fault;
  // Tries each model that has not failed. Usage errors and missing devices are configuration errors and abort startup,
  // as does any error with --check; members of a ladder may fail either way.
  const auto try_each = [&](bool opens, const std::function<void(size_t)>& call) {
    for (size_t m = 0; m < open.models.size(); ++m) {
      if (!open.models[m].fault.empty()) continue;
      try {
        call(m);
      } catch (const Error& error) {
        const bool asked_wrongly = error.code() == ErrorCode::usage || error.code() == ErrorCode::device_lost;
        const bool mistaken = f.check || (opens && asked_wrongly);
        if (open.models.size() == 1 || (mistaken && !is_rung(open.models[m].name))) throw;
        if (!first_fault) first_fault = error;
        open.models[m].fault = error.what();
        open.options[m] = {};
      }
    }
  };
  const auto open_all = [&] {
    std::vector<size_t> places;
    std::vector<ScorerOptions> options;
    for (size_t m = 0; m < open.models.size(); ++m) {
      if (!open.models[m].fault.empty()) continue;
      places.push_back(m);
      add_tagger(open, open.models[m], options.emplace_back(open.options[m]));
    }
    if (places.empty()) fail(first_fault->code(), "no model could be loaded: {}", first_fault->what());
    const auto scorers = Scorer::open_together(options);
    for (size_t i = 0; i < places.size(); ++i) open.models[places[i]].scorer = scorers[i];
  };
  try_each(false, [&](size_t m) {
    open.options[m] = open.settings[m]();
    open.models[m].revision = serve::model_revision(open.options[m].model);
  });
  try {
    open_all();
  } catch (const Error&) {  // find out which one
    if (open.models.size() == 1) throw;
    try_each(true, [&](size_t m) { Scorer::open(open.options[m]); });
    open_all();
  }
  return open;
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

int run_serve(ServeFlags f, CLI::App& app) {
  // Otherwise each thread's heap keeps up to twice the largest freed block, a model's weights, at its end.
  ::mallopt(M_MMAP_THRESHOLD, 4 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 512 << 10);
  f.cuts_texts = app.get_option("--long-text")->count() > 0 && f.engine.long_text == LongText::truncate;
  const serve::ServeConfig config = configuration(f, app);
  apply_tei_flags(f, app);
  if (const std::string left = leave_free_of_env(device_text(f.engine.device));
      f.engine.memory_limit.leave_free_text.empty() && !left.empty())
    f.engine.memory_limit.set_leave_free(left);
  serve::ServerOptions options;
  options.listen = f.listen;
  options.socket = serve::inherited_socket();
  options.cors_origins = read_origins(f.cors_allow_origin);
  options.proxies = serve::TrustedProxies(f.trusted_proxy);
  options.insecure = f.insecure;
  options.tls_cert = f.tls_cert;
  options.tls_key = f.tls_key;
  options.allowed_hosts = f.allowed_hosts;
  options.max_queue_ms = f.max_queue_ms;
  options.payload_limit = f.payload_limit;
  options.max_client_batch_size = f.max_client_batch_size;
  options.truncates = f.engine.long_text != LongText::error;
  options.tags_whole_texts = !f.cuts_texts;
  options.merges_windows = f.engine.long_text == LongText::window_mean || f.engine.long_text == LongText::window_max;
  options.max_requests = f.max_concurrent_requests;
  options.release_device_seconds = f.release_device_after;
  options.io_threads = f.io_threads;
  options.connections_per_address = f.connections_per_address;
  options.access_log = f.access_log;
  options.lame_duck_seconds = f.lame_duck_seconds;
  options.drain_seconds = f.drain_seconds;
  options.read_keys = [file = f.api_key_file, key = f.api_key] {
    serve::ApiKeys keys;
    if (!file.empty()) keys = serve::ApiKeys::load(file);
    if (!key.empty()) keys.add(key, "api-key");
    return keys;
  };
  options.keys = options.read_keys();
  serve::require_allowed(options);  // before models are loaded
  OpenModels open = open_models(f, config);
  std::vector<std::string> lines;
  for (const serve::ServedModel& m : open.models)
    if (m.scorer == nullptr)
      log_warning("{} is not available{}: {}", m.name,
                  &m == &open.models[0] && config.ladders.empty() ? ", requests without a model get 503" : "", m.fault);
    else
      lines.push_back(fmt::format("{}: {} on {}, {}{}", m.name, m.id, m.scorer->device(), m.scorer->precision(),
                                  m.tagger.empty() ? "" : fmt::format("; shares its encoder with {}", m.tagger)));
  options.models = open.models;
  // Used only on the administration thread. Holds the models' settings without their scorers.
  const auto asked = std::make_shared<OpenModels>(std::move(open));
  for (serve::ServedModel& model : asked->models) model.scorer.reset();
  const auto place_of = [asked](const std::string& name) {
    return static_cast<size_t>(std::find_if(asked->models.begin(), asked->models.end(),
                                            [&](const serve::ServedModel& m) { return m.name == name; }) -
                               asked->models.begin());
  };
  options.reopen = [asked, place_of](const std::string& name, const Scorer* beside, bool beside_stays) {
    const size_t place = place_of(name);
    serve::ServedModel model = asked->models.at(place);
    const bool failed = asked->options.at(place).model.empty();
    const ScorerOptions own = failed ? asked->settings[place]() : asked->options[place];
    ScorerOptions scorer = own;
    model.revision = serve::model_revision(scorer.model);
    add_tagger(*asked, model, scorer);
    model.scorer = beside != nullptr ? Scorer::open_beside(*beside, scorer, beside_stays) : Scorer::open(scorer);
    model.fault.clear();
    asked->options[place] = own;  // others may share its encoder from now on
    return model;
  };
  options.revision_of = [asked, place_of](const std::string& name) {
    return serve::model_revision(asked->options.at(place_of(name)).model);
  };
  options.tagger_of = [asked, place_of](const std::string& name) {
    const auto tagger = asked->encoders.tagger_of(asked->options.at(place_of(name)), asked->options);
    return tagger ? asked->models[*tagger].name : std::string();
  };
  options.watch.max_utilization_percent = env_number("GPU_MAX_UTILIZATION_WARN", options.watch.max_utilization_percent);
  options.watch.max_temperature_c = env_number("GPU_MAX_TEMPERATURE_C", options.watch.max_temperature_c);
  options.watch.min_free_mib = env_number("GPU_MIN_FREE_VRAM_MB", options.watch.min_free_mib);
  for (const serve::LadderRules& rules : config.ladders)
    options.ladders.push_back(std::make_shared<serve::Ladder>(rules));
  options.queues = config.queues;
  options.state_needed = !f.state_dir.empty();
  options.jobs_root = f.jobs_root;
  options.keep_jobs_seconds = f.keep_jobs;
  options.job_limits = {f.max_jobs, f.max_jobs_bytes};
  options.state_dir = f.state_dir.empty() ? (cache_dir() / "serve").string() : f.state_dir;
  if (f.check) {  // does not open the port, queues or jobs
    options.listen = "127.0.0.1:0";
    options.socket.reset();
    options.queues.clear();
    options.state_dir.clear();
    serve::Server server(std::move(options));
    for (const std::string& line : lines) log_info("{}", line);
    const std::vector<std::string> warnings = server.check();
    for (const std::string& warning : warnings) log_warning("{}", warning);
    if (!warnings.empty())
      fail(ErrorCode::bad_model, "{}: the server would start, with {} warning{}",
           f.config.empty() ? "--check" : f.config, warnings.size(), warnings.size() == 1 ? "" : "s");
    log_info("configuration is valid");
    return 0;
  }
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

std::vector<std::string> serve_setting_names() {
  std::vector<std::string> names;
  for (const SettingInfo& info : serve_settings().infos()) names.push_back(info.name);
  for (const SettingInfo& info : engine_settings().infos()) names.push_back(info.name);
  return names;
}

std::function<int()> setup_serve(CLI::App& app) {
  auto f = std::make_shared<ServeFlags>();
  f->models = {hub::default_model()};
  app.add_option(
         "-m,--model,--model-id", f->models,
         "model directory, name or vader; NAME=MODEL sets its name; repeat for more models (the first one serves "
         "requests without a model)")
      ->allow_extra_args(false);
  show_default(*app.get_option("--model"), "default, or vader if not installed");
  app.add_option("--embedding-model", f->embedding_models, "model to serve for embeddings; also NAME=MODEL")
      ->allow_extra_args(false);
  app.add_option("--allowed-host", f->allowed_hosts, "allowed host name in requests, besides localhost")
      ->allow_extra_args(false);
  add_flags(app, serve_settings(), *f,
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
             "release_device_after",
             "state_dir",
             "jobs_root",
             "keep_jobs",
             "max_jobs",
             "max_jobs_bytes",
             "connections_per_address",
             "io_threads",
             "access_log",
             "lame_duck_seconds",
             "drain_seconds"});
  add_flags(app, engine_settings(), f->engine,
            {"device", "precision", "memory_limit", "leave_free", "threads", "max_length", "long_text", "deterministic",
             "q,quiet"});
  f->tei.add_to(app);
  app.add_flag("--check", f->check,
               "check the configuration, load the models, evaluate the gates of ladders, and exit");
  app.add_option("--config", f->config, "YAML file of models, ladders, queues and these flags (see docs/serve.md)");
  app.footer(
      "Routes: /predict /embed /tokenize /info /health /metrics (text-embeddings-inference), /v1/embeddings "
      "/v1/models\n"
      "(OpenAI), /models/NAME (Hugging Face), /classify /ner /analyze /score /queues /jobs /dashboard /admin");
  return [f, &app] { return run_serve(*f, app); };
}

}  // namespace brim::cli
