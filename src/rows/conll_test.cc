// SPDX-License-Identifier: Apache-2.0
#include "rows/conll.h"

#include <gtest/gtest.h>

#include "base/fuzz_driver.h"
#include "base/test_files.h"

#define LLVMFuzzerTestOneInput fuzz_conll
#include "rows/conll_fuzz.cc"
#undef LLVMFuzzerTestOneInput

namespace brim::rows {
namespace {

using Words = std::vector<std::string>;

std::vector<TaggedWords> parse(const std::string& text, TaggedFormat format = TaggedFormat::conll, Words names = {}) {
  TaggedReader reader(io::memory_source("in.conll", text), format, std::move(names));
  std::vector<TaggedWords> out(1);
  while (reader.next(out.back())) out.emplace_back();
  out.pop_back();
  return out;
}
std::string error_in(const std::string& text, TaggedFormat format = TaggedFormat::conll, Words names = {}) {
  return error_of(ErrorCode::bad_data, [&] { parse(text, format, names); });
}

TEST(Conll, Conll2003) {
  const auto sentences = parse(
      "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n\nPeter NNP B-NP I-PER\nBlackburn NNP I-NP "
      "I-PER\n-DOCSTART- -X- O O\n");
  ASSERT_EQ(sentences.size(), 2u);
  EXPECT_EQ(sentences[0].words, (Words{"EU", "rejects"}));
  EXPECT_EQ(sentences[0].tags, (Words{"B-ORG", "O"}));
  EXPECT_EQ(sentences[0].line, 3);
  EXPECT_EQ(sentences[1].tags, (Words{"I-PER", "I-PER"}));  // IOB1 is not converted
  EXPECT_EQ(sentences[1].line, 7);
}

TEST(Conll, Tabs) {
  const auto sentences = parse("@paulwalk\tO\r\nNew York\tB-location\r\n\t\r\n#\tO\n");
  ASSERT_EQ(sentences.size(), 2u);
  EXPECT_EQ(sentences[0].words, (Words{"@paulwalk", "New York"}));
  EXPECT_EQ(sentences[1].words, Words{"#"});
  EXPECT_EQ(parse("a\tO\n\tO\nb\tO\n").size(), 2u);  // no word: same as a blank line
}

TEST(Conll, CommentsAndHashes) {
  const auto sentences = parse("# id 12 domain=en\n# O\nx O\n# O\n\n# text\ny B-PER\n");
  ASSERT_EQ(sentences.size(), 2u);
  EXPECT_EQ(sentences[0].words, (Words{"#", "x", "#"}));
  EXPECT_EQ(sentences[1].words, Words{"y"});
}

TEST(Conll, Columns) {
  EXPECT_EQ(parse("a 1 X O\nb 2 Y B-P\n")[0].words, (Words{"a", "b"}));
  EXPECT_HAS(error_in("a O\nb\n"), "in.conll: line 2: 1 columns, expected 2");
  EXPECT_HAS(error_in("a O\n\nb X O\n"), "line 3: 3 columns, expected 2");
  EXPECT_HAS(error_in("word\n"), "line 1");
  EXPECT_HAS(error_in("London B-LOC 0.99\n"), "line 1: invalid tag '0.99' in the last of 3 columns");
  EXPECT_HAS(error_in("London B-LOC x\n"), "line 1: invalid tag 'x'");
}

TEST(Conll, Tags) {
  EXPECT_HAS(error_in("a O\nLondon X-LOC\n"), "in.conll: line 2: invalid tag 'X-LOC'; expected O, B-TYPE or I-TYPE");
  EXPECT_HAS(error_in("a o\n"), "line 1: invalid tag 'o'");
  EXPECT_HAS(error_in("a B-\n"), "line 1: invalid tag 'B-'");
  EXPECT_HAS(error_in("a b-loc\n"), "line 1: invalid tag 'b-loc'");
  EXPECT_HAS(error_in("a B-LOC\nb LOC\n"), "line 2: invalid tag 'LOC'");
  EXPECT_HAS(error_in("a LOC\nb B-LOC\n"), "line 2: tag 'B-LOC' has a prefix but an earlier tag, 'LOC', has none");
  EXPECT_EQ(parse("a LOC\nb O\n")[0].tags, (Words{"LOC", "O"}));  // a file without prefixes
  EXPECT_EQ(parse("a S-LOC\nb E-PER\nc U-PER\nd L-PER\n").size(), 1u);
  EXPECT_EQ(parse("a X-LOC\n", TaggedFormat::conll, {"O", "X-LOC"}).size(), 1u);  // a tag of the model
}

TEST(TaggedJson, TokensAndTags) {
  const auto json = TaggedFormat::jsonl;
  const auto sentences = parse(
      "{\"id\": \"0\", \"tokens\": [\"New York\", \"is\"], \"ner_tags\": [\"B-LOC\", \"O\"]}\n\n"
      "{\"tokens\": [], \"ner_tags\": []}\n{\"tokens\": [\"EU\"], \"ner_tags\": [\"B-ORG\"]}\n",
      json);
  ASSERT_EQ(sentences.size(), 2u);
  EXPECT_EQ(sentences[0].words, (Words{"New York", "is"}));
  EXPECT_EQ(sentences[0].tags, (Words{"B-LOC", "O"}));
  EXPECT_EQ(sentences[0].line_of(1), 1);
  EXPECT_EQ(sentences[1].line, 4);

  const std::string numbers = "{\"tokens\": [\"EU\", \"is\"], \"ner_tags\": [1, 0]}\n";
  EXPECT_EQ(parse(numbers, json, {"O", "B-ORG"})[0].tags, (Words{"B-ORG", "O"}));
  EXPECT_HAS(error_in(numbers, json), "in.conll: line 1: tag 1 is a number, but the tag names are unknown");
  EXPECT_HAS(error_in(numbers, json, {"O"}), "tag 1 is out of range: the model has 1, numbered from 0");
  EXPECT_HAS(error_in("[1]\n", json), "line 1: not a JSON object");
  EXPECT_HAS(error_in("{\"tokens\": \"a\"}\n", json), "line 1: \"tokens\" is missing or not a list");
  EXPECT_HAS(error_in("{\"tokens\": [\"a\"]}\n", json), "line 1: \"ner_tags\" is missing or not a list");
  EXPECT_HAS(error_in("{\"tokens\": [\"a\"], \"ner_tags\": []}\n", json), "1 \"tokens\" but 0 \"ner_tags\"");
  EXPECT_HAS(error_in("{\"tokens\": [\"a\"], \"ner_tags\": [-1]}\n", json), "\"ner_tags\"[0] is neither");
  EXPECT_HAS(error_in("{\"tokens\": [\"a\"], \"ner_tags\": [\"X-A\"]}\n", json), "invalid tag 'X-A'");
}

TEST(TaggedFile, IsDetectedByNameOrContent) {
  TempDir dir;
  const auto tagged = [&](const std::string& name, const std::string& bytes, const std::string& format = "auto") {
    put_file(dir / name, bytes);
    return is_tagged_file((dir / name).string(), format);
  };
  EXPECT_TRUE(tagged("a.conll", ""));
  EXPECT_TRUE(tagged("a.csv", "a,b", "conll"));
  EXPECT_TRUE(tagged("a.txt", "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\nx"));
  EXPECT_TRUE(tagged("b.txt", "# id 1\nEU\tB-ORG\r\nis\tO\r\n"));
  EXPECT_FALSE(tagged("c.txt", "I love London.\nSo do O\n"));
  EXPECT_FALSE(tagged("d.txt", "A O\n"));  // one line is not enough evidence
  EXPECT_FALSE(tagged("e.txt", ""));
  EXPECT_FALSE(tagged("e.txt", "a O\nb O\n", "txt"));
  EXPECT_TRUE(tagged("f.jsonl", "{\"tokens\": [\"a\"], \"ner_tags\": [0]}\n"));
  EXPECT_FALSE(tagged("g.jsonl", "{\"text\": \"a\", \"label\": 0}\n"));
}

TEST(Conll, Empty) {
  EXPECT_EQ(parse("").size(), 0u);
  EXPECT_EQ(parse("\n\n").size(), 0u);
  EXPECT_EQ(parse("a O").size(), 1u);
}

TEST(Conll, Fuzz) {
  drive_fuzz(fuzz_conll,
             {"EU NNP B-ORG\nx y O\n\n-DOCSTART- O O\n# c\nz z O", "a\tO\nb\tB-X\n\n", "# O\n",
              "{\"tokens\": [\"a\", \"b\"], \"ner_tags\": [\"B-X\", 0]}\n"},
             5000);
}

}  // namespace
}  // namespace brim::rows
