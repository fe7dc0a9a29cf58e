// SPDX-License-Identifier: Apache-2.0
#include "jobs/overlap.h"

#include <gtest/gtest.h>

namespace brim::jobs {
namespace {

OverlapPoint point(int64_t tokens, std::vector<double> gains) { return {tokens, spread_of(std::move(gains))}; }

TEST(Overlap, JudgesOnlySignificantDifferences) {
  const OverlapPoint noise = point(256, {0.87, 1.40, 1.02, 0.95, 1.31, 1.12, 0.99}),
                     pays = point(2048, {1.32, 1.41, 1.38, 1.40, 1.35, 1.45, 1.37}),
                     does_not = point(32, {0.97, 1.01, 0.99, 1.02, 0.98, 1.00, 0.96});
  EXPECT_EQ(overlap_verdict({does_not, pays}, "this GPU"),
            "overlap is worthwhile on this GPU: 1.38× with 2,048 tokens per batch, rounds 1.32× to 1.45×");
  EXPECT_EQ(
      overlap_verdict({does_not}, "this CPU"),
      "overlap is not worthwhile on this CPU: 0.99× with 32 tokens per batch, rounds 0.96× to 1.02× at best, 1.1× "
      "required");
  EXPECT_NE(overlap_verdict({does_not, noise}, "this CPU").find("not significant"), std::string::npos);
  // One good round is inconclusive.
  EXPECT_NE(overlap_verdict({point(32, {1.4})}, "this CPU").find("not significant"), std::string::npos);
}

}  // namespace
}  // namespace brim::jobs
