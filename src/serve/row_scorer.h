// SPDX-License-Identifier: Apache-2.0
// Rows of a file or a stream in, the same rows with their scores out, as bytes: for jobs and for /score.
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
#include "rows/row_reader.h"
#include "rows/row_writer.h"

namespace brim::serve {

// Of a row of a stream or a job; a file with a longer one ends there with an error.
constexpr size_t kLongestRow = size_t{16} << 20;

struct RowPlace {
  const rows::RowChunk* chunk;
  size_t row;
};

// Texts, or pairs where there are any, as bulk work; whoever gives it sees what was scored and what failed.
using Texts = std::span<const std::string_view>;
using ScoreTexts = std::function<Predictions(Texts texts, Texts pairs, std::stop_token stop)>;
Predictions score_texts(Scorer& scorer, Texts texts, Texts pairs, std::stop_token stop);

class RowScorer {
 public:
  RowScorer(const Scorer& scorer, ScoreTexts score, rows::RowWriter& writer, bool all_scores)
      : scorer_(scorer), score_(std::move(score)), writer_(writer), all_scores_(all_scores) {}

  // What is added to rows. Throws bad_model where the model gives vectors.
  static rows::ResultColumns columns(const Scorer& scorer, bool all_scores, const std::string& model);

  // Adds the rows to `bytes` and counts them; one that cannot be scored has empty fields. Nothing: stopped. Throws
  // bad_data where few bytes were decompressed to very many or a row is too long, and what a model says that takes no
  // pairs.
  struct Done {
    int64_t good = 0, bad = 0, tokens = 0;
  };
  std::optional<Done> operator()(std::span<const RowPlace> rows, std::string& bytes, std::stop_token stop);

 private:
  void put(std::string& bytes, const RowPlace& place, const Predictions& p, size_t at);

  const Scorer& scorer_;
  const ScoreTexts score_;
  rows::RowWriter& writer_;
  const bool all_scores_;
  std::vector<std::string_view> texts_, pairs_;
  std::vector<rows::EntitySpan> spans_;
};

}  // namespace brim::serve
