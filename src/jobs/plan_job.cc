// SPDX-License-Identifier: Apache-2.0
#include "jobs/plan_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "brim/brim.h"
#include "engine/engine_options.h"
#include "engine/gliner_plan.h"
#include "engine/precision.h"
#include "engine/zero_shot.h"
#include "hub/model_dir.h"
#include "hub/model_files.h"
#include "model/params.h"
#include "plan/card_measure.h"
#include "text/tokenizer.h"
#include "train/schedule.h"

namespace brim::jobs {

using plan::Plan;
using plan::PlanRequest;
using plan::Task;

namespace {

// If there are several models, labels are for the NLI models among them.
void plan_zero_shot(const PlanSpec& f, PlanJob& job) {
  if (!f.zero_shot) return;
  if (job.request.task == Task::train) {  // for the teachers
    if (job.settings.teachers.empty())
      fail(ErrorCode::usage, Remedy{"set `task=score`, or `teacher` to an NLI model"},
           "`labels`: not used in training without a teacher");
    return;
  }
  if (f.several && (job.gliner || !engine::find_nli_classes(job.config.id2label))) return;
  if (job.gliner) fail(ErrorCode::usage, "{}: `labels` requires an NLI model; name `entities`", job.dir.string());
  (void)engine::require_nli_classes(job.config.id2label, job.dir, "`labels`");
  job.request.output = model::Output::sequence_logits;
  job.pairs_per_text = static_cast<int64_t>(f.zero_shot->labels.size());
  job.notes.push_back(fmt::format("zero-shot with {}: the model runs once per text and label",
                                  format_count(job.pairs_per_text, "label")));
}

// The encoder computes hidden states; request_for() adds the head. If there are several models, entities are for the
// GLiNER models among them.
void plan_entities(const PlanSpec& f, PlanJob& job) {
  if (!hub::is_gliner(job.dir)) {
    if (f.entities && !f.several)
      fail(ErrorCode::usage, "{}: `entities` requires a GLiNER model (gliner_config.json)", job.dir.string());
    return;
  }
  if (job.request.task == Task::train)
    fail(ErrorCode::usage, Remedy{"set `task=score`"}, "{}: GLiNER models cannot be trained", job.dir.string());
  if (!f.adapter.empty()) fail(ErrorCode::usage, "{}: adapters are not supported for a GLiNER model", job.dir.string());
  job.gliner = hub::load_gliner_config(job.dir);
  if (f.entities) job.entity_labels = f.entities->labels.size();
  const size_t labels = job.entity_labels.value_or(engine::kUsualEntityLabels);
  job.notes.push_back(fmt::format("entities of {}{}", format_count(static_cast<int64_t>(labels), "label"),
                                  f.entities ? "" : " (set `entities` to plan for others)"));
}

// Reads the config and opens the weights; null if there are none.
std::unique_ptr<hub::WeightSource> open_weights(const PlanSpec& f, PlanJob& job) {
  if (!f.adapter.empty()) {
    if (f.several) fail(ErrorCode::usage, "`adapter={}`: supports one model", f.adapter);
    if (job.request.task == Task::train)
      fail(ErrorCode::usage, Remedy{"set `task=score`"}, "`adapter={}`: not used in training", f.adapter);
    job.adapter = find_model(f.adapter);
    hub::OpenModel adapted = hub::open_model({job.dir, job.adapter});
    job.config = std::move(adapted.config);
    return std::move(adapted.weights);
  }
  job.config = hub::load_hf_config(job.dir);
  try {
    return hub::WeightSource::open(job.dir);
  } catch (const Error& e) {  // a config is enough to plan
    job.notes.push_back(fmt::format("planned from config.json only ({})", e.what()));
    return nullptr;
  }
}

void read_shape(const hub::WeightSource* weights, PlanJob& job) {
  PlanRequest& r = job.request;
  r.shape = model::shape_of(job.config, head_kind(job.config, weights ? weights->names() : std::vector<std::string>()));
  if (weights == nullptr) return;
  check_params(*weights, r.shape, r.task == Task::score);
  if (r.task == Task::score) job.adapter_ranks = adapter_ranks(*weights, r.shape);
}

void set_output(PlanJob& job) {
  PlanRequest& r = job.request;
  if (job.gliner) {
    r.output = model::Output::hidden;
    return;
  }
  if (r.shape.sequence_classes + r.shape.token_classes == 0) {
    r.shape.sequence_classes = 2;
    job.has_head = false;
    job.notes.push_back("no classification head; assuming two classes");
  }
  r.output = r.shape.sequence_classes > 0 ? model::Output::sequence_scores : model::Output::token_scores;
}

int64_t max_length_of(const PlanJob& job) {
  const model::ModelShape& shape = job.request.shape;
  int64_t longest = shape.max_tokens();
  std::unique_ptr<text::Tokenizer> tokenizer;
  try {
    tokenizer = text::Tokenizer::load(hub::tokenizer_dir(job.dir));
  } catch (const Error&) {  // plans do not need a tokenizer
  }
  if (tokenizer) {
    // Markers of a bi-encoder's tokenizers are not read and may have no vectors.
    const bool bi_encoder = hub::is_labels_encoder(job.dir) || (job.gliner && !job.gliner->labels_encoder.empty());
    if (!bi_encoder) model::check_vocabulary(job.dir, shape, tokenizer->vocab_size());
    longest = std::min(longest, tokenizer->model_max_length().value_or(longest));
  }
  return job.settings.max_length > 0 ? std::min(longest, job.settings.max_length) : longest;
}

bool is_score_file(const std::string& teacher) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(teacher, ignored);
}

// A student without a model starts from its first teacher that is one, as in training.
std::string first_model(const std::vector<std::string>& teachers) {
  const auto first = std::find_if_not(teachers.begin(), teachers.end(), is_score_file);
  return first == teachers.end() ? "" : *first;
}

// Labels of a run for its NLI teachers.
std::optional<ZeroShot> teacher_labels(const PlanSpec& f, const train::TrainSettings& s) {
  if (f.zero_shot) return f.zero_shot;
  ZeroShot zero_shot{s.labels, s.label_template, s.several_labels()};
  if (!s.labels_file.empty()) zero_shot.labels = engine::read_label_lines(s.labels_file, "`labels_file`");
  if (zero_shot.labels.empty()) return std::nullopt;
  engine::check_zero_shot(zero_shot, {.labels = s.labels_file.empty() ? "`labels`" : "`labels_file`"});
  return zero_shot;
}

void open_teachers(const PlanSpec& f, PlanJob& job) {
  const train::TrainSettings& s = job.settings;
  job.request.soft_labels = !s.teachers.empty();
  PlanSpec spec;
  spec.typical_length = f.typical_length;
  spec.zero_shot = teacher_labels(f, s);
  spec.several = true;  // teachers that are not NLI models have classes of their own
  bool by_label = false;
  for (const std::string& given : s.teachers) {
    if (is_score_file(given)) {
      job.notes.push_back(fmt::format("teacher {}: a file of scores needs no pass", given));
      continue;
    }
    PlanJob teacher = open_job(spec, given, false);
    if (teacher.rules || teacher.gliner || !teacher.has_head || teacher.request.shape.sequence_classes == 0)
      fail(ErrorCode::bad_model, "{}: the teacher has no classification head", given);
    if (teacher.request.shape.regression)
      fail(ErrorCode::bad_model, "{}: the teacher predicts numbers, not classes", given);
    by_label = by_label || teacher.pairs_per_text > 1;
    teacher.settings.memory_limit = s.memory_limit;
    teacher.settings.limit_origin = s.limit_origin;
    job.teachers.push_back(std::move(teacher));
  }
  if (spec.zero_shot && (by_label || job.teachers.empty()))
    job.request.shape.sequence_classes = static_cast<int64_t>(spec.zero_shot->labels.size());
  else if (spec.zero_shot)
    (void)engine::require_nli_classes(job.teachers[0].config.id2label, job.teachers[0].dir, "`labels`");
}

}  // namespace

