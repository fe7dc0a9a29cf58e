// SPDX-License-Identifier: Apache-2.0
// A model that scores texts: open it, submit texts from any thread, or score many at once.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "brim/load.h"
#include "brim/options.h"
#include "brim/request.h"
#include "brim/result.h"

namespace brim {

enum class ModelKind : uint8_t { classifier, tagger, embedder, rules };

// Loading, waiting work and memory: PooledModel.
class BRIM_API Scorer : public PooledModel {
 public:
  static std::shared_ptr<Scorer> open(const ScorerOptions& options);
  [[deprecated("use brim/pool.h")]] static std::vector<std::shared_ptr<Scorer>> open_together(
      std::span<const ScorerOptions> options);
  [[deprecated("use brim/pool.h")]] static std::shared_ptr<Scorer> open_beside(const Scorer& other,
                                                                               const ScorerOptions& options,
                                                                               bool other_stays = false);
  [[deprecated("use brim/pool.h")]] static MemoryPlan plan_together(std::span<const std::shared_ptr<Scorer>> scorers);
  ~Scorer() override;  // closes; must not run within Completion::done

  virtual ModelKind kind() const = 0;
  virtual std::string model() const;               // its directory, or vader
  virtual bool multi_label() const;                // scores of labels are independent of each other
  virtual std::optional<Pooling> pooling() const;  // embedding models only; never automatic
  virtual const std::vector<std::string>& labels() const = 0;
  virtual const std::vector<std::string>& score_names() const = 0;
  virtual std::string device() const = 0;        // "NVIDIA H200", "cpu (neon, 2 threads)"
  virtual std::string pci_bus_id() const;        // "0000:65:00.0", the same in all tools; empty if not a GPU or unknown
  virtual std::string precision() const = 0;     // "bf16"; "exact" for rules
  virtual std::string precision_reason() const;  // why it was chosen; empty if it was requested, and for rules
  virtual int64_t max_length() const = 0;        // tokens per text; 0: unlimited
  virtual std::vector<TextToken> tokenize(std::string_view text) const = 0;  // the whole text; empty for rules
  // Converts ids to text. Throws usage for rules, bad_model for tokenizers without decoding.
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  // Thread-safe. Tokenizes before it returns. Texts of one call run together if the device is idle, else in batches
  // with other waiting texts. `completion` must outlive its last answer.
  virtual void submit(std::span<const Request> requests, Completion& completion) = 0;
  void submit(const Request& request, Completion& completion) { submit({&request, 1}, completion); }
  std::future<Prediction> submit(const Request& request);

  // Scores many texts with the throughput of a file. Batches, and therefore the results, depend only on the texts. A
  // text that cannot be scored has an error and does not affect others. `stop` ends the call early.
  virtual Predictions score(std::span<const std::string_view> texts, std::stop_token stop = {},
                            const std::function<void(size_t rows_done)>& progress = {}) = 0;

  virtual std::optional<Error> why_no_pairs() const;  // the reason it cannot score pairs, if any
  // Same for pairs: text i with second text i. Models without pair support reject every row.
  virtual Predictions score_pairs(std::span<const std::string_view> texts, std::span<const std::string_view> pairs,
                                  std::stop_token stop = {},
                                  const std::function<void(size_t rows_done)>& progress = {});

  // Checks and tokenizes labels for Request::zero_shot and classify(). Throws usage if they are invalid or if the
  // scorer was opened without raw_scores, bad_model if the model is no NLI model. Errors name the settings
  // candidate_labels and hypothesis_template. The result must not be used after the scorer is destroyed.
  virtual std::shared_ptr<const ZeroShotLabels> prepare_labels(const ZeroShot& labels) const;
  virtual bool finds_entities_by_label() const;  // GLiNER
  // Same for the entities of a GLiNER model. Throws usage for other models and invalid labels; errors name the settings
  // labels and threshold.
  virtual std::shared_ptr<const ZeroShotLabels> prepare_entities(const EntityLabels& entities) const;
  // score() by these labels: the columns are theirs, or the entities are.
  virtual Predictions classify(std::span<const std::string_view> texts, const ZeroShotLabels& labels,
                               std::stop_token stop = {}, const std::function<void(size_t rows_done)>& progress = {});

  // score() for an embedding model with `prompt` before each text instead of the model's default prompt.
  virtual Predictions embed(std::span<const std::string_view> texts, std::string_view prompt, std::stop_token stop = {},
                            const std::function<void(size_t rows_done)>& progress = {});
  // Same for pairs: `prompt` is prepended to the first text of each pair.
  virtual Predictions embed_pairs(std::span<const std::string_view> texts, std::span<const std::string_view> pairs,
                                  std::string_view prompt, std::stop_token stop = {},
                                  const std::function<void(size_t rows_done)>& progress = {});

  // Cancels texts that are not started and waits for the rest. Texts submitted later are cancelled.
  virtual void close() = 0;
};

}  // namespace brim
