// SPDX-License-Identifier: Apache-2.0
// Model directories: lookup, damaged files, `brim models list`, `show` and `export`.
#include <fmt/format.h>

#include <cmath>

#include "cli/program.h"

namespace brim {
namespace {

namespace fs = std::filesystem;

class Models : public ProgramTest {
 protected:
  Outcome score(const std::string& model, std::vector<std::string> more = {}) const {
    std::vector<std::string> all = {"score", "--model",         model,  "--device", "cpu", "--all-scores",
                                    "-q",    "--output-format", "jsonl"};
    all.insert(all.end(), more.begin(), more.end());
    return brim(all, {.input = "w5 w6 w7\nw8\n"});
  }
  void bad_model(const std::string& model, const std::vector<std::string>& parts) const {
    refused(4, parts, {"score", "--model", model, "--device", "cpu", "-o", "o.csv"}, {.input = "w5\n"});
    EXPECT_FALSE(exists("o.csv"));
    EXPECT_FALSE(exists("o.csv.part"));
  }
};

TEST_F(Models, MissingModelSuggestsDownload) {
  refused(2, {"'finbert'", "brim pull ProsusAI/finbert"}, {"score", "--model", "finbert"}, {.input = "a\n"});
  refused(2, {"'fibert'", "did you mean finbert?"}, {"score", "--model", "fibert"}, {.input = "a\n"});
  refused(2, {"no weights"}, {"models", "export", "vader", "-o", "out"});
  refused(2, {"directory not found"}, {"score", "--model", "./nothere"}, {.input = "a\n"});
  refused(2, {"is a file"}, {"score", "--model", "tiny/config.json"}, {.input = "a\n"});
  fs::create_symlink("loop", folder_ / "loop");  // fails like a directory without permission, also for root
  refused(2, {"--model 'loop': Too many levels of symbolic links"}, {"score", "--model", "loop"}, {.input = "a\n"});
  fs::remove(folder_ / "tiny/config.json");
  fs::create_symlink("config.json", folder_ / "tiny/config.json");
  bad_model("tiny", {"tiny/config.json: cannot open: Too many levels of symbolic links"});
}

TEST_F(Models, FindsModelsInSearchPath) {
  fs::create_directories(folder_ / "zoo");
  make_model("bert_sequence", "zoo/mine");
  EXPECT_EQ(brim({"score", "--model", "mine", "-q"},
                 {.input = "w5\n", .environment = {{"BRIM_MODELS", (folder_ / "zoo").string()}}})
                .code,
            0);
  make_model("bert_sequence", "hub/models--ProsusAI--finbert/snapshots/abc");
  put("hub/models--ProsusAI--finbert/refs/main", "abc");
  const Surroundings hub{.input = "w5\n", .environment = {{"HF_HUB_CACHE", (folder_ / "hub").string()}}};
  EXPECT_EQ(brim({"score", "--model", "finbert", "-q"}, hub).code, 0);
  const std::string list = must({"models", "list"}, hub);
  EXPECT_NE(list.find("vader"), std::string::npos);
  EXPECT_NE(list.find("ProsusAI/finbert"), std::string::npos) << list;
}

// The labels of a bi-encoder have vectors of their own, so its tokenizer may have more ids than its encoder has
// vectors.
TEST_F(Models, ShowDescribesGlinerModels) {
  for (const char* name : {"bi_token", "bi_span", "token", "span_rnn"})
    EXPECT_NE(must({"models", "show", std::string(BRIM_SOURCE_DIR) + "/tests/data/gliner/" + name})
                  .find("entities by label (GLiNER)"),
              std::string::npos)
        << name;
}

TEST_F(Models, ShowDescribesModel) {
  const std::string shown = must({"models", "show", "tiny"});
  for (const char* part : {"bert", "sequence classification", "2 layers", "hidden 48", "44 tokens",
                           "negative, neutral, positive", "wordpiece"})
    EXPECT_NE(shown.find(part), std::string::npos) << part << "\n" << shown;
  EXPECT_NE(must({"models", "show", "vader"}).find("vaderSentiment"), std::string::npos);
  edit_config("tiny", [](nlohmann::json& config) {
    config["id2label"] = {{"0", "a"}, {"1", "b"}};
    config["label2id"] = {{"a", 0}, {"b", 1}};
  });
  refused(4, {"classifier", "[3,48]", "different models"}, {"models", "show", "tiny"});
}

TEST_F(Models, ExportsInt8AndBack) {
  must({"models", "export", "tiny", "--precision", "int8", "-o", "tiny8"});
  EXPECT_EQ(json_of("tiny8/config.json").contains("quantization_config"), true);
  must({"models", "export", "tiny8", "--precision", "fp32", "-o", "back"});
  EXPECT_EQ(json_of("back/config.json").contains("quantization_config"), false);
  for (const char* half : {"fp16", "bf16"}) must({"models", "export", "tiny", "--precision", half, "-o", half});
  for (const auto& [dir, stored] : {std::pair("tiny", "fp32"), std::pair("tiny8", "int8"), std::pair("back", "fp32"),
                                    std::pair("fp16", "fp16"), std::pair("bf16", "bf16")})
    EXPECT_NE(must({"models", "show", dir}).find(fmt::format("model.safetensors, {})", stored)), std::string::npos)
        << dir;
  const auto want = json_lines(score("tiny", {"--precision", "fp32"}).out);
  for (const char* model : {"tiny8", "back", "fp16", "bf16"}) {
    const Outcome got = score(model, {"--precision", "fp32"});
    ASSERT_EQ(got.code, 0) << got.err;
    const auto rows = json_lines(got.out);
    ASSERT_EQ(rows.size(), want.size());
    for (size_t i = 0; i < rows.size(); ++i)
      for (const auto& [label, p] : want[i].at("scores").items())
        EXPECT_NEAR(rows[i].at("scores").at(label).get<double>(), p.get<double>(), 0.03) << model;
  }
  // Equal up to tables that the CPU keeps in 16 bits if they are stored in 8.
  const auto stored = json_lines(score("tiny8", {"--precision", "fp32"}).out),
             widened = json_lines(score("back", {"--precision", "fp32"}).out);
  for (size_t i = 0; i < stored.size(); ++i)
    EXPECT_NEAR(stored[i].at("score").get<double>(), widened[i].at("score").get<double>(), 1e-3);
  EXPECT_EQ(score("tiny8", {"--precision", "int8"}).code, 0);
  refused(7, {"tiny8"}, {"models", "export", "tiny", "--precision", "int8", "-o", "tiny8"});
  refused(2, {"--precision int4", "int8"}, {"models", "export", "tiny", "--precision", "int4", "-o", "x"});
  refused(2, {"-o DIR"}, {"models", "export", "tiny", "--precision", "int8"});
}

TEST_F(Models, FailedExportsCanBeRepeated) {
  const Surroundings full{.file_limit = 4096};
  fs::create_directories(folder_ / "empty");
  for (const char* out : {"new", "empty"}) {
    refused(7, {"model.safetensors", "File too large"}, {"models", "export", "tiny", "-o", out}, full);
    EXPECT_EQ(exists(out), std::string(out) == "empty");
    must({"models", "export", "tiny", "-o", out});
    EXPECT_TRUE(exists(std::string(out) + "/config.json"));
  }
}

TEST_F(Models, RejectsTruncatedAndInconsistentWeights) {
  const std::string whole = get("tiny/model.safetensors");
  for (const size_t size : {size_t{0}, size_t{7}, size_t{100}, whole.size() / 2, whole.size() - 1}) {
    put("tiny/model.safetensors", whole.substr(0, size));
    bad_model("tiny", {"model.safetensors"});
  }
  std::string lying = whole;
  lying[0] = '\xff';
  lying[6] = '\x7f';  // header length
  put("tiny/model.safetensors", lying);
  bad_model("tiny", {"model.safetensors"});
  fs::remove(folder_ / "tiny/model.safetensors");
  bad_model("tiny", {"tiny", "model.safetensors"});
}

// Messages contain the key, its value and the actual value.
TEST_F(Models, RejectsContradictoryConfigs) {
  struct Case {
    const char* model;
    nlohmann::json changed;
    std::vector<std::string> parts;
  };
  const std::vector<Case> cases = {
      {"bert_sequence",
       {{"id2label", {{"0", "a"}, {"1", "b"}}}, {"label2id", {{"a", 0}, {"b", 1}}}},
       {"classifier", "[3,48]", "[2,48]", "\"id2label\" has 2"}},
      {"bert_sequence", {{"hidden_size", 50}}, {"\"hidden_size\" 50", "\"num_attention_heads\" 3"}},
      {"bert_sequence", {{"vocab_size", 97}}, {"[96,48]", "[97,48]", "\"vocab_size\" is 97"}},
      {"bert_sequence", {{"num_hidden_layers", 3}}, {"\"num_hidden_layers\"", "requires at least 3", "have 2"}},
      {"albert_groups", {{"num_hidden_groups", 3}}, {"\"num_hidden_groups\"", "requires at least 3", "have 2"}},
      {"bert_sequence", {{"model_type", "gpt2"}}, {"\"model_type\" is 'gpt2'", "supported are bert"}},
      {"bert_sequence", {{"hidden_act", "mish"}}, {"\"hidden_act\" is 'mish'", "gelu_new"}},
      {"bert_sequence",
       {{"position_embedding_type", "relative_key"}},
       {"\"position_embedding_type\" is 'relative_key'", "absolute"}},
      {"modernbert_sequence",
       {{"layer_types", {"full_attention", "banded", "banded", "full_attention"}}},
       {"\"layer_types\" is", "banded", "sliding_attention"}},
  };
  for (const Case& c : cases) {
    make_model(c.model, "broken");
    edit_config("broken", [&](nlohmann::json& config) { config.update(c.changed); });
    bad_model("broken", c.parts);
  }
  put("tiny/config.json", "{\"model_type\": \"bert\",");
  bad_model("tiny", {"config.json"});
  fs::remove(folder_ / "tiny/config.json");
  bad_model("tiny", {"config.json"});
}

TEST_F(Models, RejectsPairsIfUnsupported) {
  put("pairs.csv", "text,other\nw5,w6\n");
  const auto refuses = [&](const std::vector<std::string>& parts) {
    refused(4, parts, {"score", "pairs.csv", "--pair-column", "other", "--model", "tiny", "--device", "cpu"});
    refused(4, parts,
            {"profile", "--texts", "pairs.csv", "--pair-column", "other", "--model", "tiny", "--device", "cpu"});
  };
  make_model("roberta_sequence", "tiny");  // one token type, while pairs in BERT's format need two
  refuses({"token type 1", "has only 1", "type_vocab_size"});
  make_model("bert_sequence", "tiny");
  nlohmann::json tokenizer = {{"post_processor", nullptr}, {"pre_tokenizer", {{"type", "Whitespace"}}}};
  tokenizer["model"] = {{"type", "WordPiece"}, {"unk_token", "w1"}, {"vocab", {{"w0", 0}, {"w1", 1}, {"w5", 2}}}};
  put("tiny/tokenizer.json", tokenizer.dump());
  refuses({"no separator", "\"post_processor\" has 0", "at least 1"});
}

TEST_F(Models, RejectsVocabulariesOfWrongSize) {
  std::string vocabulary = get("tiny/vocab.txt");
  put("tiny/vocab.txt", vocabulary + "w96\nw97\n");
  bad_model("tiny", {"97", "96"});
  put("tiny/vocab.txt", "w5\nw6\n");
  bad_model("tiny", {"vocab.txt"});
  fs::remove(folder_ / "tiny/vocab.txt");
  bad_model("tiny", {"tiny", "tokenizer"});
}

// `models show` and `plan` reject every model that `score` rejects.
TEST_F(Models, ShowAndPlanCheckWeightsAndTokenizer) {
  const auto refuse_all = [&](const std::vector<std::string>& parts) {
    bad_model("tiny", parts);
    refused(4, parts, {"models", "show", "tiny"});
    refused(4, parts, {"plan", "--model", "tiny", "--device", "rtx3060"});
  };
  put("tiny/vocab.txt", get("tiny/vocab.txt") + "w96\nw97\n");
  refuse_all({"largest id is 97", "96 rows"});
  make_model("bert_encoder", "tiny");
  edit_config("tiny", [](nlohmann::json& config) { config["architectures"] = {"BertForSequenceClassification"}; });
  refuse_all({"classification head is missing"});
  must({"plan", "--model", "tiny", "--task", "train", "--device", "rtx3060"});
  make_model("bert_sequence", "tiny");
  edit_config("tiny", [](nlohmann::json& config) { config["intermediate_size"] = 81; });
  refuse_all({"\"intermediate_size\" is 81"});
}

TEST_F(Models, RejectsScoringWithEncoderWithoutHead) {
  make_model("bert_encoder", "plain");
  bad_model("plain", {"no classification head", "brim train", "brim embed"});
}

}  // namespace
}  // namespace brim
