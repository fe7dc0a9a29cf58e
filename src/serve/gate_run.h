// SPDX-License-Identifier: Apache-2.0
// Measures the accuracy loss of a ladder's rungs on its gate's rows. Caches results in a file.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "brim/brim.h"
#include "serve/ladder.h"

namespace brim::serve {

struct GateModel {
  std::string identity;  // changes with the weights
  std::vector<std::string> labels;
  // Predicted label of each text as an index into `labels`; -1: none.
  std::function<std::vector<int32_t>(std::span<const std::string_view> texts, std::stop_token stop)> label_of;
};
// Throws bad_model if the scorer is not a classifier.
GateModel gate_model(const std::shared_ptr<Scorer>& scorer, const std::string& name, const std::string& identity);
using GateModels = std::function<GateModel(const std::string& name)>;  // throws bad_model

// `cache`: file of earlier results (empty: none), created or replaced if missing or unreadable. Returns a message for
// every rung that could not be measured; throws bad_data or usage for unreadable rows. Does nothing without gate data.
std::vector<std::string> measure_gate(Ladder& ladder, const GateModels& models, const std::filesystem::path& cache,
                                      std::stop_token stop = {});

}  // namespace brim::serve
