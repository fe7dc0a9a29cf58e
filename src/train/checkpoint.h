// SPDX-License-Identifier: Apache-2.0
// Reads and writes checkpoints and final models. A checkpoint gets its name only after all its files are complete and
// synced to disk. Loading compares sizes and checksums and falls back to the previous checkpoint if one is damaged.
// Does not decide when to save.
#pragma once
#include <cmath>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "hub/hf_config.h"
#include "model/train_state.h"

namespace brim::train {

// State of a run, sufficient to resume it bit for bit.
struct TrainProgress {
  int64_t step = 0;           // optimizer steps done
  int64_t skipped_steps = 0;  // updates skipped because a gradient was not finite (fp16)
  double loss_scale = 1;
  int64_t good_steps = 0;  // since the last change of the loss scale
  double best_metric = 0;
  int64_t best_step = -1, evaluations_since_best = 0;
  double seconds = 0;  // training time, without evaluation and saving; 0 in checkpoints of earlier versions
  // Whether an evaluation is the best so far. Never true for NaN or infinity, which no later value could improve on.
  bool improved_by(double metric, bool lower_is_better) const {
    if (!std::isfinite(metric)) return false;
    return best_step < 0 || (lower_is_better ? metric < best_metric : metric > best_metric);
  }
  std::string settings;    // fingerprint of the settings that must not change on resume
  std::string state_json;  // trainer_state.json in Hugging Face's format, including the log history
  std::string plan_json;
};

struct ModelFiles {
  const hub::HfConfig* config = nullptr;  // the base model
  std::filesystem::path tokenizer_dir;
  std::vector<std::string> labels;  // labels of the sequence head, or of the token head if it is the only one
  std::vector<std::string> tags;    // labels of the token head if there is also a sequence head
  model::ModelShape shape;
  std::string base;  // with LoRA: the base model's name, for adapter_config.json
};

// A Hugging Face directory: config.json with id2label, model.safetensors (f32), tokenizer files. With LoRA, PEFT's
// files replace the weights: adapter_config.json and adapter_model.safetensors with the adapters and the head.
void write_model(const std::filesystem::path& dir, const ModelFiles& files, const model::SlabLayout& layout,
                 std::span<const float> master);

// Same for the end of a run. With two heads on one encoder, each becomes a separate model; the token head's is dir/ner.
inline constexpr const char* kTagger = "ner";
const char* weights_file(const model::ModelShape& shape);
void write_trained(const std::filesystem::path& dir, const ModelFiles& files, const model::SlabLayout& layout,
                   std::span<const float> master);

// Same as write_trained(), but if `dir` cannot be written, saves the model in the system's temporary directory and
// throws an Error with that path, so that no training is lost.
void write_trained_or_rescue(const std::filesystem::path& dir, const ModelFiles& files, const model::SlabLayout& layout,
                             std::span<const float> master);

void write_checkpoint(const std::filesystem::path& output_dir, const ModelFiles& files, const model::SlabLayout& layout,
                      std::span<const float> master, std::span<const std::span<const std::byte>> moments,
                      const TrainProgress& progress, int64_t keep);

struct LoadedCheckpoint {
  std::filesystem::path dir;
  TrainProgress progress;
  std::string differs;        // from fingerprint_difference(); if not empty, the members below are not read
  std::vector<float> master;  // in slab order; with LoRA, only the trained parameters
  MappedFile moments;
  std::string fault;  // the moments have another order; empty if the settings are those of the run
};
// Removes incomplete files left by a killed run.
void remove_parts(const std::filesystem::path& output_dir);

int64_t count_checkpoints(const std::filesystem::path& output_dir);  // complete or damaged
// Removes all checkpoints, including damaged ones, before a run starts from scratch.
void remove_checkpoints(const std::filesystem::path& output_dir);

// Copies a model with its tokenizer between directories; returns false if `from` has no model.
bool copy_model(const std::filesystem::path& from, const std::filesystem::path& to);

// `which`: a checkpoint directory, or "last" for the newest intact one in output_dir. Returns nullopt if there is none.
// `settings`: fingerprint of the run, compared before the tensors are read; empty: not compared.
std::optional<LoadedCheckpoint> load_checkpoint(const std::filesystem::path& output_dir, const std::string& which,
                                                const model::ModelShape& shape, const std::string& settings = "");

}  // namespace brim::train
