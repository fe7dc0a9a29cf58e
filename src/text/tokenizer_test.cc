// SPDX-License-Identifier: Apache-2.0
// Loading: directory layouts, configuration files, rejected files and their messages.
#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/fuzz_driver.h"
#include "base/mapped_file.h"
#include "base/test_files.h"
#include "text/load.h"
#define LLVMFuzzerTestOneInput fuzz_tokenizer_json
#include "text/hf/tokenizer_json_fuzz.cc"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_tokenizer_encode
#include "text/tokenizer_encode_fuzz.cc"
#undef LLVMFuzzerTestOneInput

namespace brim::text {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// A temporary folder of files.
class TokenizerLoad : public ::testing::Test {
 protected:
  void write(const char* name, const std::string& text) const { std::ofstream(dir_ / name, std::ios::binary) << text; }
  void write(const char* name, const Json& json) const { write(name, json.dump()); }

  // Checks that loading fails with a message that contains all of `words`.
  void expect_load_error(std::initializer_list<const char*> words) const {
    try {
      Tokenizer::load(dir_);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_model);
      for (const char* word : words) {
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << word << " is not in: " << error.what();
      }
    }
  }
  const TempDir temp_;
  fs::path dir_ = temp_.path();
};

const std::string kVocab = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\ncafe\nCafé\nHello\n##s\n中\n文\n中文\n";

fs::path golden(const char* name) { return fs::path(BRIM_SOURCE_DIR) / "tests/data/tokenizers" / name; }

std::vector<int32_t> ids(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> out;
  tokenizer.encode_ids(text, out);
  return out;
}

using Ids = std::vector<int32_t>;

TEST_F(TokenizerLoad, VocabTxtUsesBertDefaults) {
  write("vocab.txt", kVocab);
  const auto t = Tokenizer::load(dir_);
  EXPECT_EQ(t->kind(), "wordpiece");
  EXPECT_EQ(t->vocab_size(), 13);
  EXPECT_EQ(ids(*t, "Hellos CAFÉ 中文"), (Ids{2, 5, 9, 6, 10, 11, 3}));
  EXPECT_EQ(ids(*t, "x [MASK]"), (Ids{2, 1, 4, 3}));
  EXPECT_EQ(ids(*t, ""), (Ids{2, 3}));
  EXPECT_EQ(t->cls_id(), 2);
  EXPECT_EQ(t->sep_id(), 3);
  EXPECT_EQ(t->pad_id(), 0);
  EXPECT_EQ(t->unk_id(), 1);
  EXPECT_EQ(t->mask_id(), 4);
  EXPECT_EQ(t->model_max_length(), std::nullopt);
  EXPECT_EQ(Ids(t->prefix().begin(), t->prefix().end()), Ids{2});
  EXPECT_EQ(Ids(t->suffix().begin(), t->suffix().end()), Ids{3});
  EXPECT_EQ(t->token(9), "##s");
  EXPECT_EQ(t->id("cafe"), 6);
  EXPECT_EQ(t->id("nothing"), -1);
  EXPECT_EQ(t->token(99), "");
}

TEST_F(TokenizerLoad, VocabTxtHonoursItsConfiguration) {
  write("vocab.txt", kVocab);
  write("tokenizer_config.json",
        Json{{"do_lower_case", false}, {"model_max_length", 512}, {"tokenize_chinese_chars", false}});
  auto t = Tokenizer::load(dir_);
  EXPECT_EQ(ids(*t, "Hello Café 中文"), (Ids{2, 8, 7, 12, 3}));
  EXPECT_EQ(t->model_max_length(), 512);
  write("tokenizer_config.json", Json{{"do_lower_case", false}, {"strip_accents", true}, {"max_len", 128}});
  t = Tokenizer::load(dir_);
  EXPECT_EQ(ids(*t, "Hello café"), (Ids{2, 8, 6, 3}));
  EXPECT_EQ(t->model_max_length(), 128);
  write("tokenizer_config.json", Json{{"strip_accents", nullptr}, {"model_max_length", 1e30}});
  t = Tokenizer::load(dir_);
  EXPECT_EQ(t->model_max_length(), std::nullopt);
  EXPECT_EQ(ids(*t, "CAFÉ"), (Ids{2, 6, 3}));
}