std::optional<PlanJob> labels_job(const PlanJob& texts) {
  if (!texts.gliner || texts.gliner->labels_encoder.empty()) return std::nullopt;
  PlanJob job = texts;
  job.served_as = texts.name() + " (labels)";
  job.gliner.reset();
  job.notes.clear();
  job.dir = hub::labels_encoder_dir(texts.dir);
  job.config = hub::load_hf_config(job.dir);
  read_shape(hub::WeightSource::open(job.dir).get(), job);
  job.adapter_ranks.reset();
  job.request.output = engine::embedding_output(job.dir, Pooling::mean);
  job.request.max_length = max_length_of(job);
  job.request.typical_length = std::min(texts.request.typical_length, job.request.max_length);
  return job;
}

PlanJob open_job(const PlanSpec& f, const std::string& model, bool first) {
  PlanJob job;
  train::TrainSettings& s = job.settings;
  if (!f.config.empty())
    for (const auto& note : apply_yaml(s, f.config))
      if (first) log_info("{}", note);
  for (const auto& [key, values] : f.settings) {
    if (key == "teacher") s.teachers.clear();  // replaces the file's, like the training command
    if (key == "lora_targets") s.lora_targets.clear();
    for (const std::string& value : values) apply_setting(s, key, value);
  }
  if (!model.empty()) s.model = model;
  if (f.task == Task::score && f.settings.count("teacher") > 0)
    fail(ErrorCode::usage, Remedy{"set `task=train`"}, "`teacher={}`: not used in scoring", s.teachers[0]);
  if (f.task == Task::train && s.model.empty()) s.model = first_model(s.teachers);
  if (f.settings.count("batch_size") > 0) s.gradient_accumulation_steps = 1;
  if (f.typical_length < 0) fail(ErrorCode::usage, "`typical_length={}`: must not be negative", f.typical_length);
  check_values(s);
  if (s.model.empty()) s.model = hub::default_model();

  PlanRequest& r = job.request;
  r.task = f.task;
  if (r.task == Task::train && !f.adapter.empty())
    fail(ErrorCode::usage, Remedy{"set `lora_r` to its rank"}, "`adapter={}`: requires `task=score`", f.adapter);
  if (hub::names_vader(s.model)) {
    if (r.task == Task::train)
      fail(ErrorCode::usage, Remedy{"choose another model"}, "`model={}`: VADER cannot be trained", s.model);
    if (!f.several && f.zero_shot)
      fail(ErrorCode::usage, Remedy{"choose an NLI model"}, "`labels`: {} has fixed labels", s.model);
    job.rules = true;
    return job;
  }
  job.dir = resolve_model(s.model, hub::model_search_path(hub::model_roots()));
  plan_entities(f, job);
  const std::unique_ptr<hub::WeightSource> weights = open_weights(f, job);
  read_shape(weights.get(), job);
  set_output(job);
  plan_zero_shot(f, job);
  r.max_length = max_length_of(job);
  r.typical_length =
      f.typical_length > 0 ? std::min(f.typical_length, r.max_length) : std::min<int64_t>(r.max_length, 128);
  r.fill = s.fill;
  r.optimizer = s.optim.value_or(model::Optimizer::adamw);
  r.keep_optimizer = s.optim.has_value();
  r.recompute = s.recompute;
  if (r.task == Task::train)
    r.shape = train::with_lora(train::with_freeze(r.shape, s.freeze), s,
                               weights ? train::open_adapter(s, *weights).get() : nullptr);
  if (r.task == Task::train) {
    r.global_batch_tokens = s.batch_tokens > 0 ? s.batch_tokens : s.global_batch() * r.typical_length;
    open_teachers(f, job);
  }
  return job;
}

