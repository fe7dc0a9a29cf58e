// SPDX-License-Identifier: Apache-2.0
// --trace for `brim forecast train` and `roll`. Other commands write their traces in engine_flags.cc.
#include "base/error.h"
#include "base/timeline.h"
#include "cli/forecast_verbs.h"
#include "io/atomic_file.h"

namespace brim::cli {

ForecastTrace::ForecastTrace(const std::string& path) : path_(path) {
  if (path_.empty()) return;
  io::require_writable(path_);
  Timeline::enable(true);
  Timeline::name_thread("main");
}

void ForecastTrace::begins(forecast::EnsembleDevice& on) {
  if (!path_.empty()) readings_.begin(on.device());
}

void ForecastTrace::ends(const char* verb, const forecast::ForecastSettings& s, forecast::EnsembleDevice& on,
                         const forecast::SeriesStore& series, const forecast::NbeatsModel& members,
                         const forecast::EnsemblePlan& plan, int64_t lanes, int64_t steps, bool resumed) {
  if (path_.empty()) return;
  jobs::RunRecord& r = run_;
  readings_.end(on.device(), r);
  r.verb = verb;
  r.model = r.output = s.output;
  r.precision = precision_name(on.precision());
  r.inputs = s.data;
  r.threads = r.on_card ? 0 : on.threads();
  r.limit_bytes = plan.limit_bytes;
  r.planned_bytes = plan.peak_bytes;
  r.stats.batches = steps * plan.waves;
  r.stats.rows = steps * s.windows_per_step() * lanes;
  monitor::TrainingRecord& t = r.training.emplace();
  t.steps = steps;
  t.lanes = lanes;
  t.waves = plan.waves;
  t.resumed = resumed;
  t.recompute = plan.recompute ? "full" : "none";
  t.free_recompute = t.recompute;
  t.optimizer = t.free_optimizer = "adamw";
  t.free_lanes = plan.lanes_per_wave;
  try {
    const forecast::EnsemblePlan free =
        on.plan_without_limit(training_spec(on.precision(), on.threads(), s, members), lanes, series);
    t.free_lanes = free.lanes_per_wave;
    t.free_recompute = free.recompute ? "full" : "none";
    r.free_limit_bytes = free.limit_bytes;
  } catch (const Error&) {
    r.free_limit_bytes = plan.limit_bytes;  // other processes may hold memory by now
  }
}

void ForecastTrace::write() const {
  if (path_.empty()) return;
  Timeline::enable(false);
  io::write_file_atomically(path_, Timeline::chrome_trace(to_json(run_)));
}

}  // namespace brim::cli
