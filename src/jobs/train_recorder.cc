// SPDX-License-Identifier: Apache-2.0
#include "jobs/train_recorder.h"

#include <algorithm>

#include "base/error.h"

namespace brim::jobs {

using train::TrainJob;

namespace {

// Adds the plan's predictions for steps of this run's length: as run, with all available device memory, and with wider
// steps.
void predict_train_plans(RunRecord& r, const TrainJob& job) {
  const plan::Plan& plan = job.plan;
  plan::PlanRequest request = train_plan_request(job, plan.device, plan.limit_bytes);
  request.typical_length =
      std::clamp<int64_t>(r.stats.tokens / std::max<int64_t>(1, r.stats.rows), 1, request.max_length);
  request.global_batch_tokens = std::max<int64_t>(1, r.stats.tokens / std::max<int64_t>(1, r.training->steps));
  try {
    plan::PlanRequest same = request;
    same.token_budget = plan.token_budget;
    same.recompute = plan.recompute;
    same.optimizer = plan.optimizer;
    same.moments = plan.moments_on_host ? model::Moments::host : model::Moments::device;
    r.plan_tokens_per_second = solve(same).tokens_per_second;

    plan::PlanRequest wide = request;
    wide.global_batch_tokens = 0;
    const plan::Plan wider = solve(wide);
    r.training->wide_batch_tokens = wider.token_budget;
    r.training->wide_tokens_per_second = wider.tokens_per_second;

    device::MemoryInfo memory = job.device->memory();
    memory.free_bytes = std::min(memory.total_bytes, memory.free_bytes + plan.peak_bytes);  // plus this run's own
    request.limit_bytes = std::max(plan.limit_bytes, plan::MemoryLimit().on(memory));
    request.recompute.reset();
    const plan::Plan free = solve(request);
    r.free_token_budget = free.token_budget;
    r.free_limit_bytes = request.limit_bytes;
    r.free_tokens_per_second = free.tokens_per_second;
    r.training->free_planned_bytes = free.peak_bytes;
    r.training->free_recompute = recompute_name(free.recompute);
    r.training->free_optimizer = optimizer_name(free.optimizer);
    r.training->free_moments_on_host = free.moments_on_host;
  } catch (const Error&) {
    r.plan_tokens_per_second = 0;  // the predictions are optional; the run is recorded without them
  }
}

}  // namespace

void TrainRecorder::watch(train::TrainCallbacks& callbacks) {
  callbacks.begins = [this](const TrainJob& job) { begins(job); };
  callbacks.ends = [this](const TrainJob& job, const train::TrainOutcome& outcome) { ends(job, outcome); };
}

void TrainRecorder::begins(const TrainJob& job) { readings_.begin(*job.device); }

void TrainRecorder::ends(const TrainJob& job, const train::TrainOutcome& outcome) {
  RunRecord& r = run_;
  engine::PipelineStats& stats = r.stats;
  readings_.end(*job.device, r);
  stats.rows = outcome.samples;
  stats.tokens = outcome.tokens;
  stats.batches = outcome.micro_batches;
  stats.compute_seconds = outcome.device_busy * outcome.seconds;

  const plan::Plan& plan = job.plan;
  r.verb = "train";
  r.others = outcome.others.text();
  r.model = job.model_dir.string();
  r.precision = precision_name(job.precision);
  r.inputs = job.settings.train_files;
  r.output = job.settings.output_dir;
  if (!job.settings.token_train_file.empty()) r.inputs.push_back(job.settings.token_train_file);
  r.threads = r.on_card ? 0 : job.threads;
  r.token_budget = plan.token_budget;
  r.max_length = plan.max_length;
  r.limit_bytes = plan.limit_bytes;
  r.planned_bytes = plan.peak_bytes;
  r.staging_depth = plan.staging_depth;
  monitor::TrainingRecord& t = r.training.emplace();
  t.steps = outcome.own_steps;
  t.teacher_seconds = outcome.time.teacher;
  t.token_placement = token_placement_name(job.token_placement);
  t.recompute = recompute_name(plan.recompute);
  t.optimizer = optimizer_name(plan.optimizer);
  t.moments_on_host = plan.moments_on_host;
  t.recompute_asked = job.settings.recompute.has_value();
  t.resumed = !job.settings.resume_from_checkpoint.empty();
  t.free_recompute = t.recompute;
  t.free_optimizer = t.optimizer;
  t.free_moments_on_host = t.moments_on_host;
  predict_train_plans(r, job);
}

}  // namespace brim::jobs
