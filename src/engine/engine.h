// SPDX-License-Identifier: Apache-2.0
// Runs a model on texts; used by the command line, the server, the library and Python. Does not schedule batches
// (scheduler.h) or allocate device memory (device_queue.h).
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
#include "engine/entity_task.h"
#include "engine/model_host.h"
#include "engine/scheduler.h"
#include "engine/tokenized_texts.h"
#include "engine/zero_shot.h"
#include "hub/hf_config.h"
#include "hub/sentence_settings.h"
#include "model/forward_runner.h"
#include "model/weights.h"
#include "plan/plan.h"
#include "text/tokenizer.h"

namespace brim::engine {

class Engine {
 public:
  static std::unique_ptr<Engine> open(const EngineOptions& options);
  // Opens several models on one device under the limit of the first one. They share arena, staging and stream, and the
  // process's fixed memory counts once. Residency::in_turn loads them on demand and unloads the longest idle ones.
  static std::vector<std::unique_ptr<Engine>> open_together(const std::vector<EngineOptions>& options,
                                                            plan::Residency residency = plan::Residency::all);
  // Opens and loads a model on the queue and limit of `other`: with the plan of an equal model opened there before,
  // otherwise with the largest batches the queue supports. Throws does_not_fit if a text of maximum length does not.
  static std::unique_ptr<Engine> open_beside(const Engine& other, const EngineOptions& options,
                                             bool other_stays = false);
  ~Engine();

  bool multi_label() const { return zero_shot_ ? zero_shot_->multi_label() : shape().multi_label; }
  const model::ModelShape& shape() const { return host_->shape(); }
  const hub::HfConfig& config() const { return config_; }
  const std::vector<std::string>& labels() const { return zero_shot_ ? zero_shot_->labels() : config_.id2label; }
  const std::vector<std::string>& tags() const { return tags_; }  // labels of the second head; empty if none
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
  // Mean pooling on the host counts as pooled: only the queues see rows per token.
  model::Output output() const { return pools_on_host_ ? model::Output::mean_hidden : plan_.output; }
  std::optional<Pooling> pooling() const { return pooling_; }  // resolved; unset if not an embedding model
  // Floats per text in a result: classes, or vector size (per token for token outputs).
  int64_t width() const { return width_ > 0 ? width_ : row_width(); }
  // Floats per text after merging: zero-shot labels of the call, or width().
  int64_t width_of(const TokenizedTexts& texts) const {
    return texts.zero_shot != nullptr ? static_cast<int64_t>(texts.zero_shot->labels().size()) : width();
  }
  // Floats per window or token, before merging.
  int64_t row_width() const { return output_width(shape(), plan_.output); }
  bool pools_on_host() const { return pools_on_host_; }

  // Appends one text. With LongText::error a text that is too long is rejected.
  std::optional<Error> tokenize(std::string_view text, TokenizedTexts& out) const {
    return tokenize(text, out, text_options());
  }
  std::optional<Error> tokenize(std::string_view text, TokenizedTexts& out, const TextOptions& options) const;
  // Appends a text and its optional second text. Windows pair the first with parts of the second.
  std::optional<Error> tokenize(std::string_view text, std::optional<std::string_view> pair, TokenizedTexts& out,
                                const TextOptions& options) const;
  // Appends ids unchanged. Ids outside the vocabulary are rejected.
  std::optional<Error> take_ids(std::span<const int32_t> ids, TokenizedTexts& out, const TextOptions& options) const;
  TextOptions text_options() const {
    return {.long_text = options_.long_text, .prompt = prompt_, .zero_shot = zero_shot_.get()};
  }
  // Labels for TextOptions::zero_shot, of an NLI model and of a GLiNER model. Throw usage or bad_model.
  std::unique_ptr<const ZeroShotTask> prepare_labels(const ZeroShot& settings, const ZeroShotKeys& keys = {}) const;
  std::unique_ptr<const EntityTask> prepare_entities(const EntityLabels& settings, const EntityKeys& keys = {}) const;
  // Labels of the options; null if the model's own labels are used.
  const LabelTask* zero_shot() const { return zero_shot_.get(); }
  const GlinerHead* gliner() const { return gliner_.get(); }            // null if the model is none
  const Engine* labels_engine() const { return labels_engine_.get(); }  // null if the model is no bi-encoder
  ThreadPool* host_pool() const;                                        // the threads of a CPU; null on a GPU
  std::optional<Error> why_no_pairs() const;  // the reason it cannot score pairs of texts, if any

  // For batches packed by the caller and for single texts. Thread-safe; destroy both before the engine.
  std::unique_ptr<BulkQueue> bulk(BulkQueue::Collect collect);
  // Texts that would wait longer than `most_seconds` are rejected as busy.
  std::unique_ptr<InteractiveQueue> interactive(InteractiveQueue::Answer answer, double most_seconds,
                                                int64_t most_bytes, Heads heads = Heads::own);
  void prepare_small();  // captures graphs of small batches before the first text; interactive() does it too
  Scheduler& scheduler() { return *scheduler_; }
  void park();
  void load_weights() { scheduler_->load(*host_); }
  bool close_device() { return scheduler_->close_device(); }
  void keep(bool on);
  batch::PackLimits pack_limits() const;  // limits of bulk batches
  // Token limit of interactive batches: the smallest that keeps the device near full throughput, to keep latency low.
  int64_t serving_tokens() const;
  double busy_seconds() const { return busy_seconds_; }  // accumulated device time of score() and entities()

