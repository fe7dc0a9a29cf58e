// SPDX-License-Identifier: Apache-2.0
// Tests the grouping of tokens into words and entities.
#include "engine/entities.h"

#include <gtest/gtest.h>

#include "base/utf8.h"
#include "text/golden_cases.h"

namespace brim::engine {
namespace {

TEST(Entities, JoinsSubwordsToWordsAndWordsToEntities) {
  text::Encoding e;
  e.tokens = {"[CLS]", "new", "##ton", "went", "home", "[SEP]"};
  e.offsets = {{0, 0}, {0, 3}, {3, 6}, {7, 11}, {12, 16}, {0, 0}};
  e.ids.assign(6, 0);
  const std::vector<std::string> labels = {"O", "B-PER", "I-PER"};
  std::vector<float> scores(18, 0.1f);
  scores[1 * 3 + 1] = 0.9f;
  scores[2 * 3 + 0] = 0.9f;
  scores[3 * 3 + 2] = 0.7f;
  scores[4 * 3 + 0] = 0.8f;
  const auto found = group_entities("newton went home", e, "wordpiece", scores.data(), labels);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].group, "PER");
  EXPECT_EQ(found[0].word, "newton went");
  EXPECT_EQ(found[0].start, 0);
  EXPECT_EQ(found[0].end, 11);
  EXPECT_NEAR(found[0].score, 0.8f, 1e-6);

  // "newton" is B-PER by its first token, and O by its second token, which has the higher score, and by their mean.
  scores[2 * 3 + 0] = 0.95f;
  const auto words = [&](Aggregation aggregation) {
    std::string all;
    for (const Entity& f : group_entities("newton went home", e, "wordpiece", scores.data(), labels, aggregation))
      all += fmt::format("{} {:.3f}, ", f.word, f.score);
    return all;
  };
  EXPECT_EQ(words(Aggregation::first), "newton went 0.800, ");
  EXPECT_EQ(words(Aggregation::simple), "new 0.900, went 0.700, ");
  EXPECT_EQ(words(Aggregation::max), "went 0.700, ");
  EXPECT_EQ(words(Aggregation::average), "went 0.700, ");
  const auto alone = group_entities("newton went home", e, "wordpiece", scores.data(), labels, Aggregation::none);
  ASSERT_EQ(alone.size(), 2u);
  EXPECT_EQ(fmt::format("{} {} {}", alone[0].group, alone[0].word, alone[0].token), "B-PER new 1");
  EXPECT_EQ(fmt::format("{} {} {}", alone[1].group, alone[1].word, alone[1].token), "I-PER went 3");
  scores[2 * 3 + 1] = 0.9f;
  EXPECT_EQ(words(Aggregation::average), "newton went 0.800, ");
}

// Words of a raw text by code points.
std::vector<std::string> words_of(const std::string& tokenizer, const std::string& text) {
  const auto loaded = text::Tokenizer::load(text::golden_tokenizers() / tokenizer);
  std::u32string points;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = decode_valid(text, i);
    points += c.value;
    i += static_cast<size_t>(c.bytes);
  }
  std::vector<std::string> words;
  for (const EncodedWord& w : encoded_words(text, loaded->encode(text), loaded->kind())) {
    std::string& word = words.emplace_back();
    for (int32_t i = w.begin; i < w.end; ++i) append_utf8(word, points[static_cast<size_t>(i)]);
  }
  return words;
}

// Excludes punctuation, which a tokenizer may have joined with a word.
std::vector<std::string> named_words(const std::string& tokenizer, const std::string& text) {
  std::vector<std::string> words = words_of(tokenizer, text);
  std::erase_if(words, [](const std::string& word) { return word.find_first_of("\"#().,") == 0; });
  return words;
}

// Words depend neither on the rest of the text nor on whether they are split into pieces.
TEST(Entities, WordBoundariesDependOnTheTokenizerOnly) {
  using Words = std::vector<std::string>;
  for (const char* tokenizer :
       {"bert_uncased", "bert_cased", "byte_bpe", "byte_bpe_untrimmed", "spm_xlmr", "spm_albert"})
    for (const std::string more : {"", "Looooolxyzq"}) {
      SCOPED_TRACE(fmt::format("{}, '{}' after it", tokenizer, more));
      const auto expect = [&](const std::string& text, Words want) {
        if (!more.empty()) want.push_back(more);
        EXPECT_EQ(named_words(tokenizer, text + (more.empty() ? "" : " ") + more), want);
      };
      expect("I love London.", {"I", "love", "London"});
      expect("(London)", {"London"});
      expect("\"London\"", {"London"});
      expect("#London", {"London"});
      expect("in  London,", {"in", "London"});
    }
  // Within a word only WordPiece splits at punctuation, as its pre-tokenizer does.
  EXPECT_EQ(words_of("bert_uncased", "Coca-Cola!"), (Words{"Coca", "-", "Cola", "!"}));
  EXPECT_EQ(words_of("byte_bpe", "Coca-Cola!"), (Words{"Coca-Cola", "!"}));
  EXPECT_EQ(words_of("byte_bpe", "(London)"), (Words{"(", "London", ")"}));
  EXPECT_EQ(words_of("byte_bpe", "caf\u00e9 \U0001F600 x"), (Words{"caf\u00e9", "\U0001F600", "x"}));  // byte pieces
}

TEST(Entities, SupportsAllTagSchemes) {
  EXPECT_TRUE(split_tag("O").outside);
  for (const char* tag : {"B-LOC", "S-LOC", "U-LOC"}) EXPECT_TRUE(split_tag(tag).begin) << tag;
  for (const char* tag : {"I-LOC", "E-LOC", "L-LOC"}) EXPECT_EQ(split_tag(tag).type, "LOC") << tag;
  EXPECT_EQ(split_tag("LOC").type, "LOC");
}

}  // namespace
}  // namespace brim::engine
