// SPDX-License-Identifier: Apache-2.0
#include "io/conll.h"

#include <gtest/gtest.h>

#include "base/fuzz_driver.h"
#include "base/test_files.h"

#define LLVMFuzzerTestOneInput fuzz_conll
#include "io/conll_fuzz.cc"
#undef LLVMFuzzerTestOneInput

namespace brim {
namespace {

using Words = std::vector<std::string>;

std::vector<ConllSentence> parse(const std::string& text, ConllOptions options = {}) {
  ConllReader reader(memory_source("in.conll", text), options);
  std::vector<ConllSentence> out(1);
  while (reader.next(out.back())) out.emplace_back();
  out.pop_back();
  return out;
}

TEST(Conll, Conll2003) {
  const auto sentences = parse(
      "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n\nPeter NNP B-NP I-PER\nBlackburn NNP I-NP "
      "I-PER\n-DOCSTART- -X- O O\n");
  ASSERT_EQ(sentences.size(), 2u);
  EXPECT_EQ(sentences[0].tokens, (Words{"EU", "rejects"}));
  EXPECT_EQ(sentences[0].tags, (Words{"B-ORG", "O"}));
  EXPECT_EQ(sentences[0].line, 3);
  EXPECT_EQ(sentences[1].tags, (Words{"I-PER", "I-PER"}));  // IOB1 stays IOB1
  EXPECT_EQ(sentences[1].line, 7);
}

TEST(Conll, Tabs) {
  const auto sentences = parse("@paulwalk\tO\r\nNew York\tB-location\r\n\t\r\n#\tO\n");
  ASSERT_EQ(sentences.size(), 2u);
  EXPECT_EQ(sentences[0].tokens, (Words{"@paulwalk", "New York"}));
  EXPECT_EQ(sentences[1].tokens, Words{"#"});
  EXPECT_EQ(parse("a\tO\n\tO\nb\tO\n").size(), 2u);  // no word: as good as a blank line
}

TEST(Conll, CommentsAndHashes) {
  const auto sentences = parse("# id 12 domain=en\n# O\nx O\n# O\n\n# text\ny B-PER\n");
  ASSERT_EQ(sentences.size(), 2u);
  EXPECT_EQ(sentences[0].tokens, (Words{"#", "x", "#"}));
  EXPECT_EQ(sentences[1].tokens, Words{"y"});
}

TEST(Conll, Columns) {
  EXPECT_EQ(parse("1 a X O\n2 b Y B-P\n", {1, -1})[0].tokens, (Words{"a", "b"}));
  EXPECT_EQ(parse("1 a X O\n", {1, 2})[0].tags, Words{"X"});
  EXPECT_HAS(error_of(ErrorCode::bad_data, [] { parse("a O\nb\n"); }), "in.conll: line 2: 1 columns where 2");
  EXPECT_HAS(error_of(ErrorCode::bad_data, [] { parse("a O\n\nb X O\n"); }), "line 3: 3 columns where 2");
  EXPECT_HAS(error_of(ErrorCode::bad_data, [] { parse("word\n"); }), "line 1");
  EXPECT_HAS(error_of(ErrorCode::bad_data, [] { parse("a O\n", {0, 5}); }), "column 6");
}

TEST(Conll, Empty) {
  EXPECT_EQ(parse("").size(), 0u);
  EXPECT_EQ(parse("\n\n").size(), 0u);
  EXPECT_EQ(parse("a O").size(), 1u);
}

TEST(Conll, Fuzz) {
  drive_fuzz(fuzz_conll, {"EU NNP B-ORG\nx y O\n\n-DOCSTART- O O\n# c\nz z O", "a\tO\nb\tB-X\n\n", "# O\n"}, 5000);
}

}  // namespace
}  // namespace brim
