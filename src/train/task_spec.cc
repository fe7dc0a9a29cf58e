// SPDX-License-Identifier: Apache-2.0
#include "train/task_spec.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/thread_pool.h"
#include "base/units.h"
#include "device/cuda_info.h"
#include "hub/weights.h"
#include "rows/conll.h"
#include "rows/labels.h"

namespace brim::train {

using hub::HeadKind;

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
std::vector<std::string> settle_labels(const TaskSpec& spec, const std::vector<std::string>& data, bool model_has_head,
                                       const char* what) {
  // The tags of --task multi come from their own file.
  const std::string& file = spec.task == TrainTask::multi && what == std::string_view("tag")
                                ? spec.settings.token_train_file
                                : spec.settings.train_files[0];
  // A new head has the teachers' classes in their order, including classes without rows.
  const bool taught = !spec.teachers.empty() && what == std::string_view("label");
  std::vector<std::string> teacher_labels;
  if (taught) teacher_labels = labels_of_teachers(spec.settings, spec.teachers);
  if (taught && teacher_labels.empty() && data.empty()) {  // only files of scores
    if (model_has_head) return spec.config.id2label;
    fail(ErrorCode::usage, Remedy{"set `labels`"}, "{}: no row has a label, so the labels are unknown", file);
  }
  if (teacher_labels.empty() || !contains_all(teacher_labels, data)) {
    teacher_labels.clear();
    if (data.empty()) fail(ErrorCode::bad_data, "{}: no rows", file);
    if (data.size() < 2)
      fail(ErrorCode::bad_data, "{}: only one {} ('{}'); at least two are required", file, what, data[0]);
  }
  if (!teacher_labels.empty() && (!model_has_head || spec.settings.ignore_mismatched_head)) {
    const bool same = model_has_head && teacher_labels.size() == spec.config.id2label.size() &&
                      contains_all(teacher_labels, spec.config.id2label);
    return same ? spec.config.id2label : teacher_labels;
  }
  if (!model_has_head) return data;
  if (contains_all(spec.config.id2label, data)) return spec.config.id2label;
  if (spec.settings.ignore_mismatched_head) return data;
  if (what == std::string_view("label") && !loosely_matched(spec.config.id2label, data).empty())
    return spec.config.id2label;
  fail(ErrorCode::bad_data,
       Remedy{fmt::format("set `ignore_mismatched_head=true` to start a new head{}",
                          data.size() == spec.config.id2label.size() ? ", or use the model's names in the file" : "")},
       "{}: the {}s of the data ({}) do not match the model's ({})", file, what, some_of(data),
       some_of(spec.config.id2label));
}

// Labels and head of the adapted model: config.json next to the adapter if present.
void describe_adapted(TaskSpec& spec) {
  const std::filesystem::path dir = spec.settings.adapter;
  std::error_code ignored;
  if (std::filesystem::exists(dir / "config.json", ignored)) {
    spec.config = spec.adapter->config_with_head(spec.config);
    return;
  }
  spec.unnamed_head = !spec.adapter->added().empty();
  if (spec.unnamed_head && !spec.settings.ignore_mismatched_head)
    fail(ErrorCode::bad_model,
         Remedy{"put the config.json with its labels next to it, or set `ignore_mismatched_head=true` for a new head"},
         "{}: the adapter has its own head, but the names of its labels are unknown", dir.string());
}

// Opens device and model directory and settles the task. A model with one output regresses, as in transformers.
void open_model(TaskSpec& spec) {
  const TrainSettings& s = spec.settings;
  spec.model_dir = s.model;
  spec.device = open_device(s.device, s.threads);
  load_all_kernels(*spec.device);
  if (spec.device->kind() == device::DeviceKind::cpu) spec.threads = s.threads > 0 ? s.threads : hardware_threads();
  spec.config = hub::load_hf_config(spec.model_dir);
  const auto source = hub::WeightSource::open(spec.model_dir);
  if (s.lora()) hub::require_float_weights(*source);
  spec.adapter = open_adapter(spec.settings, *source);
  if (spec.adapter) describe_adapted(spec);
  spec.head = head_kind(spec.config, source->names());
  if (s.task == TaskChoice::automatic && !s.several_labels() && !s.ignore_mismatched_head &&
      spec.head == HeadKind::sequence && spec.config.labels_given && spec.config.num_labels == 1 &&
      !rows::is_tagged_file(s.train_files[0], s.format)) {
    spec.settings.task = TaskChoice::regression;
    check_settings(s);
  }
  spec.task = task_of(s);
  check_task(s, spec.task);
}

// A head with one output, for regression.
void settle_number(TaskSpec& spec) {
  const bool has_one = spec.head == HeadKind::sequence && spec.config.num_labels == 1;
  if (spec.head != HeadKind::encoder && !has_one && !spec.settings.ignore_mismatched_head)
    fail(ErrorCode::bad_data, Remedy{"set `ignore_mismatched_head=true` to start a new head"},
         "{}: `task=regression` requires a head with one output; the model has {} labels ({})", spec.model_dir.string(),
         spec.config.num_labels, some_of(spec.config.id2label));
  spec.labels.sequence = has_one ? spec.config.id2label : std::vector<std::string>{"LABEL_0"};
  spec.shape.sequence_classes = 1;
  spec.shape.regression = true;
}

// A head of the other task is not replaced without consent; its tensors may have the names of the new one's.
void refuse_other_head(const TaskSpec& spec) {
  const bool tagger = spec.head == HeadKind::token;
  const bool fits =
      spec.head == HeadKind::encoder || spec.task == TrainTask::multi || tagger == (spec.task == TrainTask::token);
  if (fits || spec.settings.ignore_mismatched_head) return;
  fail(ErrorCode::bad_data, Remedy{"set `ignore_mismatched_head=true` to start a new head"},
       "{}: the data has {}, but the model {} has a {} ({})", spec.settings.train_files[0], tagger ? "labels" : "tags",
       spec.model_dir.string(), tagger ? "tagger" : "classifier", some_of(spec.config.id2label));
}

// Labels of the heads and their sizes in the shape.
void settle_heads(TaskSpec& spec, const Say& say) {
  const TrainSettings& s = spec.settings;
  const bool tagger = spec.head == HeadKind::token;
  const LabelSets data = labels_of(s, spec.task, tagger ? spec.config.id2label : std::vector<std::string>());
  if (s.numbers()) {
    settle_number(spec);
    say("regression: one value per text, mean squared error");
  } else if (spec.task != TrainTask::token) {
    LabelSets& labels = spec.labels;
    labels.sequence = settle_labels(spec, data.sequence, spec.head == HeadKind::sequence, "label");
    labels.loosely = spec.head == HeadKind::sequence && labels.sequence == spec.config.id2label &&
                     !contains_all(labels.sequence, data.sequence);
    if (labels.loosely)
      say(fmt::format("labels mapped to the model's: {}", some_of(loosely_matched(labels.sequence, data.sequence))));
    spec.shape.sequence_classes = static_cast<int64_t>(labels.sequence.size());
    spec.shape.multi_label = s.several_labels();
  }
  if (spec.task != TrainTask::sequence) {
    spec.labels.token = settle_labels(spec, data.token, tagger, "tag");
    spec.shape.token_classes = static_cast<int64_t>(spec.labels.token.size());
  }
  refuse_other_head(spec);
}

// Dropout, frozen parameters and a student's layers.
void settle_shape(TaskSpec& spec) {
  const TrainSettings& s = spec.settings;
  model::ModelShape& shape = spec.shape;
  if (s.dropout >= 0) {
    shape.hidden_dropout = shape.attention_dropout = shape.head_dropout = static_cast<float>(s.dropout);
    if (shape.gated) shape.feed_forward_dropout = static_cast<float>(s.dropout);
  }
  shape = with_lora(with_freeze(shape, s.freeze), s, spec.adapter.get());
  spec.whole = shape;
  if (s.student_layers == 0) return;
  if (s.student_layers > shape.layers)
    fail(ErrorCode::usage, "student_layers is {}, the model has {} layers", s.student_layers, shape.layers);
  if (s.student_layers < shape.layers && shape.local_layers != 0)
    fail(ErrorCode::usage, "{}: student_layers: not supported for models with local attention layers",
         spec.model_dir.string());
  shape.layers = s.student_layers;
  shape = with_freeze(shape, s.freeze);
}

void open_tokenizer(TaskSpec& spec) {
  const TrainSettings& s = spec.settings;
  spec.tokenizer = text::Tokenizer::load(spec.model_dir);
  const text::Tokenizer& tokenizer = *spec.tokenizer;
  if (tokenizer.vocab_size() > spec.shape.vocab)
    fail(ErrorCode::bad_model, "{}: the tokenizer's largest id is {}, the embedding table has {} rows",
         spec.model_dir.string(), tokenizer.vocab_size() - 1, spec.shape.vocab);
  const int64_t most = spec.shape.max_tokens();
  spec.max_length = std::min(most, tokenizer.model_max_length().value_or(most));
  if (s.max_length > 0) spec.max_length = std::min(spec.max_length, s.max_length);
  const auto special = static_cast<int64_t>(tokenizer.prefix().size() + tokenizer.suffix().size());
  if (spec.max_length <= special)
    fail(ErrorCode::usage, "max_length {}: must be above the model's {} special tokens", spec.max_length, special);
  if (s.pair_column.empty()) return;
  if (spec.task != TrainTask::sequence)
    fail(ErrorCode::usage, "`pair_column={}`: not supported for token classification", s.pair_column);
  if (auto problem = text::why_no_pairs(tokenizer, spec.model_dir, spec.shape.types, spec.max_length)) throw *problem;
}

}  // namespace

std::string best_metric(const TrainSettings& s, TrainTask task) {
  const std::string& asked = s.metric_for_best_model;
  const std::string name = asked.starts_with("eval_") ? asked.substr(5) : asked;
  if (!name.empty() && name != "f1") return name;
  if (s.numbers()) return "pearson";
  return task == TrainTask::sequence ? "macro_f1" : task == TrainTask::token ? "entity_f1" : "mean_f1";
}

TaskSpec read_task(const TrainSettings& settings, const Say& say) {
  check_settings(settings);
  check_files(settings);
  TaskSpec spec;
  spec.settings = settings;
  open_model(spec);
  spec.teachers = read_teachers(spec.settings);
  spec.shape = model::shape_of(spec.config, HeadKind::encoder);
  settle_heads(spec, say);
  settle_shape(spec);
  open_tokenizer(spec);
  if (!spec.teachers.empty()) match_teachers(spec);
  return spec;
}

}  // namespace brim::train
