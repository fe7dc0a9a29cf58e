// SPDX-License-Identifier: Apache-2.0
#include "serve/bulk.h"

#include <fmt/format.h>

#include <atomic>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "base/error.h"
#include "serve/answers.h"

namespace brim::serve {
namespace {

// Texts of one call that are scored but not counted yet, for rates: blocks of a job take long.
class RunningTexts {
 public:
  explicit RunningTexts(std::atomic<size_t>& total) : total_(total) {}
  ~RunningTexts() { total_ -= own_; }
  RunningTexts(const RunningTexts&) = delete;
  RunningTexts& operator=(const RunningTexts&) = delete;
  void set(size_t done) { total_ += done - std::exchange(own_, done); }

 private:
  std::atomic<size_t>& total_;
  size_t own_ = 0;
};

QueueScore queue_score(const ServedModel& model, const Predictions& scored, size_t row, const ZeroShotLabels* labels) {
  QueueScore score;
  score.model = model.name;
  if (model.scorer->kind() == ModelKind::tagger) {
    score.entities = scored.entities[row];
    return score;
  }
  if (scored.labels[row] < 0) return score;
  const std::vector<std::string>& names = labels != nullptr ? labels->labels() : model.scorer->labels();
  score.label = names[static_cast<size_t>(scored.labels[row])];
  score.score = scored.label_scores[row];
  if (labels != nullptr) return score;
  const std::span row_scores(&scored.scores[row * scored.width], scored.width);
  if (const auto compound = compound_of(*model.scorer, row_scores)) score.compound = *compound;
  return score;
}

}  // namespace

std::shared_ptr<const ZeroShotLabels> BulkScoring::labels_for(const ModelChoice& choice,
                                                              const std::optional<ZeroShot>& zero_shot) {
  return zero_shot ? choice.served->scorer->prepare_labels(*zero_shot) : nullptr;
}

ScoreTexts BulkScoring::scorer(const ModelChoice& choice, std::shared_ptr<const ZeroShotLabels> labels) {
  return [this, choice, labels](Texts texts, Texts pairs, std::stop_token stop) {
    RunningTexts running(models_.running_texts(choice.model));
    try {
      Scorer& scorer = *choice.served->scorer;
      const auto progress = [&running](size_t done) { running.set(done); };
      Predictions p = labels ? scorer.classify(texts, *labels, std::move(stop), progress)
                             : score_texts(scorer, texts, pairs, std::move(stop), progress);
      const size_t scored = texts.size() - p.errors.size();
      count(choice, scored, p.tokens, scored * pairs_per_text(choice, labels.get()));
      return p;
    } catch (const Error& error) {
      models_.note_if_not_loaded(*choice.served, error);
      throw;
    }
  };
}

size_t BulkScoring::pairs_per_text(const ModelChoice& choice, const ZeroShotLabels* labels) const {
  return labels != nullptr ? labels->labels().size() : models_.label_cost(choice.model).labels;
}

void BulkScoring::count(const ModelChoice& choice, size_t texts, int64_t tokens, size_t pairs) {
  const auto model = static_cast<size_t>(choice.model);
  metrics_.count_off_thread([&](Counts& c) {
    c.texts[model][1][static_cast<size_t>(reason_of(choice.reason))] += texts;
    c.tokens[model] += static_cast<uint64_t>(tokens);
    c.pairs[model] += pairs;
  });
}

JobModel BulkScoring::job_model(const Job& job) {
  ModelChoice choice = models_.choose_for_bulk(job.model.empty() ? job.request.model : job.model, "");
  if (!job.model.empty()) {  // keep the reason of the original choice
    choice.reason = reason_name(reason_of(job.reason));
    choice.instead_of = job.instead_of;
  }
  const ServedModel& model = *choice.served;
  const auto labels = labels_for(choice, job.request.zero_shot);
  return {model.name,
          fmt::format("{} {}", model.id, model.revision),
          {},
          model.scorer,
          scorer(choice, labels),
          choice.reason,
          choice.instead_of,
          labels};
}

// Items of a rung that cannot be loaded move to the next one.
std::vector<QueueScore> BulkScoring::score(const QueueRules& rules, std::span<const QueueItem> items) {
  std::vector<QueueScore> scores(items.size());
  std::vector<ModelChoice> choices(items.size());
  std::vector<size_t> left(items.size());
  std::iota(left.begin(), left.end(), size_t{0});
  std::map<int, Error> failed;  // by model, so that none is tried twice
  while (!left.empty()) {
    std::map<int, std::vector<size_t>> by_model;
    // By source; choosing again could wait for a model that this thread holds.
    std::map<std::string, ModelChoice> chosen;
    for (const size_t i : left) {
      try {
        auto [choice, first] = chosen.try_emplace(items[i].source);
        if (first) choice->second = models_.choose_for_bulk(rules.model, items[i].source);
        choices[i] = choice->second;
        if (const auto previous = failed.find(choices[i].model); previous != failed.end()) throw previous->second;
      } catch (const Error& error) {
        fail(error.code(), "queue {}: {}", rules.name, error.what());
      }
      by_model[choices[i].model].push_back(i);
    }
    left.clear();
    for (const auto& [model, indices] : by_model) {
      try {
        score_items(items, indices, choices, scores);
      } catch (const Error& error) {
        if (!models_.note_if_not_loaded(*choices[indices[0]].served, error)) throw;
        failed.emplace(model, error);
        left.insert(left.end(), indices.begin(), indices.end());
      }
    }
  }
  return scores;
}

// Scores items of one model, those with the same labels together.
void BulkScoring::score_items(std::span<const QueueItem> items, const std::vector<size_t>& indices,
                              const std::vector<ModelChoice>& choices, std::vector<QueueScore>& scores) {
  std::map<std::string, std::vector<size_t>> by_labels;
  for (const size_t i : indices) by_labels[labels_text(items[i])].push_back(i);
  for (const auto& [labels, same] : by_labels) {
    const ModelChoice& choice = choices[same[0]];
    std::shared_ptr<const ZeroShotLabels> prepared;
    try {
      prepared = labels_for(choice, items[same[0]].zero_shot);
    } catch (const Error& error) {  // retrying cannot help
      if (error.code() != ErrorCode::bad_model && error.code() != ErrorCode::usage) throw;
      for (const size_t i : same) scores[i] = {.model = choice.served->name, .error = error.what()};
      continue;
    }
    score_same(items, same, choices, prepared.get(), scores);
  }
}

void BulkScoring::score_same(std::span<const QueueItem> items, const std::vector<size_t>& indices,
                             const std::vector<ModelChoice>& choices, const ZeroShotLabels* labels,
                             std::vector<QueueScore>& scores) {
  const ServedModel& served = *choices[indices[0]].served;
  std::vector<std::string_view> texts;
  for (const size_t i : indices) texts.push_back(items[i].text);
  const Predictions scored = labels != nullptr ? served.scorer->classify(texts, *labels) : served.scorer->score(texts);
  for (size_t row = 0; row < texts.size(); ++row) {
    QueueScore& score = scores[indices[row]] = queue_score(served, scored, row, labels);
    score.reason = choices[indices[row]].reason;
    score.instead_of = choices[indices[row]].instead_of;
  }
  for (const auto& [row, error] : scored.errors) scores[indices[row]].error = error.what();
  scores[indices[0]].tokens = scored.tokens;
  count(choices[indices[0]], 0, scored.tokens, 0);
  for (const size_t i : indices) {
    if (!scores[i].error.empty()) continue;
    scores[i].pairs = pairs_per_text(choices[i], labels);
    count(choices[i], 1, 0, scores[i].pairs);
  }
}

}  // namespace brim::serve
