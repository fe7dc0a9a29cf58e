// SPDX-License-Identifier: Apache-2.0
// Tests gliner_config.json: keys, rejected variants, and the encoder's configuration.
#include "hub/gliner_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/fuzz_driver.h"
#include "base/test_files.h"
#include "hub/model_dir.h"
#include "hub/weights.h"

#define LLVMFuzzerTestOneInput fuzz_gliner_config
#include "hub/gliner_config_fuzz.cc"
#undef LLVMFuzzerTestOneInput

namespace brim::hub {
namespace {

using nlohmann::json;

class GlinerConfigTest : public ::testing::Test {
 protected:
  void write(const json& changes) {
    json config = {{"model_name", "example/encoder"}, {"span_mode", "markerV0"}, {"class_token_index", 102}};
    config["encoder_config"] = {{"hidden_size", 24},
                                {"num_hidden_layers", 2},
                                {"num_attention_heads", 2},
                                {"vocab_size", 104},
                                {"relative_attention", true}};
    config.update(changes);
    put_file(dir_ / "gliner_config.json", config.dump());
  }
  std::string problem(const json& changes) {
    write(changes);
    try {
      (void)load_gliner_config(dir_);
      (void)load_gliner_encoder(dir_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_model);
      return error.what();
    }
    return "none";
  }
  const TempDir temp_;
  const std::filesystem::path dir_ = temp_.path();
};

TEST_F(GlinerConfigTest, ReadsKeysAndDefaults) {
  write({{"num_rnn_layers", 0}, {"max_width", 8}, {"subtoken_pooling", "mean"}, {"embed_ent_token", false}});
  const GlinerConfig c = load_gliner_config(dir_);
  EXPECT_FALSE(c.token_level);
  EXPECT_EQ(c.max_width, 8);
  EXPECT_EQ(c.hidden_size, 512);
  EXPECT_EQ(c.rnn_layers, 0);
  EXPECT_EQ(c.max_words, 384);
  EXPECT_EQ(c.pooling, GlinerConfig::Pooling::mean);
  EXPECT_FALSE(c.embed_marker);
  EXPECT_EQ(c.label_marker, "<<ENT>>");
  EXPECT_EQ(c.label_marker_id, 102);
  const HfConfig encoder = load_hf_config(dir_);
  EXPECT_EQ(encoder.family, Family::deberta);  // GLiNER's default
  EXPECT_EQ(encoder.vocab_size, 104);
  EXPECT_EQ(head_kind(encoder, {"classifier.weight"}), HeadKind::encoder);
  EXPECT_EQ(tokenizer_dir("plain"), "plain");
}

TEST_F(GlinerConfigTest, NamesKeyAndValueOfUnsupportedVariants) {
  const std::pair<json, const char*> cases[] = {
      {{{"span_mode", "conv_max"}}, "\"span_mode\" is 'conv_max'"},
      {{{"labels_encoder", 3}}, "\"labels_encoder\" is '3'"},
      {{{"labels_encoder", "a/b"}, {"labels_encoder_config", 3}}, "\"labels_encoder_config\" is '3'"},
      {{{"labels_encoder", "a/b"}, {"post_fusion_schema", "l2l-l2t-t2t"}}, "\"post_fusion_schema\" is '\"l2l"},
      {{{"labels_decoder", "gpt2"}}, "\"labels_decoder\" is"},
      {{{"relations_layer", "biaffine"}}, "\"relations_layer\" is"},
      {{{"represent_spans", true}}, "\"represent_spans\" is 'true'"},
      {{{"words_splitter_type", "spacy"}}, "\"words_splitter_type\" is 'spacy'"},
      {{{"subtoken_pooling", "sum"}}, "\"subtoken_pooling\" is 'sum'"},
      {{{"max_width", 0}}, "\"max_width\" is '0'"},
      {{{"hidden_size", 15}}, "\"hidden_size\" 15 is odd"},
      {{{"ent_token", ""}}, "\"ent_token\" is empty"},
      {{{"encoder_config", 3}}, "\"encoder_config\" is '3'"},
      {{{"encoder_config", {{"model_type", "t5"}}}}, "\"model_type\" is 't5'"},
  };
  for (const auto& [changes, wanted] : cases) {
    const std::string found = problem(changes);
    EXPECT_NE(found.find(wanted), std::string::npos) << found;
    EXPECT_NE(found.find("gliner_config.json"), std::string::npos) << found;
  }
  EXPECT_EQ(problem({{"post_fusion_schema", ""}, {"fuse_layers", false}, {"labels_encoder", nullptr}}), "none");
}

TEST_F(GlinerConfigTest, NamesRelatedModels) {
  for (const auto& [type, name] :
       {std::pair("GLiClass", "GLiClass is not"), std::pair("extractor", "GLiNER2 is not")}) {
    try {
      (void)parse_hf_config(json({{"model_type", type}}).dump(), "config.json");
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  }
}

TEST_F(GlinerConfigTest, MissingEncoderNamesThePullCommand) {
  ::setenv("HF_HUB_CACHE", (temp_ / "cache").c_str(), 1);
  write({{"encoder_config", nullptr}, {"model_name", "example/not-here"}, {"labels_encoder", "example/nor-here"}});
  const std::filesystem::path labels = labels_encoder_dir(dir_);
  for (const auto& [dir, name] : {std::pair(dir_, "not-here"), std::pair(labels, "nor-here")})
    for (const auto& load : {+[](const std::filesystem::path& d) { (void)load_hf_config(d); },
                             +[](const std::filesystem::path& d) { (void)tokenizer_dir(d); }}) {
      try {
        load(dir);
        FAIL() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::bad_model);
        EXPECT_NE(std::string(error.what()).find(std::string("brim pull example/") + name), std::string::npos)
            << error.what();
      }
    }
  ::unsetenv("HF_HUB_CACHE");
}

TEST_F(GlinerConfigTest, FilesOfOtherDirectoriesBelongToTheModel) {
  const std::filesystem::path encoder = temp_ / "encoder";
  std::filesystem::create_directories(encoder);
  std::filesystem::create_directories(dir_ / "labels_tokenizer");
  for (const char* name : {"vocab.txt", "config.json", "model.safetensors"}) put_file(encoder / name, name);
  put_file(dir_ / "labels_tokenizer/vocab.txt", "labels");
  write({{"model_name", encoder.string()}, {"labels_encoder", encoder.string()}});
  const auto has = [&](const std::filesystem::path& file) {
    const auto files = model_files(dir_);
    return std::count(files.begin(), files.end(), file.string());
  };
  EXPECT_EQ(has(encoder / "vocab.txt"), 1);
  EXPECT_EQ(has(dir_ / "labels_tokenizer/vocab.txt"), 1);
  EXPECT_EQ(has(encoder / "model.safetensors"), 0) << "not read";
  const std::string facts = model_facts(dir_);
  put_file(encoder / "vocab.txt", "other words");
  EXPECT_NE(model_facts(dir_), facts);
}

TEST(GlinerConfigFuzz, NeverCrashes) {
  std::vector<std::string> seeds;
  for (const char* name : {"span", "span_rnn", "token", "token_rnn"})
    seeds.push_back(
        get_file(std::filesystem::path(BRIM_SOURCE_DIR) / "tests/data/gliner" / name / "gliner_config.json"));
  drive_fuzz(fuzz_gliner_config, seeds, 1500);
}

TEST(GlinerLabelsEncoder, IsReadLikeAModelDirectory) {
  const std::filesystem::path model = std::filesystem::path(BRIM_SOURCE_DIR) / "tests/data/gliner/bi_span";
  const std::filesystem::path labels = labels_encoder_dir(model);
  EXPECT_TRUE(is_labels_encoder(labels));
  EXPECT_FALSE(is_labels_encoder(model));
  EXPECT_FALSE(is_labels_encoder(labels_encoder_dir(labels)));
  EXPECT_EQ(load_gliner_config(model).labels_encoder, "example/labels-encoder");
  const HfConfig config = load_hf_config(labels);
  EXPECT_EQ(config.family, Family::bert);
  EXPECT_EQ(config.hidden_size, 12);
  EXPECT_EQ(load_hf_config(model).hidden_size, 24);
  EXPECT_EQ(tokenizer_dir(labels), model / "labels_tokenizer");
  EXPECT_EQ(model_facts(labels), model_facts(model));
  const auto weights = WeightSource::open(labels);
  EXPECT_EQ(weights->require("embeddings.word_embeddings.weight").shape[1], 12);
  EXPECT_FALSE(weights->has("token_rep_layer.labels_projection.weight"));
  EXPECT_EQ(WeightSource::open(model)->require("embeddings.word_embeddings.weight").shape[1], 24);
}

}  // namespace
}  // namespace brim::hub
