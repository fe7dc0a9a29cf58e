// SPDX-License-Identifier: Apache-2.0
// Training settings, named as in Hugging Face's TrainingArguments. One table (settings_table.cc) serves flags, YAML
// files, the environment, checks, checkpoints and model cards. Keys that Brim does not need are accepted with an
// explanation; unknown keys are errors that suggest the nearest name.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/settings.h"
#include "hub/adapter.h"
#include "plan/plan.h"
#include "plan/resolve.h"
#include "train/run_settings.h"

namespace brim::train {

enum class TrainTask : uint8_t { sequence, token, multi };
enum class TaskChoice : uint8_t { automatic, classification, regression, ner, multi };
enum class LrSchedule : uint8_t { linear, cosine, constant, constant_with_warmup };
enum class LrScaling : uint8_t { none, sqrt, linear };
enum class Strategy : uint8_t { no, steps, epoch };  // when to evaluate or save

// Location of the training tokens. Does not affect the results of a run.
enum class TokenPlacement : uint8_t {
  resident,  // on the device, in addition to the plan; a micro-batch transfers only the offsets of its rows
  staged,    // in host memory; micro-batches are transferred ahead of time
  streamed,  // in the token cache's mapped file; same ring as staged, with pages read from disk on demand
};

struct TrainSettings : RunSettings {
  std::string model, output_dir, resume_from_checkpoint;
  std::vector<std::string> train_files, validation_files;
  std::string text_column, pair_column, format = "auto";
  bool skip_bad_rows = false;
  char delimiter = 0;  // 0: default of the file format
  bool no_quotes = false;
  std::vector<std::string> label_columns;               // empty: `label`; several columns: 0 or 1 each
  std::string token_train_file, token_validation_file;  // CoNLL files for training both heads
  TaskChoice task = TaskChoice::automatic;
  bool multi_label = false, ignore_mismatched_head = false, overwrite_output_dir = false;

  double num_train_epochs = 3;
  int64_t max_steps = -1;
  int64_t train_batch_size = 32;  // rows per update, times gradient_accumulation_steps
  int64_t batch_tokens = 0;       // global batch in tokens instead of rows
  LrSchedule lr_schedule = LrSchedule::linear;
  LrScaling lr_scaling = LrScaling::none;
  int64_t lr_reference_batch = 32;
  double warmup_steps = 0, warmup_ratio = 0;  // warmup_steps below 1 is a ratio, same as in newer transformers
  double label_smoothing = 0;
  std::string class_weights = "none";  // none, balanced, or w0,w1,…
  int64_t max_length = 0;
  int64_t seed = 42;
  double dropout = -1;  // negative: the model's default
  model::Freeze freeze;

  int64_t lora_r = 0;  // 0: no LoRA, unless an adapter is given
  std::optional<double> lora_alpha, lora_dropout;
  std::vector<std::string> lora_targets;  // empty: all
  std::vector<int64_t> lora_layers;       // empty: all
  bool use_rslora = false;
  std::string adapter;  // directory of an adapter to continue

  Strategy eval_strategy = Strategy::epoch, save_strategy = Strategy::epoch;
  std::string metric_for_best_model;
  int64_t eval_steps = 500, save_steps = 500, logging_steps = 50, save_total_limit = 2, early_stopping_patience = 0;
  bool load_best_model_at_end = true;

  std::optional<model::Recompute> recompute;   // nullopt: chosen by the plan; same for token_set
  std::optional<bool> gradient_checkpointing;  // as given; true also sets recompute
  std::optional<TokenPlacement> token_set;

  std::vector<std::string> teachers;
  std::vector<std::string> report_to;  // Hugging Face's names; train_log.jsonl and report.html are always written
  std::string logging_dir;             // directory of event files; empty: OUTPUT/runs

  std::vector<std::string> teacher_weights;  // one per teacher; empty: equal
  std::vector<std::string> labels;           // class names for NLI teachers and files of scores
  std::string labels_file, label_template = "This example is {}.";

  double temperature = 2, hard_weight = 0.5;
  int64_t student_layers = 0;

  bool lora() const { return lora_r > 0 || !adapter.empty(); }
  bool several_labels() const { return multi_label || label_columns.size() > 1; }
  bool numbers() const { return task == TaskChoice::regression; }  // labels are regression targets
  bool tensorboard() const;
  int64_t global_batch() const { return train_batch_size * gradient_accumulation_steps; }
};

const SettingsTable<TrainSettings>& train_settings();

// Sets one key, same as SettingsTable::apply, and remembers the source of a memory limit.
std::string apply_setting(TrainSettings& settings, std::string_view key, std::string_view value,
                          const std::string& where = "");

// The value of a setting as text.
std::string setting_text(const TrainSettings& settings, std::string_view key);

// A YAML file: keys at the top or in blocks (training, training_args, model, data, gpu_optimization).
std::vector<std::string> apply_yaml(TrainSettings& settings, const std::filesystem::path& path);

// Resolves model names to directories; a student without a model starts from its first teacher that is one.
void find_models(TrainSettings& settings);

// Whether a LoRA target is a regular expression instead of a name.
bool is_regular_expression(std::string_view target);

// embeddings, layers:N or all-but-head; empty or none: nothing.
model::Freeze read_freeze(std::string_view text);
std::string freeze_text(const model::Freeze& freeze);
// Throws a usage error if the model does not have these parts. Returns the shape with them.
model::ModelShape with_freeze(model::ModelShape shape, const model::Freeze& freeze);

// Same for LoRA; no change if it is off. `adapter`: of settings.adapter.
model::ModelShape with_lora(model::ModelShape shape, const TrainSettings& settings, const hub::Adapter* adapter);
// Reads settings.adapter for a base model; null if it is empty.
std::unique_ptr<hub::Adapter> open_adapter(const TrainSettings& settings, const hub::WeightSource& source);

// Throws a usage error for invalid numbers and names, independent of the data.
void check_values(const TrainSettings& settings);
// Same, and also checks files, precision and combinations of settings.
void check_settings(const TrainSettings& settings);

}  // namespace brim::train
