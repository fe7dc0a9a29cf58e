// SPDX-License-Identifier: Apache-2.0
#include "serve/gate.h"

#include <fmt/format.h>

#include <algorithm>

#include "rows/metrics.h"

namespace brim::serve {

const char* verdict_name(Verdict verdict) {
  return verdict == Verdict::passed ? "passed" : verdict == Verdict::refused ? "refused" : "not measured";
}

std::optional<double> GateFigures::loss() const {
  if (!macro_recall || !against_recall) return std::nullopt;
  return *against_recall - *macro_recall;
}

GateFigures gate_figures(const jobs::Comparison& comparison, size_t rung, size_t against) {
  const jobs::ModelResult& model = comparison.models.at(rung);
  const jobs::ModelResult& other = comparison.models.at(against);
  const auto known = [&](int32_t label) {
    const std::string& name = comparison.labels[static_cast<size_t>(label)];
    return std::find(model.unknown.begin(), model.unknown.end(), name) == model.unknown.end();
  };
  const bool labelled = !comparison.expected.empty();
  std::vector<int32_t> expected, ours, theirs;
  for (size_t row = 0; row < model.predicted.size(); ++row) {
    if (labelled && !known(comparison.expected[row])) continue;
    if (labelled) expected.push_back(comparison.expected[row]);
    ours.push_back(model.predicted[row]);
    theirs.push_back(other.predicted[row]);
  }
  GateFigures figures;
  figures.rows = static_cast<int64_t>(ours.size());
  figures.known_share =
      model.predicted.empty() ? 0 : static_cast<double>(ours.size()) / static_cast<double>(model.predicted.size());
  if (ours.empty()) return figures;
  figures.agreement = rows::agreement(ours, theirs);
  if (!labelled) return figures;
  // The mean over the classes in the data: a class that only one model predicts must not change the other's mean.
  const auto recall = [&](const std::vector<int32_t>& predicted) {
    const auto metrics =
        rows::classification_metrics(expected, predicted, static_cast<int32_t>(comparison.labels.size()));
    double sum = 0;
    int classes = 0;
    for (const rows::ClassScore& score : metrics.per_class) {
      if (score.support == 0) continue;
      sum += score.recall;
      ++classes;
    }
    return classes == 0 ? 0 : sum / classes;
  };
  figures.macro_recall = recall(ours);
  figures.against_recall = recall(theirs);
  figures.p_value = rows::mcnemar(expected, ours, theirs).p_value;
  for (size_t label = 0; label < comparison.labels.size(); ++label) {
    jobs::ClassErrors errors;
    const auto is = static_cast<int32_t>(label);
    for (size_t row = 0; row < expected.size(); ++row) {
      errors.support += expected[row] == is ? 1 : 0;
      errors.false_positives += expected[row] != is && ours[row] == is ? 1 : 0;
      errors.false_negatives += expected[row] == is && ours[row] != is ? 1 : 0;
    }
    if (known(is)) figures.per_class.emplace_back(comparison.labels[label], errors);
  }
  return figures;
}

GateResult judge(const std::optional<GateFigures>& figures, const GateLimits& limits, const std::string& against) {
  GateResult result;
  result.figures = figures;
  if (!figures || figures->rows == 0) {
    result.why = figures ? "not measured: no rows to compare" : "not measured";
    return result;
  }
  const std::optional<double> loss = figures->loss();
  if (loss && *loss > limits.max_loss) {
    result.verdict = Verdict::refused;
    result.why = fmt::format("loses {:.1f} points of macro recall against {}, at most {:.1f} allowed", *loss * 100,
                             against, limits.max_loss * 100);
  } else if (figures->agreement < limits.min_agreement) {
    result.verdict = Verdict::refused;
    result.why = fmt::format("agrees with {} on {:.1f} % of rows, at least {:.1f} % required", against,
                             figures->agreement * 100, limits.min_agreement * 100);
  } else {
    result.verdict = Verdict::passed;
    const std::string lost = loss ? fmt::format("{:.1f} points of macro recall lost, ", *loss * 100) : "";
    result.why = fmt::format("{}{:.1f} % agreement with {}", lost, figures->agreement * 100, against);
  }
  result.why +=
      fmt::format(" ({} rows{})", figures->rows,
                  figures->known_share < 1
                      ? fmt::format(", the {:.0f} % of the data with classes of this model", figures->known_share * 100)
                      : "");
  return result;
}

}  // namespace brim::serve
