// SPDX-License-Identifier: Apache-2.0
// The engine: texts in, labels out. Every door (command line, server, library, Python) is thin and leads here: one
// tokenizer, one plan, one arena, the same numbers.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/packed_batch.h"
#include "device/device.h"
#include "engine/batch_runner.h"
#include "engine/run_stats.h"
#include "model/forward_runner.h"
#include "model/weights.h"
#include "plan/plan.h"
#include "text/tokenizer.h"

namespace brim {

// What happens to a text longer than the model takes.
enum class LongText : uint8_t { truncate, window_mean, window_max, error };
std::optional<LongText> long_text_from_name(std::string_view name);

struct EngineOptions {
  std::filesystem::path model_dir;
  std::string device = "auto";
  std::string precision = "auto";
  int threads = 0;
  std::string memory_limit = "auto";
  int64_t max_length = 0;  // 0: the model's own
  LongText long_text = LongText::truncate;
  std::optional<Output> output;  // default: what the model's head gives
  bool fill = false;
};

struct Entity {
  std::string group, word;
  float score;
  int32_t start, end;  // code points of the text
};

// One text, tokenized and cut into windows the model can take.
struct TokenizedText {
  struct Window {
    size_t begin;  // in the ids of the batch of texts
    int32_t length;
    int32_t first_content;  // index of its first content token within the whole text's content
  };
  size_t first_window = 0, windows = 0;
  bool truncated = false;
};

// Texts tokenized together; storage is reused.
struct TokenizedTexts {
  std::vector<int32_t> ids;
  std::vector<TokenizedText::Window> windows;
  std::vector<TokenizedText> texts;
  void clear() {
    ids.clear();
    windows.clear();
    texts.clear();
  }
};

class Engine {
 public:
  static std::unique_ptr<Engine> open(const EngineOptions& options);
  // Several models on one device under one limit (the first one's device and limit count), each with a stream and bytes
  // of its own, so that their batches may overlap. What the process holds anyway is counted once.
  static std::vector<std::unique_ptr<Engine>> open_together(const std::vector<EngineOptions>& options);
  ~Engine();

  const ModelShape& shape() const { return model_->shape(); }
  const HfConfig& config() const { return model_->config(); }
  const std::vector<std::string>& labels() const { return model_->labels(); }
  const Plan& plan() const { return plan_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  Device& device() { return *device_; }
  const Model& model() const { return *model_; }
  Precision precision() const { return plan_.precision; }
  const std::string& precision_reason() const { return precision_reason_; }
  Output output() const { return plan_.output; }
  // Floats per sequence of a result (classes or hidden size); token outputs have this many per token.
  int64_t width() const;

  // Appends one text. With LongText::error a text that is too long is refused.
  std::optional<Error> tokenize(std::string_view text, TokenizedTexts& out) const;

  // Batches in, results out; rows of a result follow the batch's sequences (or tokens). One user at a time.
  BatchRunner& batches() { return *batches_; }

  // The last run, whether score() or a pipeline's: speed, MFU, device busy, memory, what held it back.
  RunStats stats() const;
  void set_counted(const PipelineStats& counted) { counted_ = counted; }

  // Measures GEMM algorithms for this plan's shapes and keeps them for this machine; one line a shape class. CUDA only.
  std::vector<std::string> tune(double seconds_per_shape);

  // The library's simplest door: one probability vector per text (sequence outputs), windows merged.
  std::vector<std::vector<float>> score(std::span<const std::string_view> texts);
  // Token outputs: entities per text.
  std::vector<std::vector<Entity>> entities(std::span<const std::string_view> texts);

  // Runs batches of every size class once, so that kernels and algorithms are loaded and device memory stays as it is.
  void warm_up();

  // Scores of every token of text `t`, [tokens of its encoding, width], from those of the windows' tokens, which lie
  // where their ids do. A token past a truncation counts as outside.
  void token_scores(const TokenizedTexts& texts, size_t t, const Encoding& encoding, const std::vector<float>& windows,
                    std::vector<float>& out) const;

  // Merges the windows of one text: probabilities [windows, width] to `out` [width].
  void merge_windows(const float* probabilities, size_t windows, float* out) const;

 private:
  Engine() = default;
  std::vector<float> run_windows(const TokenizedTexts& texts);  // a row a window, or a row a token where its id is
  static std::unique_ptr<Engine> open_on(std::shared_ptr<Device> device, const EngineOptions& options,
                                         int64_t limit_bytes);
  EngineOptions options_;
  std::shared_ptr<Device> device_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Model> model_;
  Plan plan_;
  ForwardPlan forward_plan_;
  DeviceBuffer arena_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<ForwardRunner> runner_;
  std::unique_ptr<BatchRunner> batches_;
  std::string precision_reason_;
  PipelineStats counted_;
};

}  // namespace brim
