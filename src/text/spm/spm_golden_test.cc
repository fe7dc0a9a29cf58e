// SPDX-License-Identifier: Apache-2.0
// Directories without tokenizer.json compared with transformers (tools/make_spm_goldens.py), and mutations of these
// files.
// Directories with tokenizer.json are covered by tokenizer_golden_test.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/fuzz_driver.h"
#include "base/mapped_file.h"
#include "base/test_files.h"
#include "text/golden_cases.h"
#include "text/spm/spm_testing.h"
#include "text/tokenizer.h"

#define LLVMFuzzerTestOneInput fuzz_spm_model
#include "text/spm/spm_model_fuzz.cc"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_charsmap
#include "text/spm/charsmap_fuzz.cc"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_fastbpe
#include "text/spm/fastbpe_fuzz.cc"
#undef LLVMFuzzerTestOneInput

namespace brim::text {
namespace {

namespace fs = std::filesystem;
const fs::path kData = golden_tokenizers();

class SpmGolden : public testing::TestWithParam<const char*> {};

TEST_P(SpmGolden, IdsTokensAndOffsets) {
  const fs::path folder = kData / GetParam();
  const auto tokenizer = Tokenizer::load(folder);
  const auto cases = read_golden_cases(folder);
  EXPECT_EQ(cases.size(), 220u);
  std::vector<int32_t> ids;
  for (int round = 0; round < 2; ++round) {  // the second round uses the cache
    for (const GoldenCase& c : cases) {
      const Encoding got = tokenizer->encode(c.text);
      EXPECT_EQ(got.ids, c.expected.ids) << c.text;
      EXPECT_EQ(got.tokens, c.expected.tokens) << c.text;
      EXPECT_EQ(got.offsets, c.expected.offsets) << c.text;
      ids.clear();
      tokenizer->encode_ids(c.text, ids);
      EXPECT_EQ(ids, c.expected.ids) << c.text;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, SpmGolden,
                         testing::Values("spm_xlmr", "spm_xlmr_identity", "spm_albert", "spm_albert_cased", "spm_bpe",
                                         "spm_deberta", "spm_deberta_lower", "fastbpe_phobert", "fastbpe_bertweet"));

// A writable copy of a test data folder.
class SpmFolder : public testing::Test {
 protected:
  void copy(const char* name) { fs::copy(kData / name, dir_); }
  void write(const char* name, std::string_view text) { std::ofstream(dir_ / name) << text; }
  std::string error_message() {
    try {
      Tokenizer::load(dir_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_model);
      return error.what();
    }
    return "";
  }
  const TempDir temp_;
  const fs::path dir_ = temp_.path();
};

TEST_F(SpmFolder, XlmRobertaUsesFairseqIds) {
  copy("spm_xlmr");
  const auto tokenizer = Tokenizer::load(dir_);
  EXPECT_EQ(tokenizer->kind(), "unigram");
  EXPECT_EQ(tokenizer->id("<s>"), 0);
  EXPECT_EQ(tokenizer->id("<pad>"), 1);
  EXPECT_EQ(tokenizer->id("</s>"), 2);
  EXPECT_EQ(tokenizer->id("<unk>"), 3);
  EXPECT_EQ(tokenizer->id("<mask>"), tokenizer->vocab_size() - 1);
  EXPECT_EQ(tokenizer->mask_id(), tokenizer->vocab_size() - 1);
  EXPECT_EQ(tokenizer->cls_id(), 0);
  EXPECT_EQ(tokenizer->sep_id(), 2);
  EXPECT_EQ(tokenizer->pad_id(), 1);
  EXPECT_EQ(tokenizer->unk_id(), 3);
  EXPECT_EQ(std::vector<int32_t>(tokenizer->prefix().begin(), tokenizer->prefix().end()), std::vector<int32_t>{0});
  EXPECT_EQ(std::vector<int32_t>(tokenizer->suffix().begin(), tokenizer->suffix().end()), std::vector<int32_t>{2});
}

TEST_F(SpmFolder, DetectsOrReadsTheFamily) {
  copy("spm_albert");
  const std::vector<int32_t> expected = Tokenizer::load(dir_)->encode("talking").ids;
  fs::remove(dir_ / "tokenizer_config.json");  // detected by the pieces [CLS] and [SEP]
  EXPECT_EQ(Tokenizer::load(dir_)->encode("talking").ids, expected);
  write("config.json", R"({"model_type": "xlm-roberta"})");
  EXPECT_NE(Tokenizer::load(dir_)->encode("talking").ids, expected);
  write("config.json", R"({"model_type": "albert"})");
  EXPECT_EQ(Tokenizer::load(dir_)->encode("talking").ids, expected);
  write("tokenizer_config.json", R"({"tokenizer_class": "T5Tokenizer"})");
  EXPECT_NE(error_message().find("tokenizer_class is T5Tokenizer"), std::string::npos) << error_message();
}

TEST_F(SpmFolder, ErrorsNameTheFile) {
  copy("spm_xlmr");
  const std::string model = read_file(dir_ / "sentencepiece.bpe.model");
  write("sentencepiece.bpe.model", model.substr(0, model.size() / 2));
  EXPECT_NE(error_message().find("sentencepiece.bpe.model: byte "), std::string::npos) << error_message();
  write("sentencepiece.bpe.model", spm_piece_proto("<unk>", 0));
  EXPECT_NE(error_message().find("1 pieces"), std::string::npos) << error_message();
  write("sentencepiece.bpe.model", "");
  EXPECT_NE(error_message().find("no pieces"), std::string::npos) << error_message();
}

TEST_F(SpmFolder, RejectsBertweetNormalization) {
  copy("fastbpe_bertweet");
  write("tokenizer_config.json", R"({"normalization": true})");
  EXPECT_NE(error_message().find("normalization"), std::string::npos) << error_message();
  write("tokenizer_config.json", R"({"normalization": false, "model_max_length": 128})");
  EXPECT_EQ(error_message(), "");
  EXPECT_EQ(Tokenizer::load(dir_)->model_max_length(), 128);
  EXPECT_EQ(Tokenizer::load(dir_)->kind(), "fastbpe");
}

TEST_F(SpmFolder, RejectsAddedTokensWithInvalidIds) {
  copy("fastbpe_bertweet");
  write("tokenizer_config.json", "{}");  // otherwise its list of added tokens would be used
  for (const char* id : {"2147483647", "16777216", "16777215", "-1"}) {
    write("added_tokens.json", fmt::format(R"({{"<far>": {}}})", id));
    const std::string why = error_message();
    EXPECT_NE(why.find("added_tokens.json: <far> is " + std::string(id)), std::string::npos) << why;
  }
  write("added_tokens.json", R"({"<far>": 16777214})");
  EXPECT_EQ(Tokenizer::load(dir_)->vocab_size(), 16777215);
  write("tokenizer_config.json", R"({"added_tokens_decoder": {"16777215": {"content": "<far>"}}})");
  const std::string why = error_message();
  EXPECT_NE(why.find("tokenizer_config.json: added_tokens_decoder.16777215"), std::string::npos) << why;
  EXPECT_NE(why.find("<far>"), std::string::npos) << why;
}

TEST(SpmFuzz, Models) {
  std::vector<std::string> seeds;
  for (const char* file : {"spm_xlmr/sentencepiece.bpe.model", "spm_bpe/sentencepiece.bpe.model",
                           "spm_xlmr_identity/sentencepiece.bpe.model", "spm_albert/spiece.model"}) {
    seeds.push_back(read_file(kData / file));
  }
  seeds.push_back(spm_piece_proto("<unk>", 0) + spm_piece_proto("<s>", 0) + spm_piece_proto("</s>", 0) +
                  spm_piece_proto("\u2581the", -1) + spm_piece_proto("\u2581", -2));
  drive_fuzz(fuzz_spm_model, seeds, 1500);
}

TEST(SpmFuzz, Charsmaps) {
  const SpmModel model = read_spm_model(kData / "spm_xlmr/sentencepiece.bpe.model");
  drive_fuzz(fuzz_charsmap, {model.precompiled_charsmap, make_charsmap({{"a", "b"}, {"\u00E9", ""}})}, 3000);
}

TEST(SpmFuzz, FastBpeFiles) {
  const std::string codes = read_file(kData / "fastbpe_phobert/bpe.codes");
  const std::string vocab = read_file(kData / "fastbpe_phobert/vocab.txt");
  drive_fuzz(fuzz_fastbpe, {codes + '\0' + vocab, std::string("a b 1\nab ab 1\n\0a@@ 1\nb 2\n", 26)}, 1500);
}

}  // namespace
}  // namespace brim::text