std::string device_of(const PlanSpec& f, const PlanJob& job) {
  return f.device.empty() ? device_text(job.settings.device) : f.device;
}

PlanTarget open_target(const PlanSpec& f, const std::string& name) {
  PlanTarget t;
  if (f.card) {
    t.profile = plan::custom_card(f.card->bytes, f.card->tflops, f.card->gigabytes_per_second * 1e9, &t.notes);
  } else if (name == "auto" || name == "cpu" || name.starts_with("cuda")) {
    t.device = device::open_device(name, f.threads);
    t.profile = f.measure && t.device->kind() == device::DeviceKind::cpu ? plan::measure_cpu(*t.device)
                                                                         : plan::local_profile(*t.device);
    t.memory = t.device->memory();
    return t;
  } else {
    t.profile = plan::card_profile(name, &t.notes);
  }
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
  r.precision =
      (r.task == Task::score ? engine::choose_precision(s.precision, t.profile, job.config,
                                                        job.adapter.empty() ? job.dir : job.adapter, !r.base.empty())
                             : train_precision(s.precision, t.profile, r.shape))
          .precision;
  if (t.device && r.device.kind != device::DeviceKind::cpu)
    r.device = plan::measured_profile(*t.device, r.precision, r.limit_bytes);
  if (job.gliner) (void)engine::load_planned_head(job.dir, *job.gliner, job.entity_labels, r);
  return r;
}

