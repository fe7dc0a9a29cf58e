// SPDX-License-Identifier: Apache-2.0
// Compares models on the same rows: accuracy, errors, pairwise agreement, significance of differences, speed and size,
// and a recommendation by a documented rule.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "monitor/run_record.h"
#include "rows/metrics.h"

namespace brim::jobs {

// The classes of several models, matched by name, ignoring case.
struct MatchedClasses {
  std::vector<std::string> labels;  // union over all models, in the spelling of the first model that has the class
  std::vector<std::vector<int32_t>> of_model;  // index in `labels` of each model's own classes
  std::vector<bool> shared;                    // by label: whether every model has it
  bool same() const;                           // every model has every class
  std::vector<std::string> shared_labels() const;
  // Index of a label of the data. Numbers are accepted only if all models have the same classes; otherwise "1" is
  // neutral for one model and positive for another.
  std::optional<int32_t> find(std::string_view label) const;
};
// Throws bad_model, listing all class sets, if no class is common to all models.
MatchedClasses match_classes(const std::vector<std::string>& names,
                             const std::vector<std::vector<std::string>>& labels_of_model);

// Predictions of one model for every row, and their cost.
struct ModelRun {
  std::string name;
  monitor::RunRecord record;
  std::vector<std::string> labels;  // the model's own names
  std::vector<int32_t> predicted;   // index into `labels`, one per row
  int64_t blank_lines = 0;          // skipped lines of the files
};

struct ClassErrors {
  int64_t support = 0, false_positives = 0, false_negatives = 0;
};

struct ModelResult {
  std::string name;
  monitor::RunRecord record;
  std::optional<rows::ClassificationMetrics> metrics;  // only with labels, like per_class; over all rows
  std::optional<double> shared_accuracy;  // over the rows with a label that every model has; only if classes differ
  std::vector<std::string> unknown;       // classes of other models that this one lacks
  std::vector<ClassErrors> per_class;
  std::vector<int32_t> predicted;  // as indices into the common labels
};

struct PairResult {
  size_t a = 0, b = 0;
  double agreement = 0;
  std::optional<rows::McNemar> mcnemar;
};

struct Comparison {
  int64_t rows = 0, blank_lines = 0;
  std::vector<std::string> labels;  // union over all models, in the spelling of the first model that has the class
  std::vector<std::string> shared;  // labels that every model has
  int64_t shared_rows = 0;          // rows with such a label
  std::vector<int32_t> expected;    // empty if the data has no labels
  std::vector<ModelResult> models;
  std::vector<PairResult> pairs;  // every pair, in order
  double max_loss = 0.01;
  size_t recommended = 0;
  std::string rule;                           // reason for the recommendation
  std::vector<size_t> disagreements() const;  // rows with different predictions
};

// A label that a model lacks counts as an error of that model. Throws bad_model with the class sets if models have no
// common class, bad_data for labels that no model has. `expected`: one per row, or empty.
Comparison compare_models(const std::vector<ModelRun>& runs, const std::vector<std::string>& expected, double max_loss);

// Parses "1%", "0.5 %" or "0.01" as a share of all rows, 0 … 1. Rejects a bare number of 1 or more, which would mean
// all rows. Throws usage.
double parse_share(const std::string& text);

std::string to_text(const Comparison& comparison);
std::string to_json(const Comparison& comparison);

}  // namespace brim::jobs
