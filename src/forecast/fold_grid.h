// SPDX-License-Identifier: Apache-2.0
// Cutoffs of a rolling run and the data visible to each fold. Cutoffs are steps of the frequency, not row numbers, so
// that series of different lengths agree on time. Pure functions: the same options give the same grid.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace brim::forecast {

struct FoldGridOptions {
  int64_t horizon = 1;
  int64_t folds = 1;
  int64_t step = 1;                    // between cutoffs
  int64_t refit = 1;                   // folds between trainings
  int64_t window = 0;                  // training steps before the cutoff; 0: all
  int64_t gap = 0;                     // steps before the cutoff that are input but not training targets
  std::optional<int64_t> last_cutoff;  // default: the last one with a full horizon of actual values
};

struct Fold {
  int64_t index = 0;
  int64_t cutoff = 0;  // last known step; forecasts cover cutoff + 1 … cutoff + horizon
  int64_t train_from = std::numeric_limits<int64_t>::min();  // training targets lie in train_from … train_to
  int64_t train_to = 0;
  int64_t trained_at = 0;  // fold whose training is used: this one, or the latest refitted one before it
};

// `first_step` and `last_step` span all series. Throws bad_data if that is too short for the first cutoff.
std::vector<Fold> fold_grid(const FoldGridOptions& options, int64_t first_step, int64_t last_step);

// A fold applied to one series, as indices into its values.
struct FoldCut {
  int64_t train_begin = 0, train_end = 0;    // training targets
  int64_t known_end = 0;                     // end of the forecast input
  int64_t actual_begin = 0, actual_end = 0;  // actual values; empty if the series ended before
};
FoldCut cut_series(const Fold& fold, int64_t horizon, int64_t first_step, int64_t length);

}  // namespace brim::forecast
