// SPDX-License-Identifier: Apache-2.0
#include "batch/packed_batch.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "base/error.h"
#include "base/token.h"

namespace brim::batch {
namespace {

TEST(Packer, PacksEverySequenceOnceWithinTheBudget) {
  std::mt19937 rng(3);
  std::vector<std::vector<int32_t>> texts(1000);
  for (size_t i = 0; i < texts.size(); ++i) {
    texts[i].resize(1 + (i % 64 == 7 ? 400 : rng() % 40));
    for (size_t k = 0; k < texts[i].size(); ++k) texts[i][k] = static_cast<int32_t>(2 + i * 1000 + k);
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

// transformers: position = cumsum(id != padding) * (id != padding) + padding.
std::vector<int32_t> positions_by_formula(const std::vector<int32_t>& tokens, int32_t padding) {
  std::vector<int32_t> out;
  int32_t sum = 0;
  for (const int32_t token : tokens) {
    const int32_t counts = id_of(token) != padding ? 1 : 0;
    sum += counts;
    out.push_back(sum * counts + padding);
  }
  return out;
}

TEST(PackedBatch, SkipsPaddingIdsInPositionsLikeTransformers) {
  const std::vector<std::vector<int32_t>> texts = {
      {0, 7, 1, 9, 2},                                               // one in the middle
      {1, 1, 8, 9, 1, 2, 1},                                         // ends and runs
      {1},                                                           // alone
      {0, 5, 6, 2},                                                  // none
      {0, 7, 2, typed(1, 1), typed(9, 1), typed(1, 1), typed(2, 1)}  // the second text of a pair
  };
  for (const int32_t padding : {1, 0, 2, 7}) {  // 0: the tokenizer's <s>
    PackedBatch batch;
    std::vector<int32_t> want;
    int64_t paddings = 0;
    for (const auto& text : texts) {
      batch.add({text.data(), static_cast<int32_t>(text.size()), 0}, padding + 1);
      const std::vector<int32_t> positions = positions_by_formula(text, padding);
      want.insert(want.end(), positions.begin(), positions.end());
      for (const int32_t token : text) paddings += id_of(token) == padding ? 1 : 0;
    }
    EXPECT_EQ(batch.positions, want) << padding;
    EXPECT_EQ(batch.padding_tokens, paddings) << padding;
    batch.clear();
    EXPECT_EQ(batch.padding_tokens, 0);
  }
}

TEST(PackedBatch, CountsEveryTokenWithoutAnOffset) {
  const std::vector<int32_t> text = {2, 0, 7, 0, 3};  // BERT's [PAD] is 0
  PackedBatch batch;
  batch.add({text.data(), static_cast<int32_t>(text.size()), 0}, 0);
  EXPECT_EQ(batch.positions, (std::vector<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(batch.padding_tokens, 0);
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
