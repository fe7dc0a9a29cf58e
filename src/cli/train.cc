// SPDX-License-Identifier: Apache-2.0
// brim train: fine-tunes a model directory. Flags, YAML keys and BRIM_ variables use the same names as Hugging Face.
// The training loop is in src/train.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/timeline.h"
#include "base/units.h"
#include "cli/render.h"
#include "cli/setting_flags.h"
#include "cli/verb.h"
#include "io/atomic_file.h"
#include "jobs/train_recorder.h"
#include "report/train_report.h"
#include "train/checkpoint.h"
#include "train/settings.h"
#include "train/step_reporter.h"
#include "train/trainer.h"

namespace brim::cli {
namespace {

struct TrainFlags {
  std::string config;
  std::string trace;
  bool quiet = false;
  FlagValues values;
};

// Flags override the file. Returns notes for the user.
std::vector<std::string> read_settings(const TrainFlags& f, train::TrainSettings& settings) {
  std::vector<std::string> notes;
  if (!f.config.empty()) notes = apply_yaml(settings, f.config);
  // Repeatable keys too are replaced, not extended.
  if (f.values.count("train") + f.values.count("train_file") > 0) settings.train_files.clear();
  if (f.values.count("val") + f.values.count("validation_file") > 0) settings.validation_files.clear();
  if (f.values.count("label_column") > 0) settings.label_columns.clear();
  if (f.values.count("teacher") > 0) settings.teachers.clear();
  if (f.values.count("teacher_weight") > 0) settings.teacher_weights.clear();
  if (f.values.count("labels") > 0) settings.labels.clear();
  if (f.values.count("lora_targets") + f.values.count("target_modules") > 0) settings.lora_targets.clear();
  if (f.values.count("lora_layers") + f.values.count("layers_to_transform") > 0) settings.lora_layers.clear();
  for (const auto& [key, values] : f.values)
    for (const auto& value : values)
      if (value.empty()) fail(ErrorCode::usage, "--{}: missing value", dashed(key));
  for (const auto& [key, values] : f.values)
    for (const auto& value : values)
      if (std::string note = apply_setting(settings, key, value); !note.empty()) notes.push_back(note);
  return notes;
}

void print_summary(const train::TrainSettings& settings, const train::TrainOutcome& outcome) {
  print_stderr("{} in {}{} · {}\n", format_count(outcome.own_steps, "step"), format_duration(outcome.seconds),
               outcome.own_steps < outcome.steps ? fmt::format(" ({} in total)", format_count(outcome.steps)) : "",
               train::speed_text(outcome.samples, outcome.tokens, outcome.seconds));
  print_stderr("time {}\n", to_text(outcome.time));
  print_stderr(
      "device busy {:.1f} % of the steps{} · memory planned {} of {}, {} {}\nlimited by: {}\n",
      100 * outcome.device_busy,
      outcome.mfu ? fmt::format(" · compute used {:.1f} % of peak (MFU{})", 100 * *outcome.mfu, outcome.mfu_note) : "",
      format_bytes(outcome.planned_bytes), format_bytes(outcome.limit_bytes),
      outcome.on_card ? "used" : "peak resident", format_bytes(outcome.held_bytes), rendered(outcome.held_back_by));
  if (outcome.best_step)
    print_stderr("best {}{} {:.4f} at step {}\n", outcome.best_metric_name,
                 outcome.best_metric_name == "mean_f1" ? " (of macro_f1 and entity_f1)" : "", outcome.best_metric,
                 format_count(*outcome.best_step));
  print_stderr("{} in {}{}\n", settings.lora() ? "adapter" : "model", settings.output_dir,
               settings.task == train::TaskChoice::multi
                   ? fmt::format(", tagger in {}/{}", settings.output_dir, train::kTagger)
                   : "");
}

int run_train(const TrainFlags& f) {
  train::TrainSettings settings;
  for (const auto& note : read_settings(f, settings)) log_info("{}", note);
  find_models(settings);

  stop_on_signals();
  std::signal(SIGXFSZ, SIG_IGN);  // exceeding a file-size limit becomes a write error, like a full disk
  Progress progress("training", STDERR_FILENO, f.quiet);
  train::TrainCallbacks callbacks;
  callbacks.progress = [&](double done, double total, const std::string& text) {
    progress.update({done, total, text});
  };
  callbacks.say = [&](const std::string& line) {
    progress.clear();
    if (!f.quiet) log_info("{}", line);
  };
  const auto report = std::filesystem::path(settings.output_dir) / "report.html";
  callbacks.record = [&](const std::string& record) { report::write_train_report(report, record); };
  callbacks.stop = &stop_requested();
  monitor::LivePublisher live;
  callbacks.live = &live;
  jobs::TrainRecorder recorder;
  if (!f.trace.empty()) {
    io::require_writable(f.trace);
    Timeline::enable(true);
    Timeline::name_thread("main");
    recorder.watch(callbacks);
  }
  const train::TrainOutcome outcome = train::train(settings, callbacks);
  progress.finish();
  if (!f.trace.empty()) {
    Timeline::enable(false);
    io::write_file_atomically(f.trace, Timeline::chrome_trace(to_json(recorder.record())));
  }
  if (outcome.interrupted)
    fail(ErrorCode::interrupted,
         "interrupted at step {}, checkpoint saved; continue with --resume-from-checkpoint last",
         format_count(outcome.steps));
  if (!f.quiet) print_summary(settings, outcome);
  return 0;
}

}  // namespace

std::function<int()> setup_train(CLI::App& app) {
  auto f = std::make_shared<TrainFlags>();
  app.add_option("--config", f->config, "YAML file with these flags as keys");
  app.add_flag("-q,--quiet", f->quiet, "print no progress and no summary");
  app.add_option("--trace", f->trace, "write a timeline of the run to this file (open it in ui.perfetto.dev)");
  for (const SettingInfo& setting : train::train_settings().infos())
    add_kept_flag(app, setting, f->values, Spelling::both);
  return [f] { return run_train(*f); };
}

}  // namespace brim::cli