std::vector<Plan> teacher_plans(const PlanJob& job, const PlanRequest& training, const PlanTarget& t) {
  std::vector<Plan> plans;
  for (PlanJob teacher : job.teachers) {
    teacher.settings.precision.precision = model::pass_precision(training.precision, t.profile.kind);
    try {
      plans.push_back(solve(request_for(teacher, t)));
    } catch (const Error& e) {
      if (e.code() != ErrorCode::does_not_fit) throw;
      throw Error(e.code(), fmt::format("{}: scoring the training texts: {}", teacher.dir.string(), e.problem()),
                  Remedy{e.remedy()});
    }
  }
  return plans;
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
        fmt::format("`leave_free={}`: ignored, because `memory_limit={}` is set", limit.leave_free_text, limit.text)};
  return {fmt::format("{} of the free memory are left to other processes (`leave_free`)",
                      format_bytes(limit.leave_free_bytes))};
}

BatchAndRate training_batch(const PlanJob& job) {
  BatchAndRate b;
  const train::TrainSettings& s = job.settings;
  b.tokens = job.request.global_batch_tokens;
  b.texts = rows_of_step(s, static_cast<double>(job.request.typical_length));
  b.rate = scaled_learning_rate(s, b.texts);
  return b;
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

std::optional<Plan> neighbouring(PlanRequest r, int64_t change) {
  r.limit_bytes += change;
  if (r.limit_bytes <= 0 || r.limit_bytes > r.device.total_bytes) return std::nullopt;
  try {
    return solve(r);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::does_not_fit) throw;
    return std::nullopt;
  }
}

nlohmann::ordered_json unfit_json(const std::string& device, const PlanRequest& r) {
  return {{"schema_version", kPlanSchema}, {"task", task_name(r.task)},
          {"device", {{"name", device}}},  {"fits", false},
          {"limit_bytes", r.limit_bytes},  {"smallest_limit_bytes", least_limit(r)}};
}

nlohmann::ordered_json described_plan(const PlanJob& job, const PlanRequest& r, Plan p) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  p.notes.insert(p.notes.begin(), job.notes.begin(), job.notes.end());
  auto j = json_of(job, p);
  auto& neighbours = j["neighbours"] = nlohmann::ordered_json::array();
  for (const int64_t change : {-kGiB, kGiB})
    if (const auto n = neighbouring(r, change))
      neighbours.push_back({{"limit_bytes", n->limit_bytes},
                            {"peak_bytes", n->peak_bytes},
                            {"token_budget", n->token_budget},
                            {"tokens_per_second", n->tokens_per_second}});
  return j;
}

}  // namespace brim::jobs
