// SPDX-License-Identifier: Apache-2.0
// Text pairs compared with Hugging Face (tools/make_pair_goldens.py), and tokenizers without pair support.
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "base/test_files.h"
#include "text/golden_cases.h"

namespace brim::text {
namespace {

TEST(Pairs, MatchesHuggingFaceIdsAndTypes) {
  std::map<std::string, std::unique_ptr<Tokenizer>> loaded;
  std::ifstream in(golden_tokenizers() / "pairs.jsonl");
  size_t cases = 0, second_type = 0, cut = 0;
  for (std::string line; std::getline(in, line); ++cases) {
    const auto json = nlohmann::json::parse(line);
    auto& tokenizer = loaded[json["tokenizer"]];
    if (!tokenizer) tokenizer = Tokenizer::load(golden_tokenizers() / std::string(json["tokenizer"]));
    const int64_t longest = json["longest"];
    std::vector<int32_t> tokens, ids, types;
    const int64_t before = tokenizer->encode_pair(std::string(json["first"]), std::string(json["second"]),
                                                  longest > 0 ? longest : 100'000, json["left"], tokens);
    for (const int32_t token : tokens) {
      ids.push_back(id_of(token));
      types.push_back(type_of(token));
      second_type += type_of(token) == 1;
    }
    EXPECT_EQ(ids, json["ids"].get<std::vector<int32_t>>()) << line;
    EXPECT_EQ(types, json["types"].get<std::vector<int32_t>>()) << line;
    EXPECT_GE(before, static_cast<int64_t>(tokens.size()));
    cut += before > static_cast<int64_t>(tokens.size());
  }
  EXPECT_EQ(cases, 336u);
  EXPECT_GT(second_type, 100u);
  EXPECT_GT(cut, 100u);
}

TEST(Pairs, TruncatesTheLongerTextFirst) {
  const auto kept = [](int64_t first, int64_t second, int64_t room) {
    const PairLengths fit = fit_pair(first, second, room);
    return std::pair(fit.first, fit.second);
  };
  EXPECT_EQ(kept(3, 4, 7), std::pair(3L, 4L));
  EXPECT_EQ(kept(3, 9, 7), std::pair(3L, 4L));
  EXPECT_EQ(kept(9, 3, 7), std::pair(4L, 3L));
  EXPECT_EQ(kept(9, 9, 7), std::pair(3L, 4L));
  EXPECT_EQ(kept(20, 9, 7), std::pair(4L, 3L));
  EXPECT_EQ(kept(0, 9, 7), std::pair(0L, 7L));
}

TEST(Pairs, RejectsPairsWithoutASeparator) {
  for (const char* name : {"byte_bpe_llama3", "byte_normalizer", "bpe_bytes"})
    EXPECT_FALSE(Tokenizer::load(golden_tokenizers() / name)->pair()) << name;
}

TEST(Pairs, JoinsByFamilyWithoutTokenizerJson) {
  const auto albert = Tokenizer::load(golden_tokenizers() / "spm_albert");
  EXPECT_EQ(albert->pair()->after, std::vector<int32_t>{typed(albert->sep_id(), 1)});
  EXPECT_EQ(albert->pair()->largest_type(), 1);
  const auto xlmr = Tokenizer::load(golden_tokenizers() / "spm_xlmr");
  EXPECT_EQ(xlmr->pair()->between, (std::vector<int32_t>{2, 2}));
  EXPECT_EQ(xlmr->pair()->largest_type(), 0);
}

TEST(Pairs, OmitsTypesForModelsWithoutTypes) {
  const TempDir temp;
  std::filesystem::copy(golden_tokenizers() / "bert_cased", temp.path());
  EXPECT_EQ(Tokenizer::load(temp.path())->pair()->largest_type(), 1);
  std::ofstream(temp.path() / "tokenizer_config.json") << R"({"model_input_names": ["input_ids", "attention_mask"]})";
  EXPECT_EQ(Tokenizer::load(temp.path())->pair()->largest_type(), 0);
}

// MPNet splits words like BERT: <s> a </s></s> b </s>. The ids are those of transformers' MPNetTokenizer.
TEST(Pairs, MpnetJoinsLikeRoberta) {
  const TempDir temp;
  std::ofstream(temp.path() / "vocab.txt")
      << "<s>\n<pad>\n</s>\n<unk>\n[UNK]\n<mask>\nhello\nworld\na\nb\nc\n##s\n##ing\n"
         "good\nbad\n,\n.\n";
  std::ofstream(temp.path() / "tokenizer_config.json") << R"({"tokenizer_class": "MPNetTokenizer"})";
  const auto tokenizer = Tokenizer::load(temp.path());
  std::vector<int32_t> ids;
  tokenizer->encode_pair("Hello worlds", "good, bad", 64, false, ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 6, 7, 11, 2, 2, 13, 15, 14, 2}));
  ids.clear();
  tokenizer->encode_ids("Hello Qx", ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 6, 4, 2}));
}

TEST(Pairs, ReportsWhyPairsAreUnsupported) {
  const auto none = why_no_pairs(*Tokenizer::load(golden_tokenizers() / "bpe_bytes"), "some/model", 2, 64);
  ASSERT_TRUE(none);
  EXPECT_EQ(none->code(), ErrorCode::bad_model);
  for (const char* part : {"no separator between two texts", "\"post_processor\" has 0", "at least 1"})
    EXPECT_NE(std::string(none->what()).find(part), std::string::npos) << none->what();
  const auto bert = Tokenizer::load(golden_tokenizers() / "bert_cased");
  const auto types = why_no_pairs(*bert, "some/model", 1, 64);
  ASSERT_TRUE(types);
  EXPECT_EQ(types->code(), ErrorCode::bad_model);
  for (const char* part : {"token type 1", "has only 1", "type_vocab_size"})
    EXPECT_NE(std::string(types->what()).find(part), std::string::npos) << types->what();
  EXPECT_FALSE(why_no_pairs(*bert, "some/model", 2, 64));
}

}  // namespace
}  // namespace brim::text
