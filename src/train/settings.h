// SPDX-License-Identifier: Apache-2.0
// How to train, in the words of Hugging Face's TrainingArguments. One table of keys serves flags, YAML files and the
// environment; keys that Brim makes unnecessary are accepted and explained, unknown ones are errors with the nearest
// name.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "plan/plan.h"

namespace brim {

enum class TrainTask : uint8_t { sequence, token, multi };

struct TrainSettings {
  std::string model, output_dir, resume_from_checkpoint;
  std::vector<std::string> train_files, validation_files;
  std::string text_column, format = "auto", on_error = "stop";
  char delimiter = 0;  // 0: the format's own
  bool no_quotes = false;
  std::vector<std::string> label_columns;               // empty: `label`; several: 0 or 1 each
  std::string token_train_file, token_validation_file;  // --task multi: the CoNLL side
  std::string task = "auto";                            // auto, classification, ner, multi
  bool multi_label = false, ignore_mismatched_head = false, overwrite_output_dir = false;

  double num_train_epochs = 3;
  int64_t max_steps = -1;
  int64_t train_batch_size = 32;  // rows an update is made from, times gradient_accumulation_steps
  int64_t gradient_accumulation_steps = 1;
  int64_t batch_tokens = 0;  // global batch in tokens instead of rows
  double learning_rate = 5e-5, weight_decay = 0.01, adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8,
         max_grad_norm = 1;
  std::string lr_scheduler_type = "linear", lr_scaling = "none";
  int64_t lr_reference_batch = 32;
  double warmup_steps = 0, warmup_ratio = 0;  // warmup_steps below 1 is a ratio, as in newer transformers
  double label_smoothing = 0;
  std::string class_weights = "none";  // none, balanced, or w0,w1,…
  int64_t max_length = 0;
  int64_t seed = 42;
  double dropout = -1;  // negative: the model's own

  std::string eval_strategy = "epoch", save_strategy = "epoch", metric_for_best_model;
  int64_t eval_steps = 500, save_steps = 500, logging_steps = 50, save_total_limit = 2, early_stopping_patience = 0;
  bool load_best_model_at_end = true;

  std::string precision = "auto", optim = "auto", recompute = "auto", device = "auto", memory_limit = "auto";
  std::string token_set = "auto";  // auto, resident, staged, streamed
  bool precision_by_switch =
      false;  // fp16: true and its like: a wish for speed, left out where the device has no such format
  int threads = 0;
  bool fill = false;
  LimitOrigin limit_origin;  // where memory_limit was written

  std::string teacher;
  double temperature = 2, hard_weight = 0.5;
  int64_t student_layers = 0;

  bool several_labels() const { return multi_label || label_columns.size() > 1; }
  int64_t global_batch() const { return train_batch_size * gradient_accumulation_steps; }
};

struct SettingsKey {
  std::string name, help;
  std::string default_value;     // empty: none, or nothing worth a word
  bool unnecessary = false;      // accepted, explained, ignored
  bool may_stand_alone = false;  // without a value it means true
  bool may_repeat = false;       // several values are a list
};
const std::vector<SettingsKey>& settings_keys();

// Sets one key (with - or _). Returns a line to tell the user when the key is unnecessary; empty otherwise. An unknown
// key or a value that does not parse throws usage; `where` says where it was written.
std::string apply_setting(TrainSettings& settings, std::string_view key, std::string_view value,
                          const std::string& where);

// The key somebody who typed this probably wants; empty if none is near.
std::string setting_meant(std::string_view typed);

// A YAML file: keys at the top or in blocks (training, training_args, model, data, gpu_optimization).
std::vector<std::string> apply_yaml(TrainSettings& settings, const std::filesystem::path& path);

// The settings as a table: for the card, the report, and to know whether a checkpoint belongs to this run.
struct SettingRow {
  std::string name, value;
  bool repeats = true;  // a resumed run must have the same
};
std::vector<SettingRow> setting_rows(const TrainSettings& settings);

// Throws usage for numbers and names that make no sense, whatever the data.
void check_values(const TrainSettings& settings);
// The same, and what a run needs besides: files, a precision that trains, settings that go together.
void check_settings(const TrainSettings& settings);

}  // namespace brim
