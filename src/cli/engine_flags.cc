// SPDX-License-Identifier: Apache-2.0
#include "cli/engine_flags.h"

#include <CLI/CLI.hpp>

#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "base/timeline.h"
#include "cli/env_file.h"
#include "cli/help.h"
#include "cli/setting_flags.h"
#include "cli/verb.h"
#include "device/built_with_cuda.h"
#include "io/atomic_file.h"

namespace brim::cli {

using engine::EngineOptions;

void EngineFlags::add_to(CLI::App& app, bool with_vader, std::vector<std::string>* models) {
  model = hub::default_model();
  if (with_vader) model = env_file_value("SENTIMENT_MODEL_NAME").value_or(model);
  const char* shown = with_vader ? "default, or vader if not installed" : "default";  // as in any installation
  std::string help =
      with_vader ? "model directory or name (vader, finbert, distilbert, roberta, …)" : "model directory or name";
  if (models != nullptr) {
    *models = {model};
    help += "; repeat for several, with NAME=MODEL to name their columns";
    show_default(*app.add_option("-m,--model", *models, help)->allow_extra_args(false), shown);
  } else {
    show_default(*app.add_option("-m,--model", model, help), shown);
  }
  add_flags(app, engine_settings(), *this,
            {"device", "precision", "memory_limit", "leave_free", "threads", "max_length", "long_text", "fill",
             "deterministic", "q,quiet", "trace"});
}

const SettingsTable<EngineFlags>& engine_settings() {
  using namespace setting;  // NOLINT: the kinds of values
  using F = EngineFlags;
  static const SettingsTable<F> table({
      {"device", "auto, cpu, cuda or cuda:N", typed(&F::device, device::read_device, device::device_text)},
      {"precision", "auto, fp32, tf32, bf16, fp16, fp8 or int8",
       typed(&F::precision, plan::read_precision, plan::precision_text)},
      {"memory_limit", "maximum device memory of this process: 6GiB, 90% or auto",
       plan::memory_limit_value<F>(&F::memory_limit)},
      {"leave_free", plan::kLeaveFreeHelp, plan::leave_free_value<F>(&F::memory_limit)},
      {"threads", "CPU threads; 0: all cores",
       number(&F::threads,
              [](double n) { return n >= 0 && n <= 1024 ? nullptr : "must be from 1 to 1024, or 0 for all cores"; })},
      {"max_length", "maximum text length in tokens; 0: the model's limit", number(&F::max_length, not_negative)},
      {"long_text", "what to do with longer texts: truncate, window-mean, window-max or error",
       choice(&F::long_text, {{"truncate", LongText::truncate},
                              {"window-mean", LongText::window_mean},
                              {"window-max", LongText::window_max},
                              {"error", LongText::error}})},
      {"fill", "use all allowed memory, even if it is not faster", truth(&F::fill)},
      {"deterministic", "make scores independent of batch composition (slower for single texts on a GPU)",
       truth(&F::deterministic)},
      {"quiet", "print no progress and no summary", truth(&F::quiet)},
      {"trace", "write a timeline of the run to this file (open it in ui.perfetto.dev)", setting::text(&F::trace)},
  });
  return table;
}

void warn_of_rules_by_default(const CLI::App& verb) {
  if (verb.get_option("--model")->count() > 0 || env_file_value("SENTIMENT_MODEL_NAME") ||
      hub::default_model() != "vader")
    return;
  log_warning(
      "models/default not found, using VADER's rules instead (set BRIM_HOME to the directory that contains models, or "
      "choose --model vader)");
}

EngineOptions EngineFlags::settings() const {
  EngineOptions options;
  options.device = device;
  options.precision = precision;
  options.threads = threads;
  options.memory_limit = memory_limit;
  options.max_length = max_length;
  options.long_text = long_text;
  options.fill = fill;
  options.deterministic = deterministic;
  return options;
}

EngineOptions EngineFlags::options() const {
  EngineOptions options = settings();
  if (!is_vader()) options.model_dir = resolve_model(model, hub::model_search_path(hub::model_roots()));
  return options;
}

ScorerOptions EngineFlags::scorer_options() const {
  const EngineOptions checked = options();
  ScorerOptions o;
  o.model = is_vader() ? "vader" : checked.model_dir.string();
  o.device = device_text(device);
  o.precision = precision_text(precision);
  o.memory_limit = memory_limit.text;
  o.leave_free = memory_limit.leave_free_text;
  o.threads = checked.threads;
  o.max_length = checked.max_length;
  o.long_text = checked.long_text;
  o.deterministic = deterministic;
  return o;
}

std::string leave_free_of_env(std::string_view device) {
  const double mib = env_number("GPU_MIN_FREE_VRAM_MB", 0);
  const bool chosen = device.empty() || device == "auto";
  const bool on_card = chosen ? device::built_with_cuda() && device::nvidia_driver_present() : device != "cpu";
  return mib > 0 && on_card ? fmt::format("{:.0f}MiB", mib) : "";
}

void DialectFlags::add_to(CLI::App& app) {
  app.add_option("--delimiter", delimiter,
                 "column separator of csv and tsv inputs, if it is not the usual one: ';', '|', … or tab");
  app.add_flag("--no-quotes", no_quotes, "treat quotes in csv and tsv inputs as ordinary characters");
}

char DialectFlags::character() const {
  if (delimiter.empty()) return 0;
  const auto character = rows::parse_delimiter(delimiter);
  if (!character)
    fail(ErrorCode::usage, "--delimiter {}: must be one character other than a letter, digit or quote, or tab",
         delimiter);
  return *character;
}

std::unique_ptr<engine::TextModel> EngineFlags::open() const {
  if (is_vader()) return std::make_unique<engine::RulesModel>();
  return engine::Engine::open(options());
}

std::unique_ptr<engine::Engine> EngineFlags::open_engine() const {
  if (is_vader()) fail(ErrorCode::usage, "--model vader: VADER has no weights; choose a model directory");
  return engine::Engine::open(options());
}

std::unique_ptr<engine::Engine> EngineFlags::open_embedder(Pooling pooling, const std::string& prompt_name) const {
  EngineOptions all = options();
  all.pooling = pooling;
  all.prompt_name = prompt_name;
  return engine::Engine::open(all);
}

void EngineFlags::start_trace() const {
  if (trace.empty()) return;
  io::require_writable(trace);
  Timeline::enable(true);
  Timeline::name_thread("main");
}

void EngineFlags::write_trace(const std::string& record) const {
  if (trace.empty()) return;
  Timeline::enable(false);
  io::write_file_atomically(trace, Timeline::chrome_trace(record));
}

}  // namespace brim::cli
