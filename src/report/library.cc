// SPDX-License-Identifier: Apache-2.0
// Parts of libbrim.so beyond the engine: its interface to training (like cli/train.cc, without flags), downloads, and
// its location.
#include <dlfcn.h>

#include <atomic>
#include <filesystem>

#include "base/log.h"
#include "brim/pull.h"
#include "brim/train.h"
#include "hub/model_dir.h"
#include "hub/model_download.h"
#include "net/pull.h"
#include "plan/card_measure.h"
#include "report/train_report.h"
#include "train/settings.h"
#include "train/trainer.h"

namespace brim {
namespace {

// Runs at load time, before anything is opened: the process is shared with the caller.
[[maybe_unused]] const bool registered = [] {
  Dl_info code{};
  std::error_code ignored;
  if (::dladdr(reinterpret_cast<const void*>(&run_training), &code) != 0 && code.dli_fname != nullptr)
    plan::set_library(std::filesystem::absolute(code.dli_fname, ignored));
  return true;
}();

}  // namespace

std::string pull_model(const std::string& model, const std::function<void(int64_t, int64_t)>& on_progress,
                       std::stop_token stop) {
  const std::string name = model.empty() ? hub::default_model() : model;
  if (hub::names_vader(name)) return "";
  std::atomic<bool> stopped{false};
  const std::stop_callback on_stop(stop, [&] { stopped = true; });
  const hub::ModelSearchPath search_path = hub::model_search_path(hub::model_roots());
  const auto download = [&](const std::string& repository) {
    net::PullOptions options = net::pull_options_from_env();
    options.repository = repository;
    options.cache = search_path.hub;
    options.stop = &stopped;
    if (on_progress)
      options.on_progress = [&](int64_t done, int64_t total, const std::string&) { on_progress(done, total); };
    return net::pull(options).directory;
  };
  return hub::resolve_or_download(name, search_path, download).string();
}

TrainListener::~TrainListener() = default;
void TrainListener::progress(double, double, std::string_view) {}
void TrainListener::line(std::string_view) {}

TrainReport run_training(const TrainSpec& spec, TrainListener& listener, std::stop_token stop) {
  train::TrainSettings settings;
  for (const auto& [name, value] : spec.settings)
    if (const std::string note = apply_setting(settings, name, value); !note.empty()) listener.line(note);
  find_models(settings);
  std::atomic<bool> stopped{false};
  const std::stop_callback on_stop(stop, [&] { stopped = true; });
  train::TrainCallbacks callbacks;
  callbacks.progress = [&](double done, double total, const std::string& text) {
    listener.progress(done, total, text);
  };
  callbacks.say = [&](const std::string& line) { listener.line(line); };
  const auto page = std::filesystem::path(settings.output_dir) / "report.html";
  callbacks.record = [&](const std::string& record) { report::write_train_report(page, record); };
  callbacks.stop = &stopped;
  const train::TrainOutcome outcome = train::train(settings, callbacks);
  TrainReport report;
  report.steps = outcome.steps;
  report.samples = outcome.samples;
  report.tokens = outcome.tokens;
  report.seconds = outcome.seconds;
  report.final_loss = outcome.final_loss;
  report.best_metric = outcome.best_metric;
  report.best_metric_name = outcome.best_metric_name;
  report.limited_by = outcome.held_back_by;
  report.best_step = outcome.best_step;
  report.planned_bytes = outcome.planned_bytes;
  report.held_bytes = outcome.held_bytes;
  report.limit_bytes = outcome.limit_bytes;
  report.stopped_early = outcome.stopped_early;
  report.interrupted = outcome.interrupted;
  return report;
}

}  // namespace brim
