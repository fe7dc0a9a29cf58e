// SPDX-License-Identifier: Apache-2.0
// Runs several models over the same rows, one after another without sharing the machine. The comparison itself is in
// jobs/compare.h.
#pragma once
#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "brim/brim.h"
#include "jobs/compare.h"
#include "rows/row_reader.h"

namespace brim::jobs {

struct ComparedModel {
  std::string name;
  ScorerOptions options;  // with the model's directory, or "vader"
};

struct CompareSpec {
  std::vector<ComparedModel> models;
  std::vector<std::string> data;                       // files that can be read several times
  std::string text_column, pair_column, label_column;  // empty label: `label`, if the data has it
  std::string format = "auto";
  double max_loss = 0.01;
  std::function<void(const std::string& model, double done, double total, const std::string& text)> progress;
  const std::atomic<bool>* stop = nullptr;
};

// Checks all models before the first one runs, which may take an hour.
Comparison run_comparison(const CompareSpec& spec);

// One JSON object per row on which the models differ: position, text, label and each model's result.
std::string disagreeing_rows(const CompareSpec& spec, const Comparison& comparison);

}  // namespace brim::jobs
