// SPDX-License-Identifier: Apache-2.0
// How to train, in the words of Hugging Face's TrainingArguments. One table (settings_table.cc) serves flags, YAML
// files, the environment, checks, checkpoints and cards; keys that Brim makes unnecessary are accepted and explained,
// unknown ones are errors with the nearest name.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/settings.h"
#include "plan/plan.h"
#include "plan/resolve.h"
#include "train/run_settings.h"

namespace brim::train {

enum class TrainTask : uint8_t { sequence, token, multi };
enum class TaskChoice : uint8_t { automatic, classification, regression, ner, multi };
enum class LrSchedule : uint8_t { linear, cosine, constant, constant_with_warmup };
enum class LrScaling : uint8_t { none, sqrt, linear };
enum class Strategy : uint8_t { no, steps, epoch };  // when to evaluate or save

// Where the training rows' tokens are when the device asks for them. It changes no bit of a run.
enum class TokenPlacement : uint8_t {
  resident,  // on the device, beside everything planned; a micro-batch sends its rows' places only
  staged,    // in host memory; micro-batches cross ahead of time
  streamed,  // in the token cache's mapped file; the same ring, pages come from disk where memory has not kept them
};

struct TrainSettings : RunSettings {
  std::string model, output_dir, resume_from_checkpoint;
  std::vector<std::string> train_files, validation_files;
  std::string text_column, pair_column, format = "auto";
  bool skip_bad_rows = false;
  char delimiter = 0;  // 0: the format's own
  bool no_quotes = false;
  std::vector<std::string> label_columns;               // empty: `label`; several: 0 or 1 each
  std::string token_train_file, token_validation_file;  // with both heads: the CoNLL side
  TaskChoice task = TaskChoice::automatic;
  bool multi_label = false, ignore_mismatched_head = false, overwrite_output_dir = false;

  double num_train_epochs = 3;
  int64_t max_steps = -1;
  int64_t train_batch_size = 32;  // rows an update is made from, times gradient_accumulation_steps
  int64_t batch_tokens = 0;       // global batch in tokens instead of rows
  LrSchedule lr_schedule = LrSchedule::linear;
  LrScaling lr_scaling = LrScaling::none;
  int64_t lr_reference_batch = 32;
  double warmup_steps = 0, warmup_ratio = 0;  // warmup_steps below 1 is a ratio, as in newer transformers
  double label_smoothing = 0;
  std::string class_weights = "none";  // none, balanced, or w0,w1,…
  int64_t max_length = 0;
  int64_t seed = 42;
  double dropout = -1;  // negative: the model's own

  Strategy eval_strategy = Strategy::epoch, save_strategy = Strategy::epoch;
  std::string metric_for_best_model;
  int64_t eval_steps = 500, save_steps = 500, logging_steps = 50, save_total_limit = 2, early_stopping_patience = 0;
  bool load_best_model_at_end = true;

  std::optional<model::Recompute> recompute;  // none: the plan chooses, as below
  std::optional<TokenPlacement> token_set;

  std::vector<std::string> teachers;
  double temperature = 2, hard_weight = 0.5;
  int64_t student_layers = 0;

  bool several_labels() const { return multi_label || label_columns.size() > 1; }
  bool numbers() const { return task == TaskChoice::regression; }  // labels are numbers, to be predicted
  int64_t global_batch() const { return train_batch_size * gradient_accumulation_steps; }
};

const SettingsTable<TrainSettings>& train_settings();

// Sets one key, as SettingsTable::apply does, and notes where a limit was written.
std::string apply_setting(TrainSettings& settings, std::string_view key, std::string_view value,
                          const std::string& where = "");

// The value of a setting as text.
std::string setting_text(const TrainSettings& settings, std::string_view key);

// A YAML file: keys at the top or in blocks (training, training_args, model, data, gpu_optimization).
std::vector<std::string> apply_yaml(TrainSettings& settings, const std::filesystem::path& path);

// Names of models become their directories; a student without a model begins as its first teacher.
void find_models(TrainSettings& settings);

// Throws usage for numbers and names that make no sense, whatever the data.
void check_values(const TrainSettings& settings);
// The same, and what a run needs besides: files, a precision that trains, settings that go together.
void check_settings(const TrainSettings& settings);

}  // namespace brim::train
