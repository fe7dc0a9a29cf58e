// SPDX-License-Identifier: Apache-2.0
// Decoding compared with Hugging Face's decoders (tools/make_tokenizer_goldens.py).
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "base/test_files.h"
#include "text/components.h"
#include "text/golden_cases.h"
#include "text/json_reader.h"
#include "text/load.h"

namespace brim::text {
namespace {

using Json = nlohmann::json;

Json tokenizer_json(const std::string& name) {
  std::ifstream in(golden_tokenizers() / name / "tokenizer.json");
  return Json::parse(in);
}

TEST(Decoders, MatchHuggingFace) {
  std::ifstream in(golden_tokenizers() / "decoders.jsonl");
  int decoders = 0, tokenizers = 0;
  for (std::string line; std::getline(in, line);) {
    const Json golden = Json::parse(line);
    if (golden.contains("tokenizer")) {
      ++tokenizers;
      Json file = tokenizer_json(golden["tokenizer"]);
      file["decoder"] = golden["decoder"];
      const auto tokenizer = parse_tokenizer_json(file.dump(), "tokenizer.json", {});
      for (const Json& c : golden["cases"])
        EXPECT_EQ(tokenizer->decode(c["ids"].get<std::vector<int32_t>>(), c["skip_special"]),
                  c["text"].get<std::string>())
            << golden["tokenizer"] << " " << c;
      continue;
    }
    ++decoders;
    const std::filesystem::path file = "tokenizer.json";
    const auto decoder = make_decoder(JsonValue(golden["decoder"], file, "decoder"));
    for (const Json& c : golden["cases"]) {
      auto tokens = c["tokens"].get<std::vector<std::string>>();
      decoder->apply(tokens);
      std::string text;
      for (const std::string& token : tokens) text += token;
      EXPECT_EQ(text, c["text"].get<std::string>()) << golden["decoder"] << " " << c["tokens"];
    }
  }
  EXPECT_GE(decoders, 12);
  EXPECT_EQ(tokenizers, 4);
}

TEST(Decoders, UnknownDecoderFailsOnUse) {
  Json file = tokenizer_json("bert_uncased");
  file["decoder"] = {{"type", "CTC"}};
  const auto tokenizer = parse_tokenizer_json(file.dump(), "tokenizer.json", {});
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{1}, true), Error);
  file["decoder"] = {{"type", "Metaspace"}, {"replacement", ""}};
  EXPECT_THROW(parse_tokenizer_json(file.dump(), "tokenizer.json", {}), Error);
}

// Other file layouts use the decoder of their family.
TEST(Decoders, FilesWithoutTokenizerJson) {
  for (const char* name : {"spm_xlmr", "spm_albert", "fastbpe_phobert", "fastbpe_bertweet"}) {
    const auto tokenizer = Tokenizer::load(golden_tokenizers() / name);
    const std::string text = "the day";
    std::vector<int32_t> ids;
    tokenizer->encode_ids(text, ids);
    const std::string back = tokenizer->decode(ids, true);
    std::vector<int32_t> again;
    tokenizer->encode_ids(back, again);
    EXPECT_EQ(again, ids) << name << ": " << back;
    EXPECT_NE(tokenizer->decode(ids, false), back) << name;
    EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{-1, 1 << 30}, false), "") << name;
  }
  TempDir temp;
  std::ofstream(temp.path() / "vocab.txt") << "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhe\n##llo\n.\n";
  const auto bert = Tokenizer::load(temp.path());
  EXPECT_EQ(bert->decode(std::vector<int32_t>{2, 5, 6, 7, 3}, true), "hello.");
  EXPECT_EQ(bert->decode(std::vector<int32_t>{2, 5, 6, 7, 3}, false), "[CLS] hello. [SEP]");
}

}  // namespace
}  // namespace brim::text
