// SPDX-License-Identifier: Apache-2.0
#include "serve/progress_watch.h"

#include <gtest/gtest.h>

namespace brim::serve {
namespace {

constexpr int64_t kWatchSecond = 1'000'000'000;

struct Look {
  int64_t at;  // in seconds
  bool texts_wait;
  int64_t batches;
  double predicted;
  bool stuck;
};

void expect_looks(const std::vector<Look>& looks) {
  ProgressWatch watch;
  watch.note(10 * kWatchSecond);
  for (const Look& look : looks)
    EXPECT_EQ(watch.stuck(look.at * kWatchSecond, look.texts_wait, look.batches, look.predicted), look.stuck)
        << look.at;
}

TEST(ProgressWatch, ReportsStuckWithoutProgress) {
  expect_looks(
      {{11, true, 3, 0.1, false}, {16, true, 3, 0.1, false}, {17, true, 3, 0.1, true}, {90, true, 3, 0.1, true}});
  expect_looks({{11, true, 3, 0, false}, {60, false, 3, 0, false}});  // no waiting requests
}

TEST(ProgressWatch, AllowsPredictedTime) {
  expect_looks({{10, true, 3, 2, false}, {29, true, 3, 2, false}, {31, true, 3, 2, true}});
}

TEST(ProgressWatch, CountsBatchesOfLongTextAsProgress) {
  // The response follows the last batch; then only that batch remains to be predicted.
  expect_looks({{20, true, 40, 30, false}, {60, true, 200, 0.05, false}, {64, true, 220, 0.01, false}});
  // No more batches.
  expect_looks({{20, true, 40, 0.01, false}, {24, true, 40, 0.01, false}, {26, true, 40, 0.01, true}});
}

TEST(ProgressWatch, CountsResponseAsProgress) {
  ProgressWatch watch;
  watch.note(kWatchSecond);
  EXPECT_TRUE(watch.stuck(20 * kWatchSecond, true, 0, 0));
  watch.note(20 * kWatchSecond);
  EXPECT_FALSE(watch.stuck(21 * kWatchSecond, true, 0, 0));
}

}  // namespace
}  // namespace brim::serve
