// SPDX-License-Identifier: Apache-2.0
// Models side by side on the same rows: how often each is right, where it errs, how often two agree, whether a
// difference in accuracy is significant, how fast and how large each is, and which one to take by a rule that is
// stated.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rows/metrics.h"

namespace brim::jobs {

// The classes of several models, matched by name whatever their case.
struct MatchedClasses {
  std::vector<std::string> labels;             // of all models, as the first that has one spells it
  std::vector<std::vector<int32_t>> of_model;  // where each model's own classes stand among them
  std::vector<bool> shared;                    // by label: every model has it
  bool same() const;                           // every model has every class
  std::vector<std::string> shared_labels() const;
  // A label of the data. Numbers are understood only where the models have the same classes: else "1" is neutral to
  // one and positive to another.
  std::optional<int32_t> find(std::string_view label) const;
};
// Throws bad_model, with all sets, where there is no class that every model has.
MatchedClasses match_classes(const std::vector<std::string>& names,
                             const std::vector<std::vector<std::string>>& labels_of_model);

// What one model said about every row, and what that took.
struct ModelRun {
  std::string name, device, precision;
  std::vector<std::string> labels;  // the model's own names
  std::vector<int32_t> predicted;   // among them, one a row
  double load_seconds = 0, seconds = 0;
  double rows_per_second = 0, tokens_per_second = 0;  // tokens 0: it has none
  int64_t planned_bytes = -1, held_bytes = -1;        // negative: unknown
};

struct ClassErrors {
  int64_t support = 0, false_positives = 0, false_negatives = 0;
};

struct ModelResult {
  std::string name, device, precision;
  double rows_per_second = 0, tokens_per_second = 0, load_seconds = 0;
  int64_t planned_bytes = -1, held_bytes = -1;
  std::optional<rows::ClassificationMetrics> metrics;  // with labels only, like per_class; over all rows
  std::optional<double> shared_accuracy;  // over the rows whose label every model has; where classes differ
  std::vector<std::string> unknown;       // classes of other models that this one does not have
  std::vector<ClassErrors> per_class;
  std::vector<int32_t> predicted;  // in the common labels
};

struct PairResult {
  size_t a = 0, b = 0;
  double agreement = 0;
  std::optional<rows::McNemar> mcnemar;
};

struct Comparison {
  int64_t rows = 0;
  std::vector<std::string> labels;  // of all models, as the first that has one spells it
  std::vector<std::string> shared;  // those that every model has
  int64_t shared_rows = 0;          // rows with such a label
  std::vector<int32_t> expected;    // empty: the data has no labels
  std::vector<ModelResult> models;
  std::vector<PairResult> pairs;  // every pair, in order
  double max_loss = 0.01;
  size_t recommended = 0;
  std::string rule;                           // why that one
  std::vector<size_t> disagreements() const;  // rows on which not all models say the same
};

// A row whose label a model does not have is a wrong answer of that model. Models without a class in common are refused
// (bad_model) with their sets, labels of the data that no model has too (bad_data). `expected`: one a row, or empty.
Comparison compare_models(const std::vector<ModelRun>& runs, const std::vector<std::string>& expected, double max_loss);

// "1%", "0.5 %", "0.01": a share of all rows, 0 … 1. A bare 1 or more is refused: nobody means all of the rows. Throws
// usage.
double parse_share(const std::string& text);

std::string to_text(const Comparison& comparison);
std::string to_json(const Comparison& comparison);

}  // namespace brim::jobs