TEST_F(TokenizerLoad, VocabTxtAcceptsWindowsLineEndings) {
  std::string text = kVocab;
  for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 2) text.insert(at, 1, '\r');
  write("vocab.txt", text);
  EXPECT_EQ(ids(*Tokenizer::load(dir_), "hello"), (Ids{2, 5, 3}));
}

TEST_F(TokenizerLoad, VocabJsonAndMergesEqualTokenizerJson) {
  const Json whole = Json::parse(read_file(golden("byte_bpe") / "tokenizer.json"));
  write("vocab.json", whole["model"]["vocab"]);
  std::string merges = "#version: 0.2\n";
  for (const auto& m : whole["model"]["merges"]) {
    merges += m[0].get<std::string>() + " " + m[1].get<std::string>() + "\n";
  }
  write("merges.txt", merges);
  write("special_tokens_map.json", Json{{"mask_token", {{"content", "<mask>"}, {"lstrip", true}}}});
  const auto bare = Tokenizer::load(dir_), full = Tokenizer::load(golden("byte_bpe"));
  EXPECT_EQ(bare->kind(), "byte_bpe");
  for (const char* text : {"", " the quick <mask> brown", "naïve café's  <s>", "😂\xFF"}) {
    const Encoding a = bare->encode(text), b = full->encode(text);
    EXPECT_EQ(a.ids, b.ids) << text;
    EXPECT_EQ(a.tokens, b.tokens) << text;
    EXPECT_EQ(a.offsets, b.offsets) << text;
  }
  EXPECT_EQ(bare->mask_id(), full->mask_id());
}

TEST_F(TokenizerLoad, TokenizerJsonWins) {
  write("vocab.txt", kVocab);
  fs::copy(golden("byte_bpe") / "tokenizer.json", dir_ / "tokenizer.json");
  EXPECT_EQ(Tokenizer::load(dir_)->kind(), "byte_bpe");
}

TEST_F(TokenizerLoad, PaddingAndTruncationAreIgnored) {
  const auto t = Tokenizer::load(golden("bert_uncased"));  // the file configures padding to 40 and truncation at 6
  EXPECT_EQ(ids(*t, "a").size(), 3u);
  EXPECT_EQ(ids(*t, "a b c d e f g h").size(), 10u);
}

TEST_F(TokenizerLoad, InvalidBytesAreReplaced) {
  const auto t = Tokenizer::load(golden("byte_bpe"));
  EXPECT_EQ(ids(*t, "a\xFF\xE4\xB8z"), ids(*t, "a\uFFFD\uFFFDz"));
  EXPECT_EQ(t->encode("a\xFFz").offsets.back(), (std::pair<int32_t, int32_t>{0, 0}));
  const auto offsets = t->encode("a\xFFz").offsets;
  EXPECT_EQ(offsets[offsets.size() - 2], (std::pair<int32_t, int32_t>{2, 3}));
}

TEST_F(TokenizerLoad, HugeWords) {
  for (const char* name :
       {"bert_uncased", "byte_bpe", "bpe_bytes", "bpe_suffix", "split_whitespace", "normalizer_nfkc"}) {
    const auto t = Tokenizer::load(golden(name));
    for (const std::string unit : {"a", "é", "😂", "\x01", " "}) {
      std::string word;
      while (word.size() < 300000) word += unit;
      const Encoding full = t->encode(word);
      EXPECT_EQ(ids(*t, word), full.ids) << name;
    }
  }
}

TEST_F(TokenizerLoad, RejectsAFolderWithoutATokenizer) {
  expect_load_error({dir_.c_str(), "tokenizer.json", "vocab.txt"});
  dir_ /= "missing";
  expect_load_error({"missing", "not a directory"});
}

