// SPDX-License-Identifier: Apache-2.0
// Runs a model on texts; shared by the command line, the server, the library and Python.
#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "batch/packed_batch.h"
#include "brim/brim.h"
#include "device/device.h"
#include "engine/engine_options.h"
#include "engine/model_host.h"
#include "engine/run_stats.h"
#include "engine/scheduler.h"
#include "engine/text_model.h"
#include "engine/tokenized_texts.h"
#include "hub/hf_config.h"
#include "hub/sentence_settings.h"
#include "model/forward_runner.h"
#include "model/weights.h"
#include "plan/plan.h"
#include "text/tokenizer.h"

namespace brim::engine {

class Engine final : public TextModel {
 public:
  static std::unique_ptr<Engine> open(const EngineOptions& options);
  // Several models that take turns on one device under one limit (the first one's device and limit count): they share
  // arena, staging and stream, and what the process holds anyway is counted once. With Residency::in_turn not all
  // need fit at once: those whose turn it is are loaded and the longest idle go.
  static std::vector<std::unique_ptr<Engine>> open_together(const std::vector<EngineOptions>& options,
                                                            plan::Residency residency = plan::Residency::all);
  // Joins `other`'s queue and its limit, loaded: with the plan of one like it that was opened there, else with batches
  // as large as that queue takes. Throws does_not_fit where not one text of its length would be.
  static std::unique_ptr<Engine> open_beside(const Engine& other, const EngineOptions& options,
                                             bool other_stays = false);
  ~Engine() override;

  std::string name() const override { return options_.model_dir.string(); }
  Engine* engine() override { return this; }
  bool multi_label() const override { return shape().multi_label; }
  Choice choose(const float* scores) const override { return choose_label({scores, static_cast<size_t>(width())}); }
  std::string device_name() const override { return device().name(); }
  std::string precision_text() const override { return precision_name(precision()); }
  int64_t planned_bytes() const override { return plan_.peak_bytes; }

  const model::ModelShape& shape() const { return host_->shape(); }
  const hub::HfConfig& config() const { return config_; }
  const std::vector<std::string>& labels() const override { return config_.id2label; }
  const std::vector<std::string>& tags() const { return tags_; }  // of the second head; empty: there is none
  const plan::Plan& plan() const { return plan_; }
  const text::Tokenizer& tokenizer() const { return *tokenizer_; }
  device::Device& device() { return scheduler_->queue().device(); }
  const device::Device& device() const { return scheduler_->queue().device(); }
  const std::filesystem::path& model_dir() const { return options_.model_dir; }
  Aggregation aggregation() const { return options_.aggregation; }
  const ModelHost& host() const { return *host_; }
  ModelHost& host() { return *host_; }
  ops::Precision precision() const { return plan_.precision; }
  const std::string& precision_reason() const { return precision_reason_; }
  // Mean pooling on the host counts as pooled: rows per token are seen by the queues alone.
  model::Output output() const override { return pools_on_host_ ? model::Output::mean_hidden : plan_.output; }
  std::optional<Pooling> pooling() const { return pooling_; }  // resolved; unset: not an embedding model
  // Floats per text of a result: classes, or values of a vector (per token for token outputs).
  int64_t width() const override { return width_ > 0 ? width_ : row_width(); }
  int64_t row_width() const { return output_width(shape(), plan_.output); }  // of one window or token, before merging
  bool pools_on_host() const { return pools_on_host_; }

  // Appends one text. With LongText::error a text that is too long is refused.
  std::optional<Error> tokenize(std::string_view text, TokenizedTexts& out) const {
    return tokenize(text, out, text_options());
  }
  std::optional<Error> tokenize(std::string_view text, TokenizedTexts& out, const TextOptions& options) const;
  // Appends a text and its optional second one. Windows pair the first with parts of the second.
  std::optional<Error> tokenize(std::string_view text, std::optional<std::string_view> pair, TokenizedTexts& out,
                                const TextOptions& options) const;
  // Appends ids as they are. One that the model does not have is refused.
  std::optional<Error> take_ids(std::span<const int32_t> ids, TokenizedTexts& out, const TextOptions& options) const;
  TextOptions text_options() const { return {.long_text = options_.long_text, .prompt = prompt_}; }
  std::optional<Error> why_no_pairs() const override;

