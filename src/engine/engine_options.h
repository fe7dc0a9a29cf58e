// SPDX-License-Identifier: Apache-2.0
// Options for opening a model and for tokenizing a text. Command-line flags are parsed in src/cli.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "brim/brim.h"
#include "device/device.h"
#include "hub/model_files.h"
#include "model/pass.h"
#include "plan/resolve.h"

namespace brim::engine {

// Output that a model in `dir` computes for this pooling.
model::Output embedding_output(const std::filesystem::path& dir, Pooling pooling);

struct EngineOptions {
  std::filesystem::path model_dir;
  std::filesystem::path adapter_dir;  // LoRA adapter for that model; empty: none
  bool shares_base = false;           // the encoder's weights are shared with other models of that directory
  device::DeviceChoice device;
  plan::PrecisionRequest precision;
  int threads = 0;
  plan::MemoryLimit memory_limit;
  int64_t max_length = 0;  // 0: the model's maximum
  LongText long_text = LongText::truncate;
  std::optional<model::Output> output;  // default: the output of the model's head
  std::optional<Pooling> pooling;  // if set: text embeddings, configured by the directory's sentence-transformers files
  std::string prompt_name;         // name of a prompt in those files; empty: their default
  bool fill = false;
  bool raw_scores = false;   // a classifier computes logits; merge_windows() converts them to scores
  int64_t batch_tokens = 0;  // if positive: token limit of interactive batches, unless a single text is longer
  // Tagger with the same encoder as this classifier (model::same_encoder): its head is loaded too, and Heads::both
  // computes both.
  std::filesystem::path tagger_dir;
  double bulk_seconds = 0;  // if positive: upper bound for the predicted duration of a bulk batch
  int64_t input_bytes = 0;  // if positive: total size of the input, to size a GPU's memory for no more
  Aggregation aggregation = Aggregation::first;
  std::map<std::string, std::string> labels;  // replacements for the model's label names
  std::optional<ZeroShot> zero_shot;          // NLI models: classify texts by these labels
  std::optional<EntityLabels> entities;       // GLiNER models: find entities of these labels
  // Scores of a text are bitwise independent of other texts in the batch. For models that share a device, the first
  // one's setting applies.
  bool deterministic = false;
  int64_t parked_bytes = 0;  // for models that share a device, the first one's setting applies to all
  int64_t cache_bytes = 0;   // the same

  hub::ModelFiles files() const { return {model_dir, adapter_dir}; }
};

// All options of a scorer except the directories of its models.
EngineOptions engine_options(const ScorerOptions& options);

// Heads computed for an interactive text: the model's own, or both of a classifier with a tagger.
enum class Heads : uint8_t { own, both };

class LabelTask;

// Options for a single text.
struct TextOptions {
  LongText long_text = LongText::truncate;
  bool keep_end = false;  // truncate at the beginning instead
  int32_t overlap = -1;   // tokens shared by neighbouring windows; negative: a quarter window for taggers, 0 otherwise
  bool tags = false;      // windows as for a tagger, regardless of the model
  std::string_view prompt = {};          // prepended to the text
  const LabelTask* zero_shot = nullptr;  // if set: labels in place of the model's
  int64_t max_length = 0;                // tokens read of this text, at most the model's; 0: the model's
};

}  // namespace brim::engine