TEST_F(TokenizerLoad, RejectsInvalidVocabularies) {
  write("vocab.txt", std::string("a\nb\n"));
  expect_load_error({"vocab.txt", "2 tokens", "[UNK]"});
  write("vocab.txt", std::string("[UNK]\n[CLS]\n"));
  expect_load_error({"vocab.txt", "[SEP]"});
  write("vocab.txt", std::string("[UNK]\n\xFF\n"));
  expect_load_error({"vocab.txt", "line 2", "UTF-8"});
  write("vocab.txt", std::string());
  expect_load_error({"vocab.txt", "empty"});
  write("merges.txt", std::string("#version: 0.2\na b\n"));
  write("vocab.json", std::string("{\"a\": 0, \"b\": "));
  expect_load_error({"vocab.json", "byte", "not valid JSON"});
  write("vocab.json", Json{{"a", 0}, {"b", "1"}});
  expect_load_error({"vocab.json", "b is"});
  write("vocab.json", Json{{"a", 0}, {"b", 0}});
  expect_load_error({"id 0", "\"a\"", "\"b\""});
  write("vocab.json", Json{{"a", 0}, {"b", 1}});
  expect_load_error({"merges.txt", "\"ab\"", "not in the vocabulary"});
  write("merges.txt", std::string("a b\na b c\n"));
  expect_load_error({"merges.txt", "line 2", "a b c"});
  write("vocab.json", Json::array({1}));
  expect_load_error({"vocab.json", "object"});
}

TEST_F(TokenizerLoad, RejectsInvalidConfigurations) {
  write("vocab.txt", kVocab);
  write("tokenizer_config.json", Json{{"do_lower_case", "yes"}});
  expect_load_error({"tokenizer_config.json", "do_lower_case", "yes", "true or false"});
  write("tokenizer_config.json", Json{{"model_max_length", -3}});
  expect_load_error({"model_max_length", "-3"});
  write("tokenizer_config.json", Json{{"cls_token", "[START]"}});
  expect_load_error({"vocab.txt", "[START]"});
  write("tokenizer_config.json", Json{{"added_tokens_decoder", {{"x", {{"content", "y"}}}}}});
  expect_load_error({"added_tokens_decoder", "x"});
  write("tokenizer_config.json", std::string("[1,"));
  expect_load_error({"tokenizer_config.json: not valid JSON: parse error", "download the file again"});
  // Messages print values, so excessive depth must be rejected before a value exists.
  constexpr size_t kDeep = 1'000'000;
  write("tokenizer_config.json", "{\"do_lower_case\":" + std::string(kDeep, '[') + std::string(kDeep, ']') + "}");
  expect_load_error({"tokenizer_config.json", "nesting depth exceeds 100"});
  write("tokenizer_config.json", "{\"do_lower_case\":" + std::string(90, '[') + std::string(90, ']') + "}");
  expect_load_error({"tokenizer_config.json", "do_lower_case", "true or false"});
}

TEST_F(TokenizerLoad, RejectsUnknownClassesWithoutTokenizerJson) {
  write("vocab.txt", kVocab);
  for (const char* name : {"BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer", "ElectraTokenizerFast"}) {
    write("tokenizer_config.json", Json{{"tokenizer_class", name}});
    EXPECT_EQ(ids(*Tokenizer::load(dir_), "hello"), (Ids{2, 5, 3})) << name;
  }
  for (const char* name :
       {"BertJapaneseTokenizer", "BertTokenizerFastest", "RobertaTokenizer", "bertTokenizer", "Fast"}) {
    write("tokenizer_config.json", Json{{"tokenizer_class", name}});
    expect_load_error({"tokenizer_config.json", "tokenizer_class", name, "tokenizer.json", "transformers"});
  }
  // The class in config.json is used if tokenizer_config.json names none.
  write("tokenizer_config.json", Json{{"do_lower_case", true}});
  write("config.json", Json{{"tokenizer_class", "BertJapaneseTokenizer"}});
  expect_load_error({"/config.json", "BertJapaneseTokenizer"});
  write("tokenizer_config.json", Json{{"tokenizer_class", "BertTokenizer"}});
  EXPECT_EQ(ids(*Tokenizer::load(dir_), "hello"), (Ids{2, 5, 3}));
  // A tokenizer.json is self-contained, so the class is ignored.
  write("tokenizer_config.json", Json{{"tokenizer_class", "BertJapaneseTokenizer"}});
  write("tokenizer.json", read_file(golden("bert_uncased") / "tokenizer.json"));
  EXPECT_EQ(Tokenizer::load(dir_)->kind(), "wordpiece");
}

TEST_F(TokenizerLoad, RejectsUnknownByteBpeClasses) {
  const Json whole = Json::parse(read_file(golden("byte_bpe") / "tokenizer.json"));
  write("vocab.json", whole["model"]["vocab"]);
  write("merges.txt", std::string("#version: 0.2\n"));
  write("tokenizer_config.json", Json{{"tokenizer_class", "RobertaTokenizerFast"}});
  EXPECT_EQ(Tokenizer::load(dir_)->kind(), "byte_bpe");
  for (const char* name : {"GPT2Tokenizer", "BertTokenizer"}) {
    write("tokenizer_config.json", Json{{"tokenizer_class", name}});
    expect_load_error({"tokenizer_config.json", name, "tokenizer.json"});
  }
}