  // CUDA only: measures GEMM algorithms for this plan's shapes and stores the choices; one line per shape class.
  std::vector<std::string> tune(double seconds_per_shape);

  // Scores a few texts on the caller's thread: [texts,width] with windows merged (sequence outputs), or entities per
  // text (token outputs). Texts that fail are added to `errors` and have no result; if `errors` is null, the first
  // error is thrown.
  using TextErrors = std::vector<std::pair<size_t, Error>>;
  std::vector<float> score(const TokenizedTexts& tokens, TextErrors* errors = nullptr);
  std::vector<std::vector<float>> score(std::span<const std::string_view> texts);
  std::vector<std::vector<Entity>> entities(std::span<const std::string_view> texts, const TokenizedTexts& tokens,
                                            TextErrors* errors = nullptr);
  std::vector<std::vector<Entity>> entities(std::span<const std::string_view> texts);

  // Scores of every token of text `t`, [tokens of its encoding, width], from the scores of the windows' tokens, which
  // have the same layout as the ids. Tokens removed by truncation count as outside.
  void token_scores(const TokenizedTexts& texts, size_t t, const text::Encoding& encoding,
                    const std::vector<float>& windows, std::vector<float>& out) const {
    token_scores(texts, t, encoding, windows, labels(), out);
  }
  void token_scores(const TokenizedTexts& texts, size_t t, const text::Encoding& encoding,
                    const std::vector<float>& windows, const std::vector<std::string>& labels,
                    std::vector<float>& out) const;

  // Error for a text whose results contain NaN or infinity, which merging windows or choosing labels can hide.
  std::optional<Error> check_finite(std::span<const float> results) const;
  // Merges the windows of one text: results [windows, row_width] to `out` [width]. Logits become scores unless `raw`;
  // vectors are normalized and truncated according to the model's files.
  void merge_windows(const float* results, size_t windows, float* out, LongText how, bool raw) const;
  // Merges the windows of text `t`, whose results begin at `results`, to `out` [width_of(texts)].
  void merge_text(const TokenizedTexts& texts, size_t t, const float* results, float* out) const;

 private:
  Engine() = default;
  // One row per window, or one row per token at the index of its id
  std::vector<float> run_windows(const TokenizedTexts& texts);
  struct OpenRequest;
  int64_t longest_of(const TextOptions& options) const;
  int64_t window_step(int64_t capacity,
                      const TextOptions& options) const;  // distance between windows of `capacity` tokens
  // Tokens of a batch of this predicted duration, at least the throughput minimum
  int64_t tokens_in(double seconds) const;
  static Scheduler::CapacityProfile plan_within(DeviceQueue& queue, plan::PlanRequest request, bool raw_scores);
  static OpenRequest read_files(const EngineOptions& options);
  model::Output choose_output(const model::ModelShape& shape) const;
  int64_t choose_max_length(const model::ModelShape& shape, int64_t requested) const;
  static std::vector<OpenRequest> read_all(const std::vector<EngineOptions>& options);
  int64_t one_batch(int64_t most_tokens) const;  // approximate tokens of the only batch to come; 0 if several
  static void resolve(OpenRequest& prepared, device::Device& device, int64_t limit_bytes);
  AdapterOfBase adapter_of_base(const plan::PlanRequest& request) const;
  static std::vector<std::unique_ptr<Engine>> open_on(std::shared_ptr<device::Device> device,
                                                      std::vector<OpenRequest> prepared, int64_t limit_bytes,
                                                      plan::Residency residency);
  TokenizedTexts tokenized(std::span<const std::string_view> texts) const;
  void read_sentence_settings();
  void set_labels(const ZeroShot& settings, const plan::PlanRequest& request);
  void read_gliner(plan::PlanRequest& request);
  void load_gliner(plan::PlanRequest& request);
  bool is_bi_encoder() const { return gliner_config_ && !gliner_config_->labels_encoder.empty(); }
  void attach_labels(std::unique_ptr<Engine> labels);
  EntityTask::PreparedLabels encode_labels(const std::vector<std::string>& labels) const;
  // Returns `text` as it is tokenized: prompt prepended and lower-cased if the model's files require it.
  std::string_view sentence_text(std::string_view text, std::string_view prompt, std::string& storage) const;
  int32_t prompt_tokens(std::string_view prompt) const;  // tokens excluded from mean pooling
  EngineOptions options_;
  hub::SentenceSettings sentence_;  // embedding models only
  std::string prompt_;              // prepended to every text
  std::optional<Pooling> pooling_;
  bool pools_on_host_ = false;
  int64_t width_ = 0;  // size of truncated vectors; 0: row_width()
  std::unique_ptr<const GlinerHead> gliner_;
  std::optional<hub::GlinerConfig> gliner_config_;
  std::optional<WordHeadSpec> word_head_;  // if its head runs on a GPU
  std::unique_ptr<Engine> labels_engine_;  // GLiNER bi-encoders: the encoder of labels
  std::unique_ptr<const LabelTask> zero_shot_;
  std::string facts_;                                 // fingerprint of the model files when they were read
  std::optional<model::AdapterRanks> adapter_ranks_;  // set if the encoder's weights can be shared
  hub::HfConfig config_;
  std::vector<std::string> tags_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  plan::Plan plan_;
  std::shared_ptr<Scheduler> scheduler_;  // the device's scheduler; outlives the model on it
  std::unique_ptr<ModelHost> host_;
  std::once_flag small_prepared_;
  std::string precision_reason_;
  std::atomic<double> busy_seconds_{0};
};

}  // namespace brim::engine
