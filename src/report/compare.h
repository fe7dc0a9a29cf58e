// SPDX-License-Identifier: Apache-2.0
// Models side by side on the same rows: how often each is right, where it errs, how often two agree, whether a
// difference in accuracy is luck, how fast and how large each is, and which one to take by a rule that is stated.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/metrics.h"

namespace brim {

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
  std::optional<ClassificationMetrics> metrics;  // with labels only, like per_class
  std::vector<ClassErrors> per_class;
  std::vector<int32_t> predicted;  // in the common labels
};

struct PairResult {
  size_t a = 0, b = 0;
  double agreement = 0;
  std::optional<McNemar> mcnemar;
};

struct Comparison {
  int64_t rows = 0;
  std::vector<std::string> labels;  // common to all models, as the first one spells them
  std::vector<int32_t> expected;    // empty: the data has no labels
  std::vector<ModelResult> models;
  std::vector<PairResult> pairs;  // every pair, in order
  double max_loss = 0.01;
  size_t recommended = 0;
  std::string rule;                           // why that one
  std::vector<size_t> disagreements() const;  // rows on which not all models say the same
};

// Classes are matched by name, whatever their case; models whose sets of names differ are refused (bad_model) with both
// sets, labels of the data that no model knows too (bad_data). `expected`: one a row, or empty.
Comparison compare_models(const std::vector<ModelRun>& runs, const std::vector<std::string>& expected, double max_loss);

// Throws bad_model, with both sets, unless the two have the same classes, whatever their case and order.
void require_same_classes(const std::string& a, const std::vector<std::string>& labels_of_a, const std::string& b,
                          const std::vector<std::string>& labels_of_b);

// "1%", "0.5 %", "0.01": a share of all rows, 0 … 1. A bare 1 or more is refused: nobody means all of the rows. Throws
// usage.
double parse_share(const std::string& text);

std::string to_text(const Comparison& comparison);
std::string to_json(const Comparison& comparison);

}  // namespace brim