TEST_F(TokenizerLoad, RejectsNamedPipes) {
  const auto rejects_pipe = [&](const char* name) {
    fs::remove(dir_ / name);
    ASSERT_EQ(::mkfifo((dir_ / name).c_str(), 0600), 0);
    expect_load_error({name, "a named pipe"});
    fs::remove(dir_ / name);
  };
  for (const char* name : {"vocab.txt", "tokenizer.json", "spm.model", "tokenizer_config.json"}) rejects_pipe(name);
  write("vocab.txt", kVocab);
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json"})
    rejects_pipe(name);
}

// 40 rules that double the text would expand one letter to a tebibyte.
TEST_F(TokenizerLoad, RejectsNormalizersWithUnboundedGrowth) {
  const Json doubling = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  const Json regex = {{"type", "Replace"}, {"pattern", {{"Regex", "a"}}}, {"content", "aa"}};
  const Json bytes = {{"type", "ByteLevel"}};
  const Json ligature = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "\uFDFA\uFDFAa"}};
  for (const Json& rule : {doubling, regex, bytes, ligature}) {
    Json json = Json::parse(read_file(golden("bert_uncased") / "tokenizer.json"));
    Json inner = Json::array(), outer = Json::array();
    for (int i = 0; i < 20; ++i) inner.push_back(rule);
    for (int i = 0; i < 2; ++i) outer.push_back({{"type", "Sequence"}, {"normalizers", inner}});
    outer.push_back({{"type", "NFKD"}});
    if (rule == ligature) outer = Json::array({rule, {{"type", "NFKD"}}, rule, rule});
    json["normalizer"] = {{"type", "Sequence"}, {"normalizers", outer}};
    json["added_tokens"] = Json::array();
    write("tokenizer.json", json);
    const auto tokenizer = Tokenizer::load(dir_);
    const std::string text = rule == bytes ? std::string("\u00e4") : std::string(rule == ligature ? 4000 : 1, 'a');
    const std::string limit = std::to_string(32 * text.size() + (64 << 10));
    if (rule == ligature) {  // 61 bytes per letter: allowed for short texts
      EXPECT_FALSE(ids(*tokenizer, "a").empty());
    }
    EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { ids(*tokenizer, text); }), limit);
    EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { tokenizer->encode(text); }), limit);
    EXPECT_EQ(ids(*tokenizer, ""), (Ids{tokenizer->cls_id(), tokenizer->sep_id()}));  // still usable after an error
  }
}

