// SPDX-License-Identifier: Apache-2.0
#include "text/spm/sp_bpe.h"

#include <gtest/gtest.h>

namespace brim::text {
namespace {

using Merges = std::vector<std::pair<std::string, std::string>>;

TEST(SpBpe, MergesByBestScoreFirst) {
  SpmModel model;
  model.pieces = {
      {"<unk>", 0, SpmPieceType::unknown}, {"aa", -1}, {"aaa", -3}, {"\u00E9a", -2}, {"a", -9}, {"\u00E9", -8}};
  std::vector<std::pair<std::string, double>> vocab;
  for (const SpmPiece& piece : model.pieces) vocab.emplace_back(piece.text, piece.score);
  // Splits of "aaa" are ordered by the ids of the halves: aa|a (1, 4) before a|aa (4, 1).
  EXPECT_EQ(spm_merges(model, vocab), (Merges{{"a", "a"}, {"\u00E9", "a"}, {"aa", "a"}, {"a", "aa"}}));
}

TEST(SpBpe, HalvesMustBePieces) {
  SpmModel model;
  model.pieces = {{"<unk>", 0, SpmPieceType::unknown}, {"abc", -1}, {"ab", -2}, {"a", -3}};
  EXPECT_EQ(spm_merges(model, {{"abc", -1}, {"ab", -2}, {"a", -3}, {"", 0}}), Merges{});
}

TEST(SpBpe, RepeatedEntriesKeepTheLastId) {
  SpmModel model;
  model.pieces = {{"<unk>", 0, SpmPieceType::unknown}, {"a", -1}};
  const BpeConfig config = spm_bpe_config(model, {{"<unk>", 0}, {"a", 0}, {"<unk>", 0}});
  EXPECT_EQ(config.vocab, (std::vector<std::pair<std::string, int32_t>>{{"<unk>", 2}, {"a", 1}}));
  EXPECT_EQ(config.unk_token, "<unk>");
  EXPECT_TRUE(config.fuse_unk);
}

}  // namespace
}  // namespace brim::text
