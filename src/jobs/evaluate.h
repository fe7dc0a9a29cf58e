// SPDX-License-Identifier: Apache-2.0
// Evaluates a model on labelled data, using the same pipeline as scoring.
#pragma once
#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "brim/brim.h"
#include "rows/labels.h"
#include "rows/metrics.h"

namespace brim::jobs {

struct EvalRequest {
  std::vector<std::string> inputs;
  std::string format = "auto", text_column, pair_column;
  char delimiter = 0;  // delimiter and quotes: see RowReaderOptions
  bool quotes = true;
  std::vector<std::string> label_columns = {"label"};  // several columns: 0 or 1 each, for multi-label models
  const std::atomic<bool>* stop = nullptr;
  std::function<void(int64_t rows)> progress;
};

struct Evaluation {
  int64_t rows = 0, skipped = 0;
  int64_t blank_lines = 0;  // skipped lines of csv, tsv and jsonl files; not rows
  std::string precision;
  std::vector<std::string> labels;
  std::vector<int32_t> expected,
      predicted;  // class per row, or per word of token models; multi-label: 0 or 1 per row and class
  bool multi_label = false;
  rows::ClassificationMetrics classes;             // sequence models
  std::optional<rows::EntityMetrics> entities;     // token models
  std::optional<rows::RegressionMetrics> numbers;  // models with one output value; no classes then
  double token_accuracy = 0;
};

// Throws bad_data for labels unknown to the model.
Evaluation evaluate(Scorer& model, const EvalRequest& request);

}  // namespace brim::jobs
