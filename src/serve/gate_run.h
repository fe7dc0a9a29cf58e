// SPDX-License-Identifier: Apache-2.0
// Measures a ladder's rungs on its gate's rows and reports what they lose. What was measured before with the same
// models and rows is read from a file instead.
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
  // What it says about each text, as a place among its labels; -1: nothing.
  std::function<std::vector<int32_t>(std::span<const std::string_view> texts, std::stop_token stop)> label_of;
};
// Throws bad_model where the scorer gives no labels.
GateModel gate_model(const std::shared_ptr<Scorer>& scorer, const std::string& name, const std::string& identity);
using GateModels = std::function<GateModel(const std::string& name)>;  // throws bad_model

// `cache`: the file (empty: none); it is made, or made anew where it cannot be read. Returns sentences about rungs that
// could not be measured; throws bad_data or usage for rows that cannot be read. Without gate data nothing is done.
std::vector<std::string> measure_gate(Ladder& ladder, const GateModels& models, const std::filesystem::path& cache,
                                      std::stop_token stop = {});

}  // namespace brim::serve
