// SPDX-License-Identifier: Apache-2.0
// Scoring for queues, jobs and row streams. Runs off the I/O threads.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "serve/durable/jobs_store.h"
#include "serve/durable/queues.h"
#include "serve/metrics.h"
#include "serve/models.h"
#include "serve/row_scorer.h"

namespace brim::serve {

class BulkScoring final : public QueueScorer {
 public:
  BulkScoring(ModelRegistry& models, Metrics& metrics) : models_(models), metrics_(metrics) {}

  // Scores rows. Reports a model that cannot be loaded, so that its ladder chooses another rung next time.
  // `labels`: from labels_for(); may be null.
  ScoreTexts scorer(const ModelChoice& choice, std::shared_ptr<const ZeroShotLabels> labels = {});
  // The labels of a request, prepared for this model; null without any. Throws bad_model if it is no NLI model.
  static std::shared_ptr<const ZeroShotLabels> labels_for(const ModelChoice& choice,
                                                          const std::optional<ZeroShot>& zero_shot);
  // Pairs per text: zero-shot labels of the call, or else of the model; 0 without any.
  size_t pairs_per_text(const ModelChoice& choice, const ZeroShotLabels* labels) const;
  JobModel job_model(const Job& job);
  // Scores the items of a flush, each with the model that the queue's ladder chooses.
  std::vector<QueueScore> score(const QueueRules& rules, std::span<const QueueItem> items) override;

 private:
  void count(const ModelChoice& choice, size_t texts, int64_t tokens, size_t pairs);
  void score_items(std::span<const QueueItem> items, const std::vector<size_t>& indices,
                   const std::vector<ModelChoice>& choices, std::vector<QueueScore>& scores);

  void score_same(std::span<const QueueItem> items, const std::vector<size_t>& indices,
                  const std::vector<ModelChoice>& choices, const ZeroShotLabels* labels,
                  std::vector<QueueScore>& scores);

  ModelRegistry& models_;
  Metrics& metrics_;
};

}  // namespace brim::serve
