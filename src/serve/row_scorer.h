// SPDX-License-Identifier: Apache-2.0
// Scores rows of a file or stream and writes them with their scores, for jobs and for /score.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "brim/brim.h"
#include "jobs/score_file.h"
#include "rows/row_reader.h"

namespace brim::serve {

// Maximum size of a row in a stream or job; a longer row is an error that ends the input.
constexpr size_t kLongestRow = size_t{16} << 20;

struct RowRef {
  const rows::RowChunk* chunk;
  size_t row;
};

// Scores texts, or pairs if `pairs` is not empty, as bulk work.
using Texts = std::span<const std::string_view>;
using ScoreTexts = std::function<Predictions(Texts texts, Texts pairs, std::stop_token stop)>;
Predictions score_texts(Scorer& scorer, Texts texts, Texts pairs, std::stop_token stop,
                        const std::function<void(size_t rows_done)>& progress = {});

class RowScorer {
 public:
  // `rows`: of the single model that computes `score`.
  RowScorer(ScoreTexts score, jobs::ScoredRows& rows) : score_(std::move(score)), rows_(rows) {}

  // Appends the rows to `bytes` and counts them; a row that cannot be scored gets empty fields. Returns nothing if
  // stopped. Throws bad_data for an implausible compression ratio or an overlong row, and the model's error if it
  // cannot score pairs.
  struct Done {
    int64_t good = 0, bad = 0, tokens = 0;
  };
  std::optional<Done> operator()(std::span<const RowRef> rows, std::string& bytes, std::stop_token stop);

 private:
  void put(std::string& bytes, const RowRef& ref, const Predictions& p, size_t index);

  const ScoreTexts score_;
  jobs::ScoredRows& rows_;
  std::vector<std::string_view> texts_, pairs_;
};

// Throws bad_model for embedding models; `model` is the name for the message.
void require_labels(const Scorer& scorer, const std::string& model);

}  // namespace brim::serve
