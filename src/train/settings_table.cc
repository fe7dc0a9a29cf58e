// SPDX-License-Identifier: Apache-2.0
// Table of all training settings. Uses Hugging Face's names, help texts and defaults if it has them. Does not check
// combinations of settings (see settings.cc).
#include "base/units.h"
#include "engine/zero_shot.h"
#include "rows/labels.h"
#include "rows/row_reader.h"
#include "train/settings.h"

namespace brim::train {

using model::Recompute;

namespace {

using S = TrainSettings;
using namespace setting;  // NOLINT: value kinds
using setting::text;      // not the namespace of the same name

constexpr Keep kSame = Keep::same, kReport = Keep::report;

SettingValue<S> label_columns() {
  SettingValue<S> value;
  value.set = [](S& s, std::string_view v) {
    for (auto& name : rows::split_names(v, ',')) s.label_columns.push_back(std::move(name));
  };
  value.is_list = true;
  return value;
}

// Empty names are kept: they are errors.
SettingValue<S> class_names() {
  SettingValue<S> value;
  value.set = [](S& s, std::string_view v) {
    for (auto& name : engine::split_labels(v, ',')) s.labels.push_back(std::move(name));
  };
  value.is_list = true;
  return value;
}

SettingValue<S> metric() {
  SettingValue<S> value = text(&S::metric_for_best_model);
  value.choices = {"accuracy", "macro_f1", "macro_recall", "loss",    "entity_f1",
                   "mean_f1",  "f1",       "mse",          "pearson", "spearman"};
  value.fault = [choices = value.choices](const S& s) {
    std::string_view name = s.metric_for_best_model;
    if (name.starts_with("eval_")) name.remove_prefix(5);
    return name.empty() || std::find(choices.begin(), choices.end(), name) != choices.end() ? std::string()
                                                                                            : use_one_of(choices);
  };
  return value;
}

// Numbers that are only recorded if given.
SettingValue<S> optional_number(std::optional<double> S::*m, const char* (*bound)(double)) {
  SettingValue<S> value;
  value.type = "FLOAT";
  value.set = [m](S& s, std::string_view v) { s.*m = read_number(v); };
  value.get = [m](const S& s) { return s.*m ? fmt::format("{}", *(s.*m)) : std::string(); };
  value.fault = [m, bound](const S& s) {
    const char* what = s.*m ? bound(*(s.*m)) : nullptr;
    return std::string(what == nullptr ? "" : what);
  };
  return value;
}

SettingValue<S> lora_rank() {
  SettingValue<S> value = number(&S::lora_r);
  value.set = [](S& s, std::string_view v) {
    s.lora_r = read_whole_number(v);
    if (s.lora_r < 1) throw BadValue{"must be above zero"};
  };
  value.get = [](const S& s) { return s.lora_r > 0 ? std::to_string(s.lora_r) : ""; };
  return value;
}

// A regular expression is one value; names may be separated by commas.
SettingValue<S> lora_targets() {
  SettingValue<S> value;
  value.set = [](S& s, std::string_view v) {
    if (is_regular_expression(v)) {
      s.lora_targets.emplace_back(v);
      return;
    }
    for (std::string& name : rows::split_names(v, ',')) {
      if (name.empty()) throw BadValue{"empty name"};
      s.lora_targets.push_back(std::move(name));
    }
  };
  value.get = [](const S& s) { return fmt::format("{}", fmt::join(s.lora_targets, ",")); };
  value.is_list = true;
  return value;
}

SettingValue<S> lora_layers() {
  SettingValue<S> value;
  value.set = [](S& s, std::string_view v) {
    for (const std::string& layer : rows::split_names(v, ',')) s.lora_layers.push_back(read_whole_number(layer));
  };
  value.get = [](const S& s) { return fmt::format("{}", fmt::join(s.lora_layers, ",")); };
  value.is_list = true;
  return value;
}

// A key of PEFT's that only has these values here; other values are errors.
SettingValue<S> only(std::vector<std::string> values, const char* why) {
  SettingValue<S> value;
  value.set = [values, why](S&, std::string_view v) {
    for (const std::string& accepted : values)
      if (same_word(v, accepted)) return;
    throw BadValue{why};
  };
  value.is_list = true;
  return value;
}

SettingValue<S> checkpoint() {
  SettingValue<S> value;
  value.set = [](S& s, std::string_view v) {
    for (const char* newest : {"last", "latest", "auto"})
      if (v == newest) v = "true";
    for (const char* none : {"", "none", "None", "null"})
      if (v == none) v = "false";
    const auto truth = truth_of(v);
    s.resume_from_checkpoint = !truth ? std::string(v) : *truth ? "last" : "";
  };
  value.is_switch = true;
  return value;
}

SettingValue<S> gradient_checkpointing() {
  SettingValue<S> value;
  value.is_switch = true;
  value.set = [](S& s, std::string_view v) {
    const bool on = read_truth(v);
    if (on)
      s.recompute = Recompute::full;
    else if (s.gradient_checkpointing == true)
      s.recompute.reset();
    s.gradient_checkpointing = on;
  };
  return value;
}

// Files, columns and tasks.
std::vector<Setting<S>> data_rows() {
  return {
      {"model", "model directory or name to start from", text(&S::model), {}, {"model_name_or_path"}},
      {"train",
       "training rows (csv, tsv, jsonl) or tagged words (CoNLL, jsonl), with `teacher` also unlabelled texts (txt); "
       "repeatable",
       texts(&S::train_files),
       {},
       {"train_file"}},
      {"val", "validation rows; repeatable", texts(&S::validation_files), {}, {"validation_file"}},
      {"token_train", "`task=multi`: tagged words (CoNLL, jsonl) for the token head", text(&S::token_train_file)},
      {"token_val", "`task=multi`: tagged words for validation", text(&S::token_validation_file)},
      {"output", "directory for the trained model and its checkpoints", text(&S::output_dir), {}, {"output_dir"}},
      {"overwrite_output_dir", "write into an output directory that is not empty", truth(&S::overwrite_output_dir)},
      {"text_column", "column or key of the text (default: text)", text(&S::text_column)},
      {"pair_column", "column or key of the second text of a pair", text(&S::pair_column)},
      {"label_column",
       "column or key of the label (default: label); several (a,b,c or repeated): multi-label columns of 0 or 1",
       label_columns()},
      {"format", "auto, csv, tsv, jsonl or conll", word(&S::format, {"auto", "csv", "tsv", "jsonl", "conll"})},
      {"delimiter", "column separator of csv and tsv files, if it is not the usual one: ';', '|', … or tab",
       delimiter_value<S>()},
      {"no_quotes", "treat quotes in csv and tsv files as ordinary characters", truth(&S::no_quotes)},
      {"on_error", "what to do with rows with a missing text, or a missing or unknown label: stop or skip",
       choice(&S::skip_bad_rows, {{"stop", false}, {"skip", true}})},
      {"task", "auto, classification, regression (numeric labels), ner or multi (classification and ner)",
       choice(&S::task, {{"auto", TaskChoice::automatic},
                         {"classification", TaskChoice::classification},
                         {"regression", TaskChoice::regression},
                         {"ner", TaskChoice::ner},
                         {"multi", TaskChoice::multi}}),
       kReport},
      {"multi_label", "several labels per row in one column, separated by |; may be empty", truth(&S::multi_label)},
      {"ignore_mismatched_head", "if the labels differ from the model's, start a new classifier on the same encoder",
       truth(&S::ignore_mismatched_head)},
  };
}

// Batches, learning rate and losses.
std::vector<Setting<S>> schedule_rows() {
  return {
      {"num_train_epochs", "passes over the data", number(&S::num_train_epochs), kSame},
      {"max_steps", "number of updates, instead of epochs; -1: use epochs", number(&S::max_steps), kSame},
      {"batch_size",
       "rows per update (the plan splits them into micro-batches)",
       number(&S::train_batch_size, above_zero),
       kSame,
       {"per_device_train_batch_size", "train_batch_size"},
       "per_device_train_batch_size"},
      run_row<S>("gradient_accumulation_steps"),
      {"batch_tokens", "batch size in tokens instead of rows; 0: use rows", number(&S::batch_tokens, not_negative),
       kSame},
      run_row<S>("learning_rate"),
      {"lr_scheduler_type", "linear, cosine, constant or constant_with_warmup",
       choice(&S::lr_schedule, {{"linear", LrSchedule::linear},
                                {"cosine", LrSchedule::cosine},
                                {"constant", LrSchedule::constant},
                                {"constant_with_warmup", LrSchedule::constant_with_warmup}}),
       kSame},
      {"lr_scaling", "scale the learning rate with the batch size: none, sqrt or linear",
       choice(&S::lr_scaling, {{"none", LrScaling::none}, {"sqrt", LrScaling::sqrt}, {"linear", LrScaling::linear}}),
       kSame},
      {"lr_reference_batch", "batch size for which the learning rate is given",
       number(&S::lr_reference_batch, above_zero), kSame},
      {"warmup_steps", "steps of linear warm-up; below 1: share of all steps", number(&S::warmup_steps, not_negative),
       kSame},
      {"warmup_ratio", "warm-up as a share of all steps", number(&S::warmup_ratio, share), kSame},
      run_row<S>("weight_decay"),
      run_row<S>("adam_beta1"),
      run_row<S>("adam_beta2"),
      run_row<S>("adam_epsilon"),
      run_row<S>("max_grad_norm"),
      {"label_smoothing_factor", "label smoothing factor", number(&S::label_smoothing, share_below_one), kSame},
      {"class_weights", "none, balanced, or one number per class", text(&S::class_weights), kSame},
      {"max_length",
       "maximum text length in tokens; 0: the model's limit",
       number(&S::max_length, not_negative),
       kSame,
       {"max_seq_length"}},
      {"seed", "random seed of shuffling, dropout and new heads", number(&S::seed), kSame},
  };
}

// Dropout, frozen parameters and LoRA.
std::vector<Setting<S>> trained_part_rows() {
  return {
      {"dropout",
       "dropout probability; -1: the model's",
       number(&S::dropout, [](double v) { return v == -1 ? nullptr : share_below_one(v); }),
       kSame,
       {},
       nullptr,
       [](const S& s) { return s.dropout < 0 ? "the model's" : fmt::format("{}", s.dropout); }},
      {"freeze", "parameters to leave unchanged: embeddings, layers:N (with the embeddings) or all-but-head",
       typed<S, model::Freeze>(&S::freeze, read_freeze, freeze_text), Keep::same_if_set},
      {"lora_r",
       "rank of LoRA: train adapters of this rank and the head, and freeze everything else",
       lora_rank(),
       Keep::same_if_set,
       {"r"}},
      {"lora_alpha", "LoRA: adapters are scaled by alpha / rank (default: 8)",
       optional_number(&S::lora_alpha, setting::above_zero), Keep::same_if_set},
      {"lora_dropout", "LoRA: dropout probability of the adapters' inputs (default: 0)",
       optional_number(&S::lora_dropout, setting::share_below_one), Keep::same_if_set},
      {"lora_targets",
       "LoRA: linear layers to adapt: all, attention, names (query,value) or a regular expression (default: all)",
       lora_targets(),
       Keep::same_if_set,
       {"target_modules"}},
      {"lora_layers",
       "LoRA: numbers of the layers to adapt, from 0 (default: all)",
       lora_layers(),
       Keep::same_if_set,
       {"layers_to_transform"}},
      {"use_rslora",
       "LoRA: scale by alpha / sqrt(rank)",
       truth(&S::use_rslora),
       Keep::same_if_set,
       {},
       nullptr,
       [](const S& s) { return s.use_rslora ? "true" : ""; }},
      {"adapter", "LoRA adapter (PEFT) of the model to continue; it sets rank, alpha and targets", text(&S::adapter),
       Keep::same_if_set},
  };
}

// Keys of PEFT with a single supported value.
std::vector<Setting<S>> peft_rows() {
  return {
      {"peft_type", "PEFT: only LORA", only({"LORA"}, "only LORA is supported")},
      {"use_dora", "PEFT: only false", only({"false"}, "DoRA is not supported")},
      {"bias", "PEFT: only none", only({"none"}, "training of biases is not supported; use none")},
      {"fan_in_fan_out", "PEFT: only false", only({"false"}, "transposed weights are not supported")},
      {"init_lora_weights", "PEFT: only true", only({"true"}, "only true is supported: B starts at zero")},
      {"modules_to_save", "PEFT: only parts of the head, which is always trained and saved",
       only({"classifier", "score", "pre_classifier", "pooler", "head"}, "only the head is trained and saved")},
      {"rank_pattern", "PEFT: not supported", only({}, "not supported; all adapters have the rank `lora_r`")},
      {"alpha_pattern", "PEFT: not supported", only({}, "not supported; all adapters have the same `lora_alpha`")},
      {"exclude_modules", "PEFT: not supported", only({}, "not supported; set `lora_targets`")},
      {"layers_pattern", "PEFT: not supported", only({}, "not supported; set `lora_layers`")},
  };
}

// Evaluation, checkpoints and logs.
std::vector<Setting<S>> evaluation_rows() {
  return {
      {"eval_strategy",
       "when to evaluate: no, steps or epoch",
       choice(&S::eval_strategy, {{"no", Strategy::no}, {"steps", Strategy::steps}, {"epoch", Strategy::epoch}}),
       kSame,
       {"evaluation_strategy"}},
      {"eval_steps", "steps between evaluations", number(&S::eval_steps), kSame},
      {"save_strategy", "when to save checkpoints: no, steps or epoch",
       choice(&S::save_strategy, {{"no", Strategy::no}, {"steps", Strategy::steps}, {"epoch", Strategy::epoch}}),
       kReport},
      {"save_steps", "steps between checkpoints", number(&S::save_steps), kReport},
      {"save_total_limit", "number of checkpoints to keep", number(&S::save_total_limit), kReport},
      {"logging_steps", "steps between log lines", number(&S::logging_steps, above_zero), kReport},
      {"report_to", "also write the log for these tools: tensorboard or none", texts(&S::report_to)},
      {"logging_dir", "directory of event files (default: OUTPUT/runs)", text(&S::logging_dir)},
      {"load_best_model_at_end", "write the best model instead of the last one", truth(&S::load_best_model_at_end),
       kSame},
      {"metric_for_best_model",
       "accuracy, macro_f1, macro_recall, loss, mse, pearson, spearman, entity_f1, mean_f1 (both heads) or f1 "
       "(default: the F1 of the task)",
       metric(), kSame},
      {"early_stopping_patience", "evaluations without improvement before stopping; 0: never",
       number(&S::early_stopping_patience, not_negative), kSame},
      {"resume_from_checkpoint", "checkpoint directory to continue from, or last", checkpoint()},
  };
}

// Precision, optimizer, memory and device.
std::vector<Setting<S>> device_rows() {
  using Level = std::optional<Recompute>;
  using Placement = std::optional<TokenPlacement>;
  return {
      run_row<S>("bf16"),
      run_row<S>("fp16"),
      run_row<S>("tf32"),
      run_row<S>("precision"),
      run_row<S>("optim"),
      {"recompute", "auto, none, half, selective or full",
       choice<S, Level>(&S::recompute, {{"auto", std::nullopt},
                                        {"none", Recompute::none},
                                        {"half", Recompute::half},
                                        {"selective", Recompute::selective},
                                        {"full", Recompute::full}}),
       kReport},
      {"gradient_checkpointing", "same as `recompute=full`", gradient_checkpointing()},
      run_row<S>("device"),
      run_row<S>("memory_limit"),
      run_row<S>("leave_free"),
      run_row<S>("max_memory_gb"),
      {"token_set", "location of training tokens: auto, resident (device), staged (host memory) or streamed (disk)",
       choice<S, Placement>(&S::token_set, {{"auto", std::nullopt},
                                            {"resident", TokenPlacement::resident},
                                            {"staged", TokenPlacement::staged},
                                            {"streamed", TokenPlacement::streamed}}),
       kReport},
      run_row<S>("use_mixed_precision"),
      run_row<S>("threads"),
      run_row<S>("use_cpu"),
      run_row<S>("fill"),
  };
}

// Distillation.
std::vector<Setting<S>> teacher_rows() {
  const auto with_teacher = [](double S::*m) {
    return [m](const S& s) { return s.teachers.empty() ? std::string() : fmt::format("{}", s.*m); };
  };
  return {
      {"teacher",
       "model to distill from, or file of its scores, also on unlabelled rows; repeat to use the mean of several",
       texts(&S::teachers)},
      {"teacher_weight", "weight of a teacher in the mean; repeat in the order of the teachers (default: equal)",
       texts(&S::teacher_weights)},
      {"labels", "class names, separated by commas: an NLI teacher classifies by them without training (zero-shot)",
       class_names()},
      {"labels_file", "file of such names, one per line", text(&S::labels_file)},
      {"template", "hypothesis of an NLI teacher, with {} in place of the label", text(&S::label_template)},
      {"temperature",
       "distillation temperature",
       number(&S::temperature, above_zero),
       kSame,
       {},
       nullptr,
       with_teacher(&S::temperature)},
      {"hard_weight",
       "weight of the label loss in distillation",
       number(&S::hard_weight, share),
       kSame,
       {},
       nullptr,
       with_teacher(&S::hard_weight)},
      {"student_layers",
       "number of the model's layers to start from; 0: all",
       number(&S::student_layers, not_negative),
       kSame,
       {},
       nullptr,
       [](const S& s) { return s.student_layers > 0 ? fmt::format("{}", s.student_layers) : ""; }},
  };
}

std::vector<Setting<S>> ignored_rows() {
  std::vector<Setting<S>> rows;
  SettingValue<S> ignored_switch;
  ignored_switch.is_switch = true;
#define IGNORED(key, why) rows.push_back({key, why});
#define IGNORED_SWITCH(key, why) rows.push_back({key, why, ignored_switch});
#include "train/ignored_keys.inc"
#undef IGNORED_SWITCH
#undef IGNORED
  return rows;
}

std::vector<Setting<S>> rows() {
  std::vector<Setting<S>> all;
  for (const auto& group : {data_rows(), schedule_rows(), trained_part_rows(), peft_rows(), evaluation_rows(),
                            device_rows(), teacher_rows(), ignored_rows()})
    all.insert(all.end(), group.begin(), group.end());
  return all;
}

}  // namespace

const SettingsTable<TrainSettings>& train_settings() {
  static const SettingsTable<TrainSettings> table(rows(), {{"lr", "learning_rate"},
                                                           {"rank", "lora_r"},
                                                           {"lora_rank", "lora_r"},
                                                           {"alpha", "lora_alpha"},
                                                           {"lora_target_modules", "lora_targets"},
                                                           {"epochs", "num_train_epochs"},
                                                           {"num_epochs", "num_train_epochs"},
                                                           {"resume", "resume_from_checkpoint"},
                                                           {"steps", "max_steps"},
                                                           {"warmup", "warmup_ratio"},
                                                           {"scheduler", "lr_scheduler_type"},
                                                           {"lr_scheduler", "lr_scheduler_type"},
                                                           {"optimizer", "optim"},
                                                           {"patience", "early_stopping_patience"},
                                                           {"max_len", "max_length"},
                                                           {"per_device_batch_size", "per_device_train_batch_size"},
                                                           {"per_gpu_batch_size", "per_device_train_batch_size"},
                                                           {"per_gpu_train_batch_size", "per_device_train_batch_size"},
                                                           {"eval", "val"},
                                                           {"dev", "val"}});
  return table;
}

}  // namespace brim::train