// The densest compatibility decomposition stays below the limit, so no real normalizer is rejected.
TEST_F(TokenizerLoad, AcceptsLongTextsOfLigatures) {
  Json json = Json::parse(read_file(golden("byte_bpe") / "tokenizer.json"));
  json["normalizer"] = {{"type", "NFKD"}};
  write("tokenizer.json", json);
  std::string text;
  for (int i = 0; i < 50'000; ++i) text += "\uFDFA";
  EXPECT_GT(ids(*Tokenizer::load(dir_), text).size(), 50'000u);
}

TEST_F(TokenizerLoad, RejectsInvalidTokenizerJson) {
  const Json good = Json::parse(read_file(golden("bert_uncased") / "tokenizer.json"));
  const auto with = [&](const char* pointer, const Json& value) {
    Json changed = good;
    changed[Json::json_pointer(pointer)] = value;
    write("tokenizer.json", changed);
  };
  write("tokenizer.json", std::string("{\"version\": \"1.0\", \"model\": {"));
  expect_load_error({"tokenizer.json: not valid JSON at byte ", ": parse error", "download the file again"});
  write("tokenizer.json", Json::object());
  expect_load_error({"tokenizer.json", "model", "missing"});
  with("/model/type", "Markov");
  expect_load_error({"tokenizer.json", "model.type", "Markov"});
  with("/model/vocab", Json::object());
  expect_load_error({"model.vocab", "WordPiece"});
  with("/model/vocab/a", -1);
  expect_load_error({"tokenizer.json", "model.vocab.a", "-1"});
  with("/model/vocab/a", "x");
  expect_load_error({"model.vocab.a"});
  with("/model/vocab/a", 3);
  expect_load_error({"id 3", "[SEP]", "\"a\""});
  with("/model/unk_token", "<none>");
  expect_load_error({"<none>"});
  with("/model/max_input_chars_per_word", "many");
  expect_load_error({"model.max_input_chars_per_word", "many"});
  with("/normalizer/type", "Shout");
  expect_load_error({"normalizer.type", "Shout"});
  with("/normalizer/lowercase", 7);
  expect_load_error({"normalizer.lowercase", "7"});
  with("/pre_tokenizer", Json{{"type", "Split"}, {"pattern", {{"Regex", "(?<n>a)"}}}, {"behavior", "Isolated"}});
  expect_load_error({"pre_tokenizer.pattern.Regex", "(?<n>a)", "unsupported pattern"});
  with("/pre_tokenizer", Json{{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Lost"}});
  expect_load_error({"pre_tokenizer.behavior", "Lost"});
  with("/post_processor/single/0/SpecialToken/id", "[NONE]");
  expect_load_error({"post_processor.single[0]", "[NONE]"});
  with("/post_processor/type", "Extra");
  expect_load_error({"post_processor.type", "Extra"});
  with("/added_tokens/1/id", 0);
  expect_load_error({"added_tokens[1].id", "[PAD]", "[UNK]"});
  with("/added_tokens/1/content", 5);
  expect_load_error({"added_tokens[1].content", "5"});
  write("tokenizer.json", std::string(2000, '['));
  expect_load_error({"tokenizer.json"});
}

// vocab_size determines the size of the embedding table, for any form of the template.
TEST_F(TokenizerLoad, CountsTemplateIdsOnOneSide) {
  Json json = Json::parse(read_file(golden("bert_uncased") / "tokenizer.json"));
  const int64_t far = 5'000'000;
  json["post_processor"]["special_tokens"]["[FAR]"] = {
      {"id", "[FAR]"}, {"ids", Json::array({far})}, {"tokens", Json::array({"[FAR]"})}};
  const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const Json special = {{"SpecialToken", {{"id", "[FAR]"}, {"type_id", 0}}}};
  for (const Json& single : {Json::array({special}), Json::array({text, special, text})}) {
    json["post_processor"]["single"] = single;
    write("tokenizer.json", json);
    const auto tokenizer = Tokenizer::load(dir_);
    EXPECT_EQ(tokenizer->vocab_size(), far + 1);
    EXPECT_EQ(std::ranges::count(ids(*tokenizer, "hello"), far), 1);
  }
}

TEST_F(TokenizerLoad, FuzzTokenizerJson) {
  std::vector<std::string> seeds;
  for (const char* name : {"bpe_prefix", "bpe_bytes", "split_regex_next", "split_sequence"}) {
    std::string text = read_file(golden(name) / "tokenizer.json");
    seeds.push_back(std::move(text));
  }
  Json small = Json::parse(read_file(golden("bert_uncased") / "tokenizer.json"));
  small["model"]["vocab"] = Json{{"[UNK]", 0}, {"[CLS]", 1}, {"[SEP]", 2}, {"a", 3}, {"##a", 4}, {"the", 5}};
  seeds.push_back(small.dump());
  Json& single = small["post_processor"]["single"];  // the text twice, tokens between
  const Json once = single;
  single.insert(single.end(), once.begin(), once.end());
  small["post_processor"]["special_tokens"]["[SEP]"]["ids"] = Json::array({900});
  seeds.push_back(small.dump());
  seeds.push_back(
      R"({"model":{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0.0],["a",-1],["▁the",-2.5]]},"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"}})");
  drive_fuzz(fuzz_tokenizer_json, seeds, 3000);
}

TEST_F(TokenizerLoad, FuzzEncode) {
  drive_fuzz(fuzz_tokenizer_encode,
             {"Hello, the café's [MASK] <mask> 12!", "中文 ㎏ ½ e\u0301\u0323 \u0344 한국어",
              "\xFF\xC3 \xE2\x80\x8D 😂👍🏽  \x01\x7F", "tag @user it'll''re \u3000 don't"},
             6000);
}

}  // namespace
}  // namespace brim::text
