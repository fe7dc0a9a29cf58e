// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_jobs.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/engine_flags.h"
#include "cli/render.h"
#include "engine/precision.h"
#include "engine/zero_shot.h"
#include "hub/model_dir.h"
#include "plan/card_measure.h"
#include "text/tokenizer.h"
#include "train/schedule.h"

namespace brim::cli {

using plan::Plan;
using plan::PlanRequest;
using plan::Task;

Task asked_task(const PlanFlags& f) {
  if (f.task.empty()) return f.config.empty() ? Task::score : Task::train;
  if (f.task != "score" && f.task != "train") fail(ErrorCode::usage, "--task {}: use score, train or forecast", f.task);
  if (!f.forecast.empty()) fail(ErrorCode::usage, "--{}: requires --task forecast", dashed(f.forecast.begin()->first));
  return f.task == "train" ? Task::train : Task::score;
}

namespace {

// If there are several models, labels are for the NLI models among them.
void plan_zero_shot(const PlanFlags& f, PlanJob& job) {
  const auto zero_shot = f.zero_shot.read();
  if (!zero_shot) return;
  if (job.request.task == Task::train) fail(ErrorCode::usage, "--labels: requires --task score");
  if (f.models.size() > 1 && !engine::find_nli_classes(job.config.id2label)) return;
  (void)engine::require_nli_classes(job.config.id2label, job.dir, "--labels");
  job.request.output = model::Output::sequence_logits;
  job.pairs_per_text = static_cast<int64_t>(zero_shot->labels.size());
  job.notes.push_back(fmt::format("zero-shot with {}: the model runs once per text and label",
                                  format_count(job.pairs_per_text, "label")));
}

// Reads the config and opens the weights; null if there are none.
std::unique_ptr<hub::WeightSource> open_weights(const PlanFlags& f, PlanJob& job) {
  if (!f.adapter.empty()) {
    if (f.models.size() > 1)
      fail(ErrorCode::usage, "--adapter {}: supports one --model, not {}", f.adapter, f.models.size());
    if (job.request.task == Task::train) fail(ErrorCode::usage, "--adapter {}: requires --task score", f.adapter);
    job.adapter = find_model(f.adapter);
    hub::OpenModel adapted = hub::open_model({job.dir, job.adapter});
    job.config = std::move(adapted.config);
    return std::move(adapted.weights);
  }
  job.config = hub::load_hf_config(job.dir);
  try {
    return hub::WeightSource::open(job.dir);
  } catch (const Error& e) {  // a config is enough to plan
    job.notes.push_back(fmt::format("planned from config.json only ({})", rendered(e.what())));
    return nullptr;
  }
}

}  // namespace

PlanJob open_job(const PlanFlags& f, const std::string& model, bool first) {
  PlanJob job;
  train::TrainSettings& s = job.settings;
  if (!f.config.empty())
    for (const auto& note : apply_yaml(s, f.config))
      if (first) log_info("{}", note);
  for (const auto& [key, values] : f.settings) apply_setting(s, key, values[0]);
  if (!model.empty()) s.model = model;
  if (f.settings.count("batch_size") > 0) s.gradient_accumulation_steps = 1;
  if (f.typical_length < 0) fail(ErrorCode::usage, "--typical-length {}: must not be negative", f.typical_length);
  check_values(s);
  if (s.model.empty()) s.model = hub::default_model();

  PlanRequest& r = job.request;
  r.task = asked_task(f);
  if (hub::names_vader(s.model)) {
    if (r.task == Task::train)
      fail(ErrorCode::usage, "--model {}: VADER cannot be trained; choose another model", s.model);
    if (f.models.size() == 1 && f.zero_shot.read())
      fail(ErrorCode::usage, "--labels: requires an NLI model; {} has fixed labels", s.model);
    job.rules = true;
    return job;
  }
  job.dir = resolve_model(s.model, hub::model_search_path(hub::model_roots()));
  const std::unique_ptr<hub::WeightSource> weights = open_weights(f, job);
  r.shape = model::shape_of(job.config, head_kind(job.config, weights ? weights->names() : std::vector<std::string>()));
  if (weights) check_params(*weights, r.shape, r.task == Task::score);
  if (weights && r.task == Task::score) job.adapter_ranks = adapter_ranks(*weights, r.shape);
  if (r.shape.sequence_classes + r.shape.token_classes == 0) {
    r.shape.sequence_classes = 2;
    job.notes.push_back("no classification head; assuming two classes");
  }
  r.output = r.shape.sequence_classes > 0 ? model::Output::sequence_scores : model::Output::token_scores;
  plan_zero_shot(f, job);
  r.max_length = r.shape.max_tokens();
  std::unique_ptr<text::Tokenizer> tokenizer;
  try {
    tokenizer = text::Tokenizer::load(job.dir);
  } catch (const Error&) {  // plans do not need a tokenizer
  }
  if (tokenizer) {
    model::check_vocabulary(job.dir, r.shape, tokenizer->vocab_size());
    r.max_length = std::min(r.max_length, tokenizer->model_max_length().value_or(r.max_length));
  }
  if (s.max_length > 0) r.max_length = std::min(r.max_length, s.max_length);
  r.typical_length =
      f.typical_length > 0 ? std::min(f.typical_length, r.max_length) : std::min<int64_t>(r.max_length, 128);
  r.fill = s.fill;
  r.optimizer = s.optim.value_or(model::Optimizer::adamw);
  r.keep_optimizer = s.optim.has_value();
  r.recompute = s.recompute;
  if (r.task == Task::train) r.shape = train::with_freeze(r.shape, s.freeze);
  if (r.task == Task::train)
    r.global_batch_tokens = s.batch_tokens > 0 ? s.batch_tokens : s.global_batch() * r.typical_length;
  return job;
}

std::string device_of(const PlanFlags& f, const PlanJob& job) {
  return f.device.empty() ? device_text(job.settings.device) : f.device;
}

PlanTarget open_target(const PlanFlags& f, const std::string& name) {
  PlanTarget t;
  if (!f.vram.empty() || f.tflops != 0 || f.bandwidth != 0) {
    if (!f.device.empty())
      fail(ErrorCode::usage, "--device {}: cannot be combined with --vram, --tflops and --bandwidth", f.device);
    const auto vram = parse_bytes(f.vram);
    if (!vram)
      fail(ErrorCode::usage, "--vram{}: must be a memory size such as 8GiB", f.vram.empty() ? "" : " " + f.vram);
    if (const std::string meant = with_unit(f.vram); !meant.empty())
      fail(ErrorCode::usage, "--vram {}: missing unit (did you mean {}?)", f.vram, meant);
    t.profile = plan::custom_card(*vram, f.tflops, f.bandwidth * 1e9, &t.notes);
  } else if (name == "auto" || name == "cpu" || name.starts_with("cuda")) {
    t.device = device::open_device(name, f.threads);
    t.profile = f.measure && t.device->kind() == device::DeviceKind::cpu ? plan::measure_cpu(*t.device)
                                                                         : plan::local_profile(*t.device);
    t.memory = t.device->memory();
    return t;
  } else {
    t.profile = plan::card_profile(name, &t.notes);
  }
  for (std::string& note : t.notes) note = rendered(note);
  t.memory = {t.profile.total_bytes, t.profile.total_bytes};
  return t;
}

PlanRequest request_for(const PlanJob& job, const PlanTarget& t) {
  PlanRequest r = job.request;
  r.device = t.profile;
  r.limit_bytes = job.settings.memory_limit.on(t.memory, t.profile.name, job.settings.limit_origin);
  r.limit_origin = job.settings.limit_origin;
  add_host_memory(r, {job.dir, job.adapter});
  const train::TrainSettings& s = job.settings;
  r.precision = (r.task == Task::score ? engine::choose_precision(s.precision, t.profile, job.config,
                                                                  job.adapter.empty() ? job.dir : job.adapter)
                                       : train_precision(s.precision, t.profile, r.shape))
                    .precision;
  if (t.device && r.device.kind != device::DeviceKind::cpu)
    r.device = plan::measured_profile(*t.device, r.precision, r.limit_bytes);
  return r;
}

int64_t largest_batch(const PlanJob& job, PlanRequest r) {
  r.fill = true;
  r.global_batch_tokens = 0;
  return texts_of(job, solve(r).token_budget);
}

std::vector<std::string> notes_on_limit(const train::TrainSettings& s) {
  const plan::MemoryLimit& limit = s.memory_limit;
  if (limit.leave_free_bytes == 0) return {};
  if (limit.bytes > 0 || limit.percent > 0)
    return {
        fmt::format("--leave-free {}: ignored, because --memory-limit {} is set", limit.leave_free_text, limit.text)};
  return {fmt::format("{} of the free memory are left to other processes (--leave-free)",
                      format_bytes(limit.leave_free_bytes))};
}

plan::Plan in_flags(plan::Plan p) {
  for (auto* lines : {&p.why, &p.notes})
    for (std::string& line : *lines) line = rendered(line);
  return p;
}

BatchAndRate training_batch(const PlanJob& job) {
  BatchAndRate b;
  const train::TrainSettings& s = job.settings;
  b.tokens = job.request.global_batch_tokens;
  b.texts = rows_of_step(s, static_cast<double>(job.request.typical_length));
  b.rate = scaled_learning_rate(s, b.texts);
  return b;
}

std::string text_of(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

nlohmann::ordered_json json_of(const PlanJob& job, const Plan& p) {
  nlohmann::ordered_json j = {{"schema_version", kPlanSchema}};
  j.update(nlohmann::ordered_json::parse(to_json(p)));
  j["model"] = job.dir.string();
  j["fits"] = true;
  if (job.pairs_per_text > 1) j["pairs_per_text"] = job.pairs_per_text;
  if (p.task == Task::train) {
    const BatchAndRate b = training_batch(job);
    j["global_batch"] = b.texts;
    j["global_batch_tokens"] = b.tokens;
    j["learning_rate"] = b.rate;
    j["lr_scaling"] = setting_text(job.settings, "lr_scaling");
  }
  return j;
}

int64_t texts_of(const PlanJob& job, int64_t tokens) {
  return std::max<int64_t>(1, tokens / (job.request.typical_length * job.pairs_per_text));
}

std::string device_line(const plan::DeviceProfile& d) {
  std::string text = fmt::format("{}, {}", d.name, format_bytes(d.total_bytes));
  if (d.kind == device::DeviceKind::cuda && !d.context_measured)
    text +=
        fmt::format(", sm_{}; {} of driver memory are estimated", d.compute_capability, format_bytes(d.context_bytes));
  else if (d.context_by_free_memory)
    text += fmt::format("; {} of driver memory were measured by the change in free memory (NVML reports none)",
                        format_bytes(d.context_bytes));
  return text;
}

}  // namespace brim::cli
