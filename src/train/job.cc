// SPDX-License-Identifier: Apache-2.0
#include "train/job.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <set>

#include "base/env.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "base/units.h"
#include "device/cuda_info.h"
#include "ops/loss.h"
#include "plan/card_measure.h"
#include "plan/resolve.h"
#include "rows/conll.h"
#include "rows/labels.h"
#include "train/content_hash.h"
#include "train/teachers.h"
#include "train/token_cache.h"

namespace brim::train {

using hub::HeadKind;
using plan::Plan;
using plan::PlanRequest;

namespace {

TrainTask task_of(const TrainSettings& s) {
  if (s.task == TaskChoice::ner) return TrainTask::token;
  if (s.task == TaskChoice::multi) {
    if (s.token_train_file.empty())
      fail(ErrorCode::usage, Remedy{"set `token_train=FILE`"}, "`task=multi` also requires tagged words (CoNLL)");
    return TrainTask::multi;
  }
  if (s.task == TaskChoice::classification || s.numbers()) return TrainTask::sequence;
  return rows::is_tagged_file(s.train_files[0], s.format) ? TrainTask::token : TrainTask::sequence;
}

// Rejects missing files before the others are read.
void check_files(const TrainSettings& s) {
  std::vector<std::string> files = s.train_files;
  files.insert(files.end(), s.validation_files.begin(), s.validation_files.end());
  for (const std::string& file : {s.token_train_file, s.token_validation_file})
    if (!file.empty()) files.push_back(file);
  for (const std::string& file : files)
    if (::access(file.c_str(), R_OK) != 0) fail(ErrorCode::usage, "{}: cannot open: {}", file, std::strerror(errno));
}

// Rejects settings that do not fit the task, before the data is read.
void check_task(const TrainSettings& s, TrainTask task) {
  const std::string metric = best_metric(s, task);
  const bool of_numbers = metric == "mse" || metric == "pearson" || metric == "spearman";
  if (metric != "loss" && of_numbers != s.numbers())
    fail(ErrorCode::usage, "`metric_for_best_model={}`: {}", metric,
         s.numbers() ? "use mse, pearson, spearman or loss for regression" : "only supported for regression");
  if ((metric == "entity_f1" || metric == "mean_f1") && task == TrainTask::sequence)
    fail(ErrorCode::usage,
         "`metric_for_best_model={}`: use accuracy, macro_f1 (f1), macro_recall or loss for classification", metric);
  if (metric != "entity_f1" && metric != "loss" && task == TrainTask::token)
    fail(ErrorCode::usage, "`metric_for_best_model={}`: use entity_f1 (f1) or loss for token classification", metric);
  if (task == TrainTask::token && (s.delimiter != 0 || s.no_quotes || s.skip_bad_rows))
    fail(ErrorCode::usage, "`delimiter`, `no_quotes` and `on_error` are not supported for token classification");
  if (task == TrainTask::token && s.class_weights != "none")
    fail(ErrorCode::usage, "`class_weights`: not supported for token classification");
  if (task == TrainTask::token && !s.teachers.empty())
    fail(ErrorCode::usage, "`teacher`: not supported for token classification");
}

bool contains_all(const std::vector<std::string>& outer, const std::vector<std::string>& inner) {
  return std::all_of(inner.begin(), inner.end(),
                     [&](const std::string& x) { return std::find(outer.begin(), outer.end(), x) != outer.end(); });
}

// Maps the data's labels to the model's if they differ only in case or are indices, as in Hugging Face's data sets;
// empty if they do not match.
std::vector<std::string> loosely_matched(const std::vector<std::string>& model, const std::vector<std::string>& data) {
  const auto is_number = [](const std::string& name) {
    return name.find_first_not_of("0123456789") == std::string::npos;
  };
  if (std::any_of(model.begin(), model.end(), is_number)) return {};  // the model's names are already numbers
  std::vector<std::string> pairs;
  std::set<int32_t> taken;
  for (const auto& name : data) {
    const auto found = rows::find_label(model, name);
    if (!found || !taken.insert(*found).second) return {};
    pairs.push_back(fmt::format("{} = {}", name, model[static_cast<size_t>(*found)]));
  }
  return pairs;
}

// Label names of the head: the model's if they include all of the data's, else the data's with a new head.
std::vector<std::string> settle_labels(const TrainJob& job, const std::vector<std::string>& data, bool model_has_head,
                                       const char* what) {
  // The tags of --task multi come from their own file.
  const std::string& file = job.task == TrainTask::multi && what == std::string_view("tag")
                                ? job.settings.token_train_file
                                : job.settings.train_files[0];
  // A new head has the teachers' classes in their order, including classes without rows.
  const bool taught = !job.teachers.empty() && what == std::string_view("label");
  std::vector<std::string> teacher_labels;
  if (taught) teacher_labels = labels_of_teachers(job.settings, job.teachers);
  if (taught && teacher_labels.empty() && data.empty()) {  // only files of scores
    if (model_has_head) return job.config.id2label;
    fail(ErrorCode::usage, Remedy{"set `labels`"}, "{}: no row has a label, so the labels are unknown", file);
  }
  if (teacher_labels.empty() || !contains_all(teacher_labels, data)) {
    teacher_labels.clear();
    if (data.empty()) fail(ErrorCode::bad_data, "{}: no rows", file);
    if (data.size() < 2)
      fail(ErrorCode::bad_data, "{}: only one {} ('{}'); at least two are required", file, what, data[0]);
  }
  if (!teacher_labels.empty() && (!model_has_head || job.settings.ignore_mismatched_head)) {
    const bool same = model_has_head && teacher_labels.size() == job.config.id2label.size() &&
                      contains_all(teacher_labels, job.config.id2label);
    return same ? job.config.id2label : teacher_labels;
  }
  if (!model_has_head) return data;
  if (contains_all(job.config.id2label, data)) return job.config.id2label;
  if (job.settings.ignore_mismatched_head) return data;
  if (what == std::string_view("label") && !loosely_matched(job.config.id2label, data).empty())
    return job.config.id2label;
  fail(ErrorCode::bad_data,
       Remedy{fmt::format("set `ignore_mismatched_head=true` to start a new head{}",
                          data.size() == job.config.id2label.size() ? ", or use the model's names in the file" : "")},
       "{}: the {}s of the data ({}) do not match the model's ({})", file, what, some_of(data),
       some_of(job.config.id2label));
}

std::vector<float> parse_class_weights(const TrainJob& job) {
  const std::string& text = job.settings.class_weights;
  const auto K = static_cast<size_t>(job.shape.sequence_classes);
  if (text == "none" || K == 0) return {};
  std::vector<float> weights;
  if (text == "balanced") {
    std::vector<double> count(K, 0);
    double rows = 0;
    if (job.shape.multi_label) {
      for (size_t i = 0; i < job.train_set.multi_label.size(); ++i) {
        const float mark = std::max(0.0f, job.train_set.multi_label[i]);  // -1: unlabelled row
        count[i % K] += mark;
        rows += mark;
      }
    } else {
      for (const int32_t label : job.train_set.label)
        if (label >= 0) {
          ++count[static_cast<size_t>(label)];
          ++rows;
        }
    }
    for (const double c : count)
      weights.push_back(c > 0 ? static_cast<float>(rows / (static_cast<double>(K) * c)) : 0.0f);
    return weights;
  }
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    char* stop = nullptr;
    const std::string part = text.substr(at, end - at);
    weights.push_back(std::strtof(part.c_str(), &stop));
    if (stop != part.c_str() + part.size() || part.empty())
      fail(ErrorCode::usage, "class_weights '{}': use none, balanced or numbers separated by commas", text);
    at = end + 1;
  }
  if (weights.size() != K)
    fail(ErrorCode::usage, "class_weights has {} numbers, the model has {} classes: {}", weights.size(), K,
         fmt::join(job.labels.sequence, ", "));
  for (const float w : weights)
    if (!(w >= 0) || std::isinf(w)) fail(ErrorCode::usage, "class_weights '{}': weights must be numbers from 0", text);
  if (std::none_of(weights.begin(), weights.end(), [](float w) { return w > 0; }))
    fail(ErrorCode::usage, "class_weights '{}': all weights are zero", text);
  return weights;
}

// Selects a student's layers at even intervals from the full model.
void keep_layers(TrainJob& job, const model::ModelShape& whole, std::vector<float>& master) {
  const model::SlabLayout from = slab_layout(whole), to = slab_layout(job.shape);
  std::vector<float> out(static_cast<size_t>(to.elements()), 0.0f);
  auto copy = [&](int64_t source_layer, int64_t target_layer) {
    const auto sources = params_of_layer(from.params, source_layer), targets = params_of_layer(to.params, target_layer);
    for (size_t i = 0; i < sources.size(); ++i)
      std::copy_n(master.begin() + from.offset[sources[i]], from.params[sources[i]].elements(),
                  out.begin() + to.offset[targets[i]]);
  };
  copy(-1, -1);  // embeddings and heads
  for (int64_t l = 0; l < job.shape.layers; ++l)
    copy(job.shape.layers == 1 ? whole.layers - 1
                               : (l * (whole.layers - 1) + (job.shape.layers - 1) / 2) / (job.shape.layers - 1),
         l);
  master = std::move(out);
}

std::string hash_of_data(const TrainJob& job) {
  ContentHash hash;
  for (const TrainSet* set : {&job.train_set, &job.validation_set}) {
    hash.add_all(set->ids, set->mapped.get());
    hash.add_all(set->begin, set->mapped.get());
    hash.add_all(set->label, set->mapped.get());
    hash.add_all(set->multi_label, set->mapped.get());
    hash.add_all(set->token_label, set->mapped.get());
  }
  return hash.hex();
}

}  // namespace