  // Batches packed by the caller, or single texts. Thread-safe; both must be destroyed before the engine.
  std::unique_ptr<Bulk> bulk(Bulk::Collect collect);
  // Texts that would wait longer than `most_seconds` are refused as busy.
  std::unique_ptr<Interactive> interactive(Interactive::Answer answer, double most_seconds, int64_t most_bytes,
                                           Heads heads = Heads::own);
  void prepare_small();  // graphs of small batches, so that the first text finds them; interactive() does it too
  Scheduler& scheduler() { return *scheduler_; }
  void park() { scheduler_->park(*host_); }
  void load_weights() { scheduler_->load(*host_); }
  bool close_device() { return scheduler_->close_device(); }
  void keep(bool on) { host_->kept = on; }
  batch::PackLimits pack_limits() const;  // of bulk batches
  // Of interactive batches: the fewest tokens that keep the device at nearly its full speed, so that none waits long.
  int64_t serving_tokens() const;
  double busy_seconds() const { return busy_seconds_; }  // of the device, in score() and entities() so far

  // Speed, utilisation and memory of the last run.
  RunStats stats() const override;

  // Measures GEMM algorithms for this plan's shapes and keeps them for this machine; one line a shape class. CUDA only.
  std::vector<std::string> tune(double seconds_per_shape);

  // A few texts from the caller's thread: [texts,width], windows merged (sequence outputs), or entities per text (token
  // outputs). Texts that fail are added to `errors` and have no result; if it is null, the first one is thrown.
  using TextErrors = std::vector<std::pair<size_t, Error>>;
  std::vector<float> score(const TokenizedTexts& tokens, TextErrors* errors = nullptr);
  std::vector<std::vector<float>> score(std::span<const std::string_view> texts);
  std::vector<std::vector<Entity>> entities(std::span<const std::string_view> texts, const TokenizedTexts& tokens,
                                            TextErrors* errors = nullptr);
  std::vector<std::vector<Entity>> entities(std::span<const std::string_view> texts);

  // Scores of every token of text `t`, [tokens of its encoding, width], from those of the windows' tokens, which lie
  // where their ids do. A token past a truncation counts as outside.
  void token_scores(const TokenizedTexts& texts, size_t t, const text::Encoding& encoding,
                    const std::vector<float>& windows, std::vector<float>& out) const {
    token_scores(texts, t, encoding, windows, labels(), out);
  }
  void token_scores(const TokenizedTexts& texts, size_t t, const text::Encoding& encoding,
                    const std::vector<float>& windows, const std::vector<std::string>& labels,
                    std::vector<float>& out) const;

  // Error for a text with a NaN or infinity among its results, which merging windows and choosing labels can hide.
  std::optional<Error> check_finite(std::span<const float> results) const;
  // Merges the windows of one text: results [windows, row_width] to `out` [width]. Logits become scores, unless `raw`;
  // vectors are normalized and truncated as the model's files say.
  void merge_windows(const float* results, size_t windows, float* out) const {
    merge_windows(results, windows, out, options_.long_text, false);
  }
  void merge_windows(const float* results, size_t windows, float* out, LongText how, bool raw) const;

 private:
  Engine() = default;
  std::vector<float> run_windows(const TokenizedTexts& texts);  // a row a window, or a row a token where its id is
  struct Prepared;
  int64_t window_step(int64_t room, const TextOptions& options) const;  // to the next window, of so many tokens each
  int64_t tokens_in(double seconds) const;                              // of a batch, by prediction; enough to be quick
  static Scheduler::Room plan_within(DeviceQueue& queue, plan::PlanRequest request, bool raw_scores);
  static Prepared read_files(const EngineOptions& options);
  static std::vector<Prepared> read_all(const std::vector<EngineOptions>& options);
  int64_t one_batch(int64_t most_tokens) const;  // tokens of the only batch there will be, more or less; 0: of several
  static void resolve(Prepared& prepared, device::Device& device, int64_t limit_bytes);
  static std::vector<std::unique_ptr<Engine>> open_on(std::shared_ptr<device::Device> device,
                                                      std::vector<Prepared> prepared, int64_t limit_bytes,
                                                      plan::Residency residency);
  TokenizedTexts tokenized(std::span<const std::string_view> texts) const;
  void read_sentence_settings();
  // `text` as it is tokenized: after the prompt and in the case that the model's files ask for.
  std::string_view sentence_text(std::string_view text, std::string_view prompt, std::string& storage) const;
  int32_t prompt_tokens(std::string_view prompt) const;  // that mean pooling leaves out
  EngineOptions options_;
  hub::SentenceSettings sentence_;  // of embedding models
  std::string prompt_;              // before every text
  std::optional<Pooling> pooling_;
  bool pools_on_host_ = false;
  int64_t width_ = 0;  // of truncated vectors; 0: row_width()
  std::string facts_;  // of its files when they were read
  hub::HfConfig config_;
  std::vector<std::string> tags_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  plan::Plan plan_;
  std::shared_ptr<Scheduler> scheduler_;  // of the device; outlives the model on it
  std::unique_ptr<ModelHost> host_;
  std::once_flag small_prepared_;
  std::string precision_reason_;
  std::atomic<double> busy_seconds_{0};
};

}  // namespace brim::engine
