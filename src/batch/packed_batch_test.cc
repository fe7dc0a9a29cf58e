// SPDX-License-Identifier: Apache-2.0
#include "batch/packed_batch.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "base/error.h"

namespace brim::batch {
namespace {

TEST(Packer, PacksEverySequenceOnceWithinTheBudget) {
  std::mt19937 rng(3);
  std::vector<std::vector<int32_t>> texts(1000);
  for (size_t i = 0; i < texts.size(); ++i) {
    texts[i].resize(1 + (i % 64 == 7 ? 400 : rng() % 40));
    for (size_t k = 0; k < texts[i].size(); ++k) texts[i][k] = static_cast<int32_t>(i * 1000 + k);
  }
  Packer packer({512, 64}, 2);
  for (size_t i = 0; i < texts.size(); ++i) packer.push({texts[i].data(), static_cast<int32_t>(texts[i].size()), i});
  std::set<uint64_t> seen;
  double fill = 0;
  int batches = 0;
  PackedBatch batch;
  while (!packer.empty()) {
    packer.pop(batch);
    ++batches;
    ASSERT_GT(batch.sequences(), 0);
    ASSERT_LE(batch.tokens(), 512);
    ASSERT_LE(batch.sequences(), 64);
    fill += static_cast<double>(batch.tokens()) / 512;
    int32_t previous = INT32_MAX;
    int64_t long_ones = 0;
    for (int64_t k = 0; k < batch.sequences(); ++k) {
      const int32_t b = batch.order[k], length = batch.starts[b + 1] - batch.starts[b];
      ASSERT_LE(length, previous);
      previous = length;
      long_ones += length > ops::kShortTokens;
      ASSERT_EQ(length > ops::kShortTokens, k < batch.n_long);
    }
    ASSERT_EQ(long_ones, batch.n_long);
    for (int64_t b = 0; b < batch.sequences(); ++b) {
      const auto& text = texts[batch.tickets[b]];
      ASSERT_TRUE(seen.insert(batch.tickets[b]).second);
      ASSERT_EQ(batch.starts[b + 1] - batch.starts[b], static_cast<int32_t>(text.size()));
      for (size_t k = 0; k < text.size(); ++k) {
        ASSERT_EQ(batch.ids[batch.starts[b] + k], text[k]);
        ASSERT_EQ(batch.positions[batch.starts[b] + k], static_cast<int32_t>(2 + k));
      }
    }
  }
  EXPECT_EQ(seen.size(), texts.size());
  EXPECT_GT(fill / batches, 0.9);
}

TEST(Packer, RejectsASequenceOverTheBudget) {
  Packer packer({8, 8}, 0);
  const std::vector<int32_t> ids(9);
  packer.push({ids.data(), 9, 0});
  PackedBatch batch;
  EXPECT_THROW(packer.pop(batch), Error);
}

}  // namespace
}  // namespace brim::batch
