// SPDX-License-Identifier: Apache-2.0
// Checkpoints and final models on disk. A checkpoint appears under its name only when every file in it is whole and
// durable; on loading, sizes and checksums are compared, and one that fails is passed over for the one before it.
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

// Where a run stands: enough to go on bit for bit.
struct TrainProgress {
  int64_t step = 0;           // optimizer steps done
  int64_t skipped_steps = 0;  // updates left out because a gradient was not finite (fp16)
  double loss_scale = 1;
  int64_t good_steps = 0;  // since the last change of the loss scale
  double best_metric = 0;
  int64_t best_step = -1, evaluations_since_best = 0;
  // Whether an evaluation is the best so far. One that is no number never is: none could be better after it.
  bool improved_by(double metric, bool lower_is_better) const {
    if (!std::isfinite(metric)) return false;
    return best_step < 0 || (lower_is_better ? metric < best_metric : metric > best_metric);
  }
  std::string settings;    // fingerprint of what must be the same to resume
  std::string state_json;  // trainer_state.json as Hugging Face knows it, the log's history in it
  std::string plan_json;
};

struct ModelFiles {
  const hub::HfConfig* config = nullptr;  // the model trained from
  std::filesystem::path tokenizer_dir;
  std::vector<std::string> labels;  // of the sequence head, or the token head when alone
  std::vector<std::string> tags;    // of the token head beside a sequence head
  model::ModelShape shape;
};

// A Hugging Face directory: config.json with id2label, model.safetensors (f32), tokenizer files.
void write_model(const std::filesystem::path& dir, const ModelFiles& files, const model::SlabLayout& layout,
                 std::span<const float> master);

// The same for the run's end: of two heads on one encoder each is a model of its own, the token head's in dir/ner.
inline constexpr const char* kTagger = "ner";
void write_trained(const std::filesystem::path& dir, const ModelFiles& files, const model::SlabLayout& layout,
                   std::span<const float> master);

// As write_trained(). If `dir` cannot be written, the model is saved in the system's temporary directory and the Error
// names it, so that no training is lost.
void write_trained_or_rescue(const std::filesystem::path& dir, const ModelFiles& files, const model::SlabLayout& layout,
                             std::span<const float> master);

void write_checkpoint(const std::filesystem::path& output_dir, const ModelFiles& files, const model::SlabLayout& layout,
                      std::span<const float> master, std::span<const std::span<const std::byte>> moments,
                      const TrainProgress& progress, int64_t keep);

struct LoadedCheckpoint {
  std::filesystem::path dir;
  TrainProgress progress;
  std::vector<float> master;
  MappedFile moments;
};
// What a run that was killed left half-written.
void remove_parts(const std::filesystem::path& output_dir);

int64_t count_checkpoints(const std::filesystem::path& output_dir);  // complete or damaged
// All of them, whole or not: a run that starts afresh has none of its own.
void remove_checkpoints(const std::filesystem::path& output_dir);

// A model with its tokenizer from one directory to another; false if there is none.
bool copy_model(const std::filesystem::path& from, const std::filesystem::path& to);

// `which`: a checkpoint directory, or "last": the newest whole one in output_dir. Nothing if there is none.
std::optional<LoadedCheckpoint> load_checkpoint(const std::filesystem::path& output_dir, const std::string& which,
                                                const model::ModelShape& shape);

}  // namespace brim::train
