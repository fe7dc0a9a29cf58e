// SPDX-License-Identifier: Apache-2.0
// The accuracy gate: what a smaller model loses against a better one on labelled rows, and whether that is little
// enough for Brim to choose it by itself. A model that somebody named is used whatever the gate says; its loss is
// reported. Figures come from `compare_models`; until there are any, nothing is claimed.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "jobs/compare.h"

namespace brim::serve {

struct GateLimits {
  double max_loss = 0.02;       // of macro recall
  double min_agreement = 0.88;  // share of rows with the same label
};

// Over the rows whose class the rung has: a model of two classes is not asked about the third.
struct GateFigures {
  int64_t rows = 0;
  double known_share = 1;  // of all rows
  double agreement = 0;
  std::optional<double> macro_recall, against_recall;  // without labels: none
  std::optional<double> p_value;                       // of McNemar's test: whether a difference may be chance
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

// `rung` and `against` are places in `comparison.models`.
GateFigures gate_figures(const jobs::Comparison& comparison, size_t rung, size_t against);
GateResult judge(const std::optional<GateFigures>& figures, const GateLimits& limits, const std::string& against);

}  // namespace brim::serve
