// SPDX-License-Identifier: Apache-2.0
#include "hub/sentence_settings.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/test_files.h"
#include "hub/model_dir.h"
#include "hub/sentence_testing.h"

namespace brim::hub {
namespace {

class SentenceSettingsTest : public ::testing::Test {
 protected:
  std::string problem() {
    return error_of(ErrorCode::bad_model, [&] { load_sentence_settings(dir_.path()); });
  }
  const TempDir dir_;
};

TEST_F(SentenceSettingsTest, HasDefaultsWithoutFiles) {
  put_file(dir_ / "sentence_bert_config.json", R"({"max_seq_length":7})");
  const SentenceSettings s = load_sentence_settings(dir_.path());
  EXPECT_FALSE(s.normalize || s.lower_case || s.pooling);
  EXPECT_EQ(s.max_length, 0);
  EXPECT_EQ(s.prompt(), "");
}

TEST_F(SentenceSettingsTest, ReadsAllFiles) {
  put_modules(dir_.path(), R"({"pooling_mode_mean_tokens":true,"include_prompt":false})", {"Normalize"});
  put_file(dir_ / "sentence_bert_config.json", R"({"max_seq_length":128,"do_lower_case":true})");
  put_file(dir_ / "config_sentence_transformers.json",
           R"({"prompts":{"query":"q: ","passage":"p: "},"default_prompt_name":"passage","truncate_dim":16,
               "similarity_fn_name":"cosine"})");
  const SentenceSettings s = load_sentence_settings(dir_.path());
  EXPECT_TRUE(s.normalize && s.lower_case);
  EXPECT_FALSE(s.include_prompt);
  EXPECT_EQ(s.pooling, SentenceSettings::Pooling::mean);
  EXPECT_EQ(s.max_length, 128);
  EXPECT_EQ(s.truncate_dim, 16);
  EXPECT_EQ(s.prompt(), "p: ");
  EXPECT_EQ(s.prompt("query"), "q: ");
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { s.prompt("question"); }), "`prompt_name=question`");
}

TEST_F(SentenceSettingsTest, ReadsEverySpellingOfPooling) {
  using Pooling = SentenceSettings::Pooling;
  for (const auto& [config, pooling] :
       std::vector<std::pair<std::string, Pooling>>{{kClsPooling, Pooling::cls},
                                                    {kMeanPooling, Pooling::mean},
                                                    {"{}", Pooling::mean},
                                                    {R"({"pooling_mode_cls_token":true})", Pooling::cls},
                                                    {R"({"pooling_mode_mean_tokens":false})", Pooling::mean},
                                                    {R"({"pooling_mode":"cls"})", Pooling::cls},
                                                    {R"({"pooling_mode":["mean"]})", Pooling::mean}}) {
    put_modules(dir_.path(), config);
    EXPECT_EQ(load_sentence_settings(dir_.path()).pooling, pooling) << config;
  }
}

TEST_F(SentenceSettingsTest, RejectsUnsupportedModulesAndValues) {
  put_modules(dir_.path(), kMeanPooling, {"Dense"});
  EXPECT_HAS(problem(), "modules.json: `type` is Dense");
  for (const auto& [config, message] : std::vector<std::pair<std::string, std::string>>{
           {R"({"pooling_mode_weightedmean_tokens":true,"pooling_mode_mean_tokens":false})", "weightedmean_tokens"},
           {R"({"pooling_mode_max_tokens":true,"pooling_mode_mean_tokens":true})", "max_tokens + mean_tokens"},
           {R"({"pooling_mode_cls_token":true,"include_prompt":false})", "`include_prompt` is false"},
           {R"({"pooling_mode":[]})", "(none)"},
           {R"({"pooling_mode":"lasttoken"})", "lasttoken"},
           {R"({"pooling_mode_mean_tokens":1})", "`pooling_mode_mean_tokens` is 1"}}) {
    put_modules(dir_.path(), config);
    EXPECT_HAS(problem(), "1_Pooling/config.json: ");
    EXPECT_HAS(problem(), message);
  }
  put_modules(dir_.path(), R"({"pooling_mode":"lasttoken"})");
  EXPECT_FALSE(load_sentence_settings(dir_.path(), true).pooling);
  put_modules(dir_.path(), kMeanPooling);
  for (const auto& [file, text, message] : std::vector<std::array<std::string, 3>>{
           {"config_sentence_transformers.json", R"({"default_prompt_name":"q"})", "`default_prompt_name` is \"q\""},
           {"config_sentence_transformers.json", R"({"truncate_dim":-3})", "`truncate_dim` is -3"},
           {"sentence_bert_config.json", R"({"max_seq_length":"long"})", "`max_seq_length` is \"long\""},
           {"modules.json", "{", "modules.json"},
           {"modules.json", R"([{"path":"0_Transformer","type":"a.Transformer"}])", "`path` is 0_Transformer"},
           {"modules.json", R"([{"path":"../x","type":"a.Pooling"}])", "`path` is \"../x\""}}) {
    const std::string before = std::filesystem::exists(dir_ / file) ? get_file(dir_ / file) : "{}";
    put_file(dir_ / file, text);
    EXPECT_HAS(problem(), message);
    put_file(dir_ / file, before);
  }
}

TEST_F(SentenceSettingsTest, ReportsFilesThatCannotBeRead) {
  put_modules(dir_.path(), kClsPooling);
  for (const char* name : {"config_sentence_transformers.json", "sentence_bert_config.json", "modules.json"}) {
    std::filesystem::remove(dir_ / name);
    std::filesystem::create_symlink(dir_ / "missing", dir_ / name);
    EXPECT_HAS(problem(), std::string(name) + ": cannot open");
    std::filesystem::remove(dir_ / name);
    ASSERT_EQ(::mkfifo((dir_ / name).c_str(), 0600), 0);
    EXPECT_HAS(problem(), std::string(name) + ": is a named pipe, not a regular file");
    std::filesystem::remove(dir_ / name);
  }
}

TEST_F(SentenceSettingsTest, CopiesItsFilesAndListsThemAsModelFiles) {
  put_modules(dir_ / "in", kClsPooling, {"Normalize"});
  put_file(dir_ / "in/sentence_bert_config.json", R"({"max_seq_length":128})");
  put_file(dir_ / "in/config_sentence_transformers.json", "{}");
  put_file(dir_ / "in/README.md", "text");
  std::filesystem::create_directory(dir_ / "out");
  copy_sentence_files(dir_ / "in", dir_ / "out");
  EXPECT_EQ(load_sentence_settings(dir_ / "out").pooling, SentenceSettings::Pooling::cls);
  EXPECT_EQ(load_sentence_settings(dir_ / "out").max_length, 128);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "out/README.md"));
  const std::string facts = model_facts(dir_ / "in");
  EXPECT_HAS(facts, "1_Pooling/config.json ");
  put_file(dir_ / "in/1_Pooling/config.json", kMeanPooling);
  EXPECT_NE(model_facts(dir_ / "in"), facts);
}

}  // namespace
}  // namespace brim::hub
