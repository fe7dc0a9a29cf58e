// SPDX-License-Identifier: Apache-2.0
// The accuracy gate: compares a smaller model with a better one on labelled rows and decides whether its loss is
// acceptable for automatic use. It does not affect models that a request names; their loss is only reported. Figures
// come from `compare_models`.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "jobs/compare.h"

namespace brim::serve {

struct GateLimits {
  double max_loss = 0.02;       // largest loss of macro recall
  double min_agreement = 0.88;  // share of rows with the same label
};

// Only over the rows whose class the rung has, so a two-class model is not judged on a third class.
struct GateFigures {
  int64_t rows = 0;
  double known_share = 1;  // share of all rows
  double agreement = 0;
  std::optional<double> macro_recall, against_recall;  // empty without labels
  std::optional<double> p_value;                       // McNemar's test
  std::vector<std::pair<std::string, jobs::ClassErrors>> per_class;
  std::optional<double> loss() const;
};

enum class Verdict : uint8_t { not_measured, passed, refused };
const char* verdict_name(Verdict verdict);

struct GateResult {
  Verdict verdict = Verdict::not_measured;
  std::string why;  // "loses 3.1 points of macro recall against finbert, at most 2.0 allowed"
  std::optional<GateFigures> figures;
};

// `rung` and `against` are indices into `comparison.models`.
GateFigures gate_figures(const jobs::Comparison& comparison, size_t rung, size_t against);
GateResult judge(const std::optional<GateFigures>& figures, const GateLimits& limits, const std::string& against);

}  // namespace brim::serve