std::string best_metric(const TrainSettings& s, TrainTask task) {
  const std::string& asked = s.metric_for_best_model;
  const std::string name = asked.starts_with("eval_") ? asked.substr(5) : asked;
  if (!name.empty() && name != "f1") return name;
  if (s.numbers()) return "pearson";
  return task == TrainTask::sequence ? "macro_f1" : task == TrainTask::token ? "entity_f1" : "mean_f1";
}

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
  const auto say = [&](const std::string& line) {
    if (progress.say) progress.say(line);
  };
  check_settings(settings);
  check_files(settings);
  TrainJob job;
  job.settings = settings;
  const TrainSettings& s = job.settings;
  job.model_dir = s.model;
  job.device = open_device(s.device, s.threads);
  load_all_kernels(*job.device);
  if (job.device->kind() == device::DeviceKind::cpu) job.threads = s.threads > 0 ? s.threads : hardware_threads();
  job.config = hub::load_hf_config(job.model_dir);
  const auto source = hub::WeightSource::open(job.model_dir);
  job.head = head_kind(job.config, source->names());
  const HeadKind head = job.head;
  if (s.task == TaskChoice::automatic && !s.several_labels() && !s.ignore_mismatched_head &&
      head == HeadKind::sequence && job.config.labels_given && job.config.num_labels == 1 &&
      !rows::is_tagged_file(s.train_files[0], s.format)) {
    job.settings.task = TaskChoice::regression;  // same as transformers
    check_settings(s);
  }
  job.task = task_of(s);
  check_task(s, job.task);
  job.teachers = read_teachers(s);
  const LabelSets data =
      labels_of(s, job.task, head == HeadKind::token ? job.config.id2label : std::vector<std::string>());

  model::ModelShape shape = model::shape_of(job.config, HeadKind::encoder);
  if (s.numbers()) {
    const bool has_one = head == HeadKind::sequence && job.config.num_labels == 1;
    if (head != HeadKind::encoder && !has_one && !s.ignore_mismatched_head)
      fail(ErrorCode::bad_data, Remedy{"set `ignore_mismatched_head=true` to start a new head"},
           "{}: `task=regression` requires a head with one output; the model has {} labels ({})",
           job.model_dir.string(), job.config.num_labels, some_of(job.config.id2label));
    job.labels.sequence = has_one ? job.config.id2label : std::vector<std::string>{"LABEL_0"};
    shape.sequence_classes = 1;
    shape.regression = true;
    say("regression: one value per text, mean squared error");
  } else if (job.task != TrainTask::token) {
    job.labels.sequence = settle_labels(job, data.sequence, head == HeadKind::sequence, "label");
    job.labels.loosely = head == HeadKind::sequence && job.labels.sequence == job.config.id2label &&
                         !contains_all(job.labels.sequence, data.sequence);
    if (job.labels.loosely)
      say(fmt::format("labels mapped to the model's: {}",
                      some_of(loosely_matched(job.labels.sequence, data.sequence))));
    shape.sequence_classes = static_cast<int64_t>(job.labels.sequence.size());
    shape.multi_label = s.several_labels();
  }
  if (job.task != TrainTask::sequence) {
    job.labels.token = settle_labels(job, data.token, head == HeadKind::token, "tag");
    shape.token_classes = static_cast<int64_t>(job.labels.token.size());
  }
  if (s.dropout >= 0) {
    shape.hidden_dropout = shape.attention_dropout = shape.head_dropout = static_cast<float>(s.dropout);
    if (shape.gated) shape.feed_forward_dropout = static_cast<float>(s.dropout);
  }
  shape = with_freeze(shape, s.freeze);
  const model::ModelShape whole = shape;
  if (s.student_layers > 0) {
    if (s.student_layers > shape.layers)
      fail(ErrorCode::usage, "student_layers is {}, the model has {} layers", s.student_layers, shape.layers);
    if (s.student_layers < shape.layers && shape.local_layers != 0)
      fail(ErrorCode::usage, "{}: student_layers: not supported for models with local attention layers",
           job.model_dir.string());
    shape.layers = s.student_layers;
    shape = with_freeze(shape, s.freeze);
  }
  job.shape = shape;

  job.tokenizer = text::Tokenizer::load(job.model_dir);
  if (job.tokenizer->vocab_size() > shape.vocab)
    fail(ErrorCode::bad_model, "{}: the tokenizer's largest id is {}, the embedding table has {} rows",
         job.model_dir.string(), job.tokenizer->vocab_size() - 1, shape.vocab);
  job.max_length = std::min(shape.max_tokens(), job.tokenizer->model_max_length().value_or(shape.max_tokens()));
  if (s.max_length > 0) job.max_length = std::min(job.max_length, s.max_length);
  if (const auto special = static_cast<int64_t>(job.tokenizer->prefix().size() + job.tokenizer->suffix().size());
      job.max_length <= special)
    fail(ErrorCode::usage, "max_length {}: must be above the model's {} special tokens", job.max_length, special);
  if (!s.pair_column.empty()) {
    if (job.task != TrainTask::sequence)
      fail(ErrorCode::usage, "`pair_column={}`: not supported for token classification", s.pair_column);
    if (auto problem = text::why_no_pairs(*job.tokenizer, job.model_dir, shape.types, job.max_length)) throw *problem;
  }
  if (!job.teachers.empty()) match_teachers(job);
  {
    ThreadPool pool(job.device->kind() == device::DeviceKind::cpu ? job.threads : hardware_threads());
    const auto cached = cache_dir() / "tokens";
    TokenCache cache(cached, cache_limit(cached));
    const auto load = [&](const std::vector<std::string>& files, const std::string& token_file) {
      return cache.get(token_cache_key(files, token_file, s, job.task, job.labels, job.model_dir, job.max_length),
                       [&](TrainRows& rows) {
                         collect_rows(rows, files, token_file, s, job.task, job.labels, *job.tokenizer, job.max_length,
                                      pool);
                       });
    };
    job.train_set = load(s.train_files, s.token_train_file);
    job.tokens_cached = cache.hit();
    if (job.train_set.rows() == 0) fail(ErrorCode::bad_data, "{}: no rows", s.train_files[0]);
    job.unlabelled = job.train_set.unlabelled();
    if (job.unlabelled > 0 && s.hard_weight == 1)
      fail(ErrorCode::usage, Remedy{"set `hard_weight` below 1"},
           "`hard_weight=1`: {} without a label would have no effect", format_count(job.unlabelled, "row"));
    if (!s.validation_files.empty()) {
      job.validation_set = load(s.validation_files, s.token_validation_file);
      if (job.validation_set.rows() == 0) fail(ErrorCode::bad_data, "{}: no rows", s.validation_files[0]);
    } else {
      job.validation_set = TrainSet(TrainRows{});
    }
  }
  job.data_hash = hash_of_data(job);
  job.class_weights = parse_class_weights(job);
  const plan::PrecisionChoice choice = train_precision(s.precision, plan::local_profile(*job.device), job.shape);
  job.precision = choice.precision;
  job.precision_reason = choice.reason;
  plan_train_job(job, 0, std::nullopt);  // before the teachers run: training may not fit
  if (!job.teachers.empty()) job.soft = make_soft_labels(job, progress);
  const std::vector<std::string>& head_labels = job.task == TrainTask::token ? job.labels.token : job.labels.sequence;
  job.replaces_head = s.ignore_mismatched_head && head != HeadKind::encoder &&
                      (s.numbers() ? job.config.num_labels != 1 : head_labels != job.config.id2label);
  job.new_tensors = load_master(*source, whole, job.config.initializer_range, static_cast<uint64_t>(s.seed), job.master,
                                job.replaces_head);
  if (shape.layers != whole.layers) keep_layers(job, whole, job.master);

  for (const auto& note : job.plan.notes) say(note);
  if (const std::string note = recompute_note(s, job.plan); !note.empty()) say(note);
  if (const std::string note = note_on_labels(job.labels.sequence); !note.empty() && !s.numbers()) say(note);
  if (job.task != TrainTask::token && !s.numbers()) {
    const std::vector<std::string>& names = job.labels.sequence;
    for (const std::string& note : notes_on_classes(names, rows_by_class(job.train_set, names.size()))) say(note);
  }
  for (const TrainSet* set : {&job.train_set, &job.validation_set})
    if (set->skipped > 0)
      say(fmt::format("{} skipped{}",
                      format_count(set->skipped, set == &job.train_set ? "training row" : "validation row"),
                      set->first_skipped.empty() ? "" : ", first: " + set->first_skipped));
  if (job.train_set.truncated > 0)
    say(fmt::format("{} truncated to {} tokens", format_count(job.train_set.truncated, "training text"),
                    job.max_length));
  return job;
}

}  // namespace brim::train
