// SPDX-License-Identifier: Apache-2.0
// The rows of a training run: both sets, tokenized or from the token cache, and what is derived from them.
#pragma once
#include <string>
#include <vector>

#include "train/task_spec.h"

namespace brim::train {

struct TrainData {
  TrainSet train_set, validation_set;
  int64_t unlabelled = 0;            // training rows with teacher targets only
  bool tokens_cached = false;        // the training rows came from the token cache
  std::string data_hash;             // hash of tokens and labels of both sets
  std::vector<float> class_weights;  // empty: none
};

// Throws bad_data with file and line for bad rows.
TrainData read_train_data(const TaskSpec& spec);

// Notes on suspicious classes, skipped rows and truncated texts, for display.
std::vector<std::string> notes_on_data(const TaskSpec& spec, const TrainData& data);

}  // namespace brim::train
