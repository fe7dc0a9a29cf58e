// SPDX-License-Identifier: Apache-2.0
#include "cli/engine_flags.h"

#include <CLI/CLI.hpp>

#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "base/timeline.h"
#include "base/units.h"
#include "cli/env_file.h"
#include "cli/help.h"
#include "cli/setting_flags.h"
#include "cli/verb.h"
#include "device/built_with_cuda.h"
#include "engine/option_types.h"
#include "engine/zero_shot.h"
#include "hub/gliner_config.h"
#include "hub/model_files.h"
#include "io/atomic_file.h"

namespace brim::cli {

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
  app.add_option("--adapter", adapter, "LoRA adapter for the model, in PEFT's format: directory or name");
  add_flags(app, engine_settings(), *this,
            {"device", "precision", "memory_limit", "leave_free", "threads", "max_length", "long_text", "fill",
             "deterministic", "q,quiet", "trace"});
}

const SettingsTable<EngineFlags>& engine_settings() {
  using namespace setting;  // NOLINT: the kinds of values
  using F = EngineFlags;
  static const SettingsTable<F> table({
      {"device", "auto, cpu, cuda or cuda:N",
       typed<F, Device>(&F::device, engine::read_device, [](const Device& device) { return device.text(); })},
      {"precision", "auto, fp32, tf32, bf16, fp16, fp8 or int8",
       typed<F, Precision>(&F::precision, engine::read_precision, [](const Precision& p) { return p.text(); })},
      {"memory_limit", "maximum device memory of this process: 6GiB, 90% or auto",
       typed<F, MemoryLimit>(&F::memory_limit, engine::read_memory_limit, [](const MemoryLimit& m) { return m.text; })},
      {"leave_free", plan::kLeaveFreeHelp,
       typed<F, LeaveFree>(&F::leave_free, engine::read_leave_free, [](const LeaveFree& free) { return free.text; })},
      {"threads", "CPU threads; 0: all cores",
       number<F, int>(
           &F::threads,
           [](double n) { return n >= 0 && n <= 1024 ? nullptr : "must be from 1 to 1024, or 0 for all cores"; })},
      {"max_length", "maximum text length in tokens; 0: the model's limit",
       number<F, int64_t>(&F::max_length, not_negative)},
      {"long_text", "what to do with longer texts: truncate, window-mean, window-max or error",
       choice<F, LongText>(&F::long_text, {{"truncate", LongText::truncate},
                                           {"window-mean", LongText::window_mean},
                                           {"window-max", LongText::window_max},
                                           {"error", LongText::error}})},
      {"fill", "use all allowed memory, even if it is not faster", truth<F>(&F::fill)},
      {"deterministic", "make scores independent of batch composition (slower for single texts on a GPU)",
       truth<F>(&F::deterministic)},
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

ScorerOptions EngineFlags::scorer_options() const {
  ScorerOptions o = *this;
  o.model = find_model(model);
  if (!adapter.empty()) {
    if (o.model.empty()) fail(ErrorCode::usage, "--adapter {}: VADER has no adapters; choose a --model", adapter);
    o.adapter = find_model(adapter);
  }
  const auto is_nli = [&] {
    return engine::find_nli_classes(hub::open_model({o.model, o.adapter}).config.id2label).has_value();
  };
  const bool is_used = zero_shot && !o.model.empty() && (!zero_shot_if_nli || is_nli());
  if (!is_used) o.zero_shot.reset();
  if (o.model.empty() || !hub::is_gliner(o.model)) o.entities.reset();
  if (o.model.empty()) o.model = "vader";
  return o;
}

void EngineFlags::refuse_rules(std::string_view problem) const {
  if (find_model(model).empty()) fail(ErrorCode::usage, "{}", problem);
}

LeaveFree leave_free_of_env(Device::Kind device) {
  const double mib = env_number("GPU_MIN_FREE_VRAM_MB", 0);
  const bool on_card = device == Device::Kind::automatic ? device::built_with_cuda() && device::nvidia_driver_present()
                                                         : device == Device::Kind::cuda;
  return mib > 0 && on_card ? LeaveFree(fmt::format("{:.0f}MiB", mib)) : LeaveFree();
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

void CacheFlag::add_to(CLI::App& app) {
  app.add_option("--cache", size, "memory to score repeated texts only once; 0: score every row")
      ->capture_default_str();
}

int64_t CacheFlag::bytes() const {
  const auto bytes = parse_bytes(size);
  if (!bytes || *bytes < 0) fail(ErrorCode::usage, "--cache {}: must be a size such as 64MiB, or 0", size);
  return *bytes;
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
