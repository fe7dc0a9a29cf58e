// SPDX-License-Identifier: Apache-2.0
#include "text/words.h"

#include <gtest/gtest.h>

namespace brim::text {
namespace {

TEST(Words, SpansReferToTheJoinedText) {
  const std::vector<std::string> words = {"New York", "é", "", "a\nb"};
  const JoinedWords joined = join_words(words);
  EXPECT_EQ(joined.text, "New York é  a b");
  ASSERT_EQ(joined.words.size(), 4u);
  EXPECT_EQ(joined.words[0].end, 8);
  EXPECT_EQ(joined.words[1].begin, 9);
  EXPECT_EQ(joined.words[1].end, 10);
  EXPECT_EQ(joined.words[2].begin, joined.words[2].end);
  EXPECT_EQ(joined.words[3].begin, 12);
}

// A word with a space has two tokens and one tag; a word dropped by the tokenizer has none and shifts no other.
TEST(Words, EachWordHasItsFirstToken) {
  Encoding e;
  e.offsets = {{0, 0}, {0, 3}, {4, 8}, {9, 10}, {13, 15}, {15, 16}, {0, 0}};
  const std::vector<WordSpan> words = {{0, 8}, {9, 10}, {11, 12}, {13, 16}};
  EXPECT_EQ(first_tokens(e, words), (std::vector<size_t>{1, 3, kNoToken, 4}));
  e.offsets = {{0, 8}, {8, 10}, {12, 13}, {13, 16}};  // spaces that belong to the following token
  EXPECT_EQ(first_tokens(e, words), (std::vector<size_t>{0, 1, kNoToken, 3}));
}

}  // namespace
}  // namespace brim::text
