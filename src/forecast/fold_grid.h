// SPDX-License-Identifier: Apache-2.0
// The cutoffs of a rolling run and what each fold may see. Cutoffs are steps of the frequency, not rows, so that series
// of different lengths agree on what was known when. Pure: the same options give the same grid.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace brim::forecast {

struct FoldGridOptions {
  int64_t horizon = 1;
  int64_t folds = 1;
  int64_t step = 1;                    // from one cutoff to the next
  int64_t refit = 1;                   // folds from one training to the next
  int64_t window = 0;                  // steps before the cutoff that are learned from; 0: all there are
  int64_t gap = 0;                     // steps before the cutoff that are not learned from; they are input all the same
  std::optional<int64_t> last_cutoff;  // none: the last that leaves a whole horizon to measure
};

struct Fold {
  int64_t index = 0;
  int64_t cutoff = 0;  // the last step that is known; forecasts are for cutoff + 1 … cutoff + horizon
  int64_t train_from = std::numeric_limits<int64_t>::min();  // targets of training lie in train_from … train_to
  int64_t train_to = 0;
  int64_t trained_at = 0;  // the fold whose training it uses: itself, or the newest before it that was refitted
};

// `first_step` and `last_step` are where the series begin and end, all of them together. Throws bad_data where they are
// too short for the first cutoff.
std::vector<Fold> fold_grid(const FoldGridOptions& options, int64_t first_step, int64_t last_step);

// A series under a fold, as places in its values.
struct FoldCut {
  int64_t train_begin = 0, train_end = 0;    // what may be learned from
  int64_t known_end = 0;                     // what a forecast may look at ends here
  int64_t actual_begin = 0, actual_end = 0;  // what came; empty where the series had ended
};
FoldCut cut_series(const Fold& fold, int64_t horizon, int64_t first_step, int64_t length);

}  // namespace brim::forecast
