// SPDX-License-Identifier: Apache-2.0
// Scores many texts in one call and returns columns; shared by all kinds of brim::Scorer. Does not handle single
// requests.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string_view>

#include "base/error.h"
#include "brim/brim.h"
#include "engine/engine.h"

namespace brim::engine {

// Whether scoring on the caller's thread is faster, and all results fit into memory at once. `cost`: work and memory
// per text, as of LabelTask.
bool are_few(std::span<const std::string_view> texts, size_t cost = 1);
Error not_utf8();

// Result columns of many texts, filled chunk by chunk.
class Columns {
 public:
  Columns(size_t rows, size_t width, bool labelled, bool tagged) {
    p_.rows = rows;
    p_.width = width;
    p_.scores.assign(rows * width, 0.0f);
    p_.truncated.assign(rows, 0);
    p_.labels.assign(rows, -1);
    if (labelled) p_.label_scores.assign(rows, 0.0f);
    if (tagged) p_.entities.resize(rows);
  }
  Predictions& predictions() { return p_; }
  // Rows from `done` on were not scored.
  Predictions finish(size_t done);

 private:
  Predictions p_;
};

// Scores many texts with `model`; null: with VADER's rules. `prompt`, `zero_shot`: see PipelineOptions.
Predictions score_many(Engine* model, int threads, std::span<const std::string_view> texts,
                       std::span<const std::string_view> pairs, std::stop_token stop,
                       const std::function<void(size_t)>& progress, Columns& columns, bool normalizes = false,
                       std::optional<std::string_view> prompt = {}, const LabelTask* zero_shot = nullptr);

}  // namespace brim::engine
