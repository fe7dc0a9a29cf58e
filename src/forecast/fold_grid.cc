// SPDX-License-Identifier: Apache-2.0
#include "forecast/fold_grid.h"

#include <algorithm>

#include "base/error.h"
#include "base/units.h"

namespace brim::forecast {

std::vector<Fold> fold_grid(const FoldGridOptions& o, int64_t first_step, int64_t last_step) {
  BRIM_CHECK(o.horizon > 0 && o.folds > 0 && o.step > 0 && o.refit > 0 && o.window >= 0 && o.gap >= 0,
             "horizon {}, folds {}, step {}, refit {}, window {}, gap {}", o.horizon, o.folds, o.step, o.refit,
             o.window, o.gap);
  const int64_t last = o.last_cutoff.value_or(last_step - o.horizon);
  const int64_t first = last - (o.folds - 1) * o.step;
  const int64_t points = last_step - first_step + 1;
  // The first fold needs one training point outside the gap and at least one point before it as input.
  const int64_t earliest = first_step + o.gap + 1;
  if (first < earliest) {
    const int64_t possible = last < earliest ? 0 : (last - earliest) / o.step + 1;
    fail(ErrorCode::bad_data,
         Remedy{possible > 0 ? fmt::format("set `folds={}` or less", possible)
                             : "set a shorter `horizon` or provide more data"},
         "{} with step {} and horizon {} require {}, but the series span {}", format_count(o.folds, "fold"), o.step,
         o.horizon, format_count(earliest - first + points, "point"), format_count(points));
  }
  std::vector<Fold> folds;
  for (int64_t k = 0; k < o.folds; ++k) {
    Fold fold;
    fold.index = k;
    fold.cutoff = first + k * o.step;
    fold.train_to = fold.cutoff - o.gap;
    if (o.window > 0) fold.train_from = fold.train_to - o.window + 1;
    fold.trained_at = k - k % o.refit;
    folds.push_back(fold);
  }
  return folds;
}

FoldCut cut_series(const Fold& fold, int64_t horizon, int64_t first_step, int64_t length) {
  const auto place = [&](int64_t step) { return std::clamp<int64_t>(step - first_step, 0, length); };
  FoldCut cut;
  cut.train_begin = fold.train_from < first_step ? 0 : place(fold.train_from);
  cut.train_end = std::max(cut.train_begin, place(fold.train_to + 1));
  cut.known_end = place(fold.cutoff + 1);
  cut.actual_begin = cut.known_end;
  // A series that starts after the cutoff has no forecast and is not evaluated.
  cut.actual_end = cut.known_end == 0 ? 0 : place(fold.cutoff + 1 + horizon);
  return cut;
}

}  // namespace brim::forecast
