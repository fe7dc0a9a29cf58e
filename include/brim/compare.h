// SPDX-License-Identifier: Apache-2.0
// Compares classifiers on the same rows: accuracy, agreement, speed and memory. Like `brim compare`.
#pragma once
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "brim/options.h"

namespace brim {

struct CompareOptions {
  std::vector<ScorerOptions> models;  // two or more; `model` is also the name
  std::vector<std::string> data;      // files of rows: txt, csv, tsv, jsonl; also .gz and .zst
  std::string text_column;            // empty: text, else the only one
  std::string label_column;           // empty: label, if the data has it
  double max_loss = 0.01;             // accuracy that a recommended faster model may lose
};

struct ComparedScores {
  std::string name;
  std::optional<double> accuracy;  // only with labels
  double rows_per_second = 0, load_seconds = 0;
  int64_t planned_bytes = 0;
};

struct CompareReport {
  int64_t rows = 0;
  std::vector<ComparedScores> models;
  std::string recommended;  // empty without labels
  std::string json;         // all values, as printed by `brim compare --json`
};

BRIM_API CompareReport compare_models(const CompareOptions& options, std::stop_token stop = {});

}  // namespace brim
