// SPDX-License-Identifier: Apache-2.0
// Output of `brim forecast` while it runs: progress, live records and traces. Other commands write their traces in
// engine_flags.cc.
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/timeline.h"
#include "cli/forecast_verbs.h"
#include "cli/render.h"
#include "engine/run_stats.h"
#include "io/atomic_file.h"

namespace brim::cli {

ForecastTerminal::ForecastTerminal(bool quiet, const std::string& trace) : quiet_(quiet), trace_(trace) {
  if (trace_.empty()) return;
  io::require_writable(trace_);
  Timeline::enable(true);
  Timeline::name_thread("main");
}

void ForecastTerminal::progress(const std::string& title, double done, double total, const std::string& text) {
  if (bar_ == nullptr || title != title_) {
    bar_ = std::make_unique<Progress>(title, STDERR_FILENO, quiet_);
    title_ = title;
  }
  bar_->update({done, total, text});
}

void ForecastTerminal::progress_ends() {
  if (bar_ != nullptr) bar_->finish();
  bar_.reset();
}

void ForecastTerminal::note(const std::string& text) {
  if (!quiet_) log_info("{}", rendered(text));
}

void ForecastTerminal::line(const std::string& text) {
  if (!quiet_) print_stderr("{}\n", rendered(text));
}

void ForecastTerminal::opened(const char* command, const forecast::ForecastSettings& settings,
                              forecast::EnsembleDevice& on) {
  device_ = &on.device();
  live_.verb = command;
  live_.model = settings.output;
  live_.set_device(*device_);
  live_.precision = precision_name(on.precision());
  live_.limit_bytes = memory::Ledger::of(*device_).limit_bytes();
  publisher_.publish(live_);
}

// Publishes five times per second.
void ForecastTerminal::training_step(int64_t step, int64_t steps, double loss) {
  constexpr int64_t kApartNs = 200'000'000;
  if (device_ == nullptr || !publisher_.active() || now_ns() - last_ns_ < kApartNs) return;
  last_ns_ = now_ns();
  live_.step = step;
  live_.total_steps = steps;
  live_.loss = loss;
  live_.done = static_cast<double>(step) / static_cast<double>(steps);
  live_.planned_bytes = memory::Ledger::of(*device_).reserved_bytes();
  live_.peak_bytes = engine::held_bytes(*device_);
  publisher_.publish(live_);
}

void ForecastTerminal::training_begins(forecast::EnsembleDevice& on) {
  if (!trace_.empty()) readings_.begin(on.device());
}

void ForecastTerminal::training_ends(const report::ForecastWork& work, forecast::EnsembleDevice& on) {
  if (trace_.empty()) return;
  jobs::RunRecord& r = run_;
  readings_.end(on.device(), r);
  r.verb = work.command;
  r.model = r.output = work.settings.output;
  r.precision = precision_name(on.precision());
  r.inputs = work.settings.data;
  r.threads = r.on_card ? 0 : on.threads();
  r.limit_bytes = work.plan.limit_bytes;
  r.planned_bytes = work.plan.peak_bytes;
  r.stats.batches = work.steps * work.plan.waves;
  r.stats.rows = work.steps * work.settings.windows_per_step() * work.lanes;
  monitor::TrainingRecord& t = r.training.emplace();
  t.steps = work.steps;
  t.lanes = work.lanes;
  t.waves = work.plan.waves;
  t.resumed = work.resumed;
  t.recompute = work.plan.recompute ? "full" : "none";
  t.free_recompute = t.recompute;
  t.optimizer = t.free_optimizer = "adamw";
  t.free_lanes = work.plan.lanes_per_wave;
  try {
    const forecast::EnsemblePlan free = on.plan_without_limit(
        training_spec(on.precision(), on.threads(), work.settings, work.members), work.lanes, work.series);
    t.free_lanes = free.lanes_per_wave;
    t.free_recompute = free.recompute ? "full" : "none";
    r.free_limit_bytes = free.limit_bytes;
  } catch (const Error&) {
    r.free_limit_bytes = work.plan.limit_bytes;  // other processes may hold memory by now
  }
  Timeline::enable(false);
  io::write_file_atomically(trace_, Timeline::chrome_trace(to_json(run_)));
}

}  // namespace brim::cli
