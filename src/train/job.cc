// SPDX-License-Identifier: Apache-2.0
#include "train/job.h"

#include <algorithm>
#include <cmath>

#include "base/units.h"
#include "device/cuda_info.h"
#include "model/lora.h"
#include "plan/card_measure.h"
#include "plan/resolve.h"
#include "train/content_hash.h"

namespace brim::train {

using plan::Plan;
using plan::PlanRequest;

namespace {

// Selects a student's layers at even intervals from the full model.
void keep_layers(TrainJob& job) {
  const model::SlabLayout from = slab_layout(job.whole), to = slab_layout(job.shape);
  std::vector<float> out(static_cast<size_t>(to.elements()), 0.0f);
  auto copy = [&](int64_t source_layer, int64_t target_layer) {
    const auto sources = params_of_layer(from.params, source_layer), targets = params_of_layer(to.params, target_layer);
    for (size_t i = 0; i < sources.size(); ++i)
      std::copy_n(job.master.begin() + from.offset[sources[i]], from.params[sources[i]].elements(),
                  out.begin() + to.offset[targets[i]]);
  };
  copy(-1, -1);  // embeddings and heads
  for (int64_t l = 0; l < job.shape.layers; ++l)
    copy(job.shape.layers == 1 ? job.whole.layers - 1
                               : (l * (job.whole.layers - 1) + (job.shape.layers - 1) / 2) / (job.shape.layers - 1),
         l);
  job.master = std::move(out);
}

void continue_adapter(TrainJob& job, const hub::WeightSource& source) {
  const std::vector<std::string> loaded = load_adapter(*job.adapter, source, job.shape, job.replaces_head, job.master);
  std::erase_if(job.new_tensors,
                [&](const std::string& name) { return std::find(loaded.begin(), loaded.end(), name) != loaded.end(); });
}

std::string hash_of_base(const TrainJob& job) {
  ContentHash hash;
  hash.add_all(std::span<const float>(job.master).subspan(static_cast<size_t>(slab_layout(job.shape).trained())));
  return hash.hex();
}

// Initial values of all parameters: the model's, with a new head if its own does not fit.
void load_initial_values(TrainJob& job) {
  const TrainSettings& s = job.settings;
  const std::vector<std::string>& names = job.task == TrainTask::token ? job.labels.token : job.labels.sequence;
  const bool other_head = s.numbers() ? job.config.num_labels != 1 : names != job.config.id2label;
  job.replaces_head =
      job.unnamed_head || (s.ignore_mismatched_head && job.head != hub::HeadKind::encoder && other_head);
  const auto source = hub::WeightSource::open(job.model_dir);
  job.new_tensors = load_master(*source, job.whole, job.config.initializer_range, static_cast<uint64_t>(s.seed),
                                job.master, job.replaces_head);
  if (job.shape.layers != job.whole.layers) keep_layers(job);
  if (job.adapter) continue_adapter(job, *source);
  if (job.shape.lora) job.base_hash = hash_of_base(job);
}

}  // namespace

std::string recompute_note(const TrainSettings& s, const Plan& plan) {
  if (s.gradient_checkpointing != false || s.recompute || plan.recompute == model::Recompute::none) return "";
  return fmt::format(
      "`gradient_checkpointing=false`: the plan still uses recompute {} ({}); set `recompute=none` to "
      "keep all activations",
      recompute_name(plan.recompute),
      plan.recompute == model::Recompute::full ? "all activations" : "feed-forward activations");
}

PlanRequest train_plan_request(const TrainJob& job, const plan::DeviceProfile& device, int64_t limit_bytes) {
  const TrainSettings& s = job.settings;
  PlanRequest r;
  r.shape = job.shape;
  r.task = plan::Task::train;
  r.device = device;
  r.limit_bytes = limit_bytes;
  r.limit_origin = s.limit_origin;
  // Use the longest text in the data, not the longest possible one: memory is planned for this data.
  int64_t longest = 1;
  for (const TrainSet* set : {&job.train_set, &job.validation_set})
    for (int64_t row = 0; row < set->rows(); ++row) longest = std::max<int64_t>(longest, set->length(row));
  r.max_length = longest;
  r.precision = job.precision;
  r.keep_optimizer = s.optim.has_value();
  r.optimizer = s.optim.value_or(model::Optimizer::adamw);
  r.recompute = s.recompute;
  // A global batch may exceed its mean; 25 % more makes a second micro-batch rare.
  r.global_batch_tokens = s.batch_tokens > 0 ? s.batch_tokens
                                             : static_cast<int64_t>(std::ceil(1.25 * job.train_set.tokens_per_row() *
                                                                              static_cast<double>(s.global_batch())));
  r.fill = s.fill;
  r.soft_labels = !job.teachers.empty();
  add_host_memory(r, job.model_dir);
  if (device.kind == device::DeviceKind::cpu) {
    r.tokenizer_bytes += std::min(kMostMappedTokens, job.train_set.bytes() + job.validation_set.bytes()) +
                         16 * job.train_set.rows();  // row order of an epoch
    if (!job.teachers.empty())
      r.tokenizer_bytes +=
          soft_label_bytes(job.train_set.rows(), job.shape.sequence_classes, job.teachers.size()) + kTeacherResidue;
    if (!s.resume_from_checkpoint.empty()) r.load_bytes *= 2;  // the checkpoint's in addition to the model's
  }
  return r;
}

void plan_train_job(TrainJob& job, int64_t token_budget, std::optional<model::Recompute> recompute) {
  memory::Ledger& ledger = memory::Ledger::of(*job.device);
  if (!ledger.limited())  // only once: a second call would count this run's memory as another process's
    ledger.set_limit(job.settings.memory_limit.on(job.device->memory(), job.device->name(), job.settings.limit_origin));
  const int64_t limit = ledger.limit_bytes();
  PlanRequest r = train_plan_request(job, plan::measured_profile(*job.device, job.precision, limit), limit);
  if (!r.recompute) r.recompute = recompute;
  if (token_budget > 0) {  // the optimizer state already exists
    r.moments = job.plan.moments_on_host ? model::Moments::host : model::Moments::device;
    r.optimizer = job.plan.optimizer;
    r.keep_optimizer = true;
  }
  r.token_budget = token_budget;
  Plan plan = solve(r);
  if (token_budget > 0) {
    job.memory.change(plan.parts);
  } else {
    job.memory = memory::PlannedMemory();  // nothing is allocated from it at this point
    job.memory = reserve(ledger, plan, "training");
  }
  job.plan = std::move(plan);
}

TrainJob open_train_job(const TrainSettings& settings, const PassProgress& progress) {
  const Say say = [&](const std::string& line) {
    if (progress.say) progress.say(line);
  };
  TrainJob job;
  static_cast<TaskSpec&>(job) = read_task(settings, say);
  static_cast<TrainData&>(job) = read_train_data(job);
  plan::PrecisionChoice choice = train_precision(job.settings.precision, plan::local_profile(*job.device), job.shape);
  job.precision = choice.precision;
  job.precision_reason = std::move(choice.reason);
  plan_train_job(job, 0, std::nullopt);  // before the teachers run: training may not fit
  if (!job.teachers.empty()) job.soft = make_soft_labels(job, progress);
  load_initial_values(job);

  for (const std::string& note : job.plan.notes) say(note);
  if (const std::string note = recompute_note(job.settings, job.plan); !note.empty()) say(note);
  for (const std::string& note : notes_on_data(job, job)) say(note);
  return job;
}

}  // namespace brim::train
