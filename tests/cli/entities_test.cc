// SPDX-License-Identifier: Apache-2.0
// Entities by name on the command line: score and eval with --entities and GLiNER models; rejected settings and models.
#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "cli/program.h"

namespace brim {
namespace {

using nlohmann::json;

class EntitiesProgram : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    for (const char* name : {"span_rnn", "bi_span"})
      std::filesystem::copy(std::filesystem::path(BRIM_SOURCE_DIR) / "tests/data/gliner" / name, folder_ / name,
                            std::filesystem::copy_options::recursive);
    put("texts.txt", "Ada Lovelace lives in London\n\nParis bank\n");
  }
  static std::vector<std::string> with(std::vector<std::string> first, const std::vector<std::string>& more) {
    first.insert(first.end(), more.begin(), more.end());
    return first;
  }
  static std::vector<std::string> names(std::vector<std::string> more, const char* model = "span_rnn") {
    return with({"score", "texts.txt", "--model", model, "--device", "cpu", "-q", "--precision", "fp32"}, more);
  }
  void edit_gliner(const std::string& model, const json& changes) const {
    json config = json_of(model + "/gliner_config.json");
    config.update(changes);
    put(model + "/gliner_config.json", config.dump());
  }
};

// Results equal the goldens of the gliner package, also if rows repeat.
TEST_F(EntitiesProgram, ScoresEqualGliner) {
  for (const char* model : {"span_rnn", "bi_span"}) {
    const json golden = json_of(std::string(model) + "/golden.json");
    const json& c = golden["cases"][3];
    std::string rows, labels;
    constexpr size_t kFirst = 16, kRepeats = 40;  // texts of plain words
    for (size_t i = 0; i < kRepeats; ++i)
      for (size_t t = kFirst; t < golden["texts"].size(); ++t)
        rows += json({{"text", golden["texts"][t]}}).dump() + "\n";
    put("rows.jsonl", rows);
    for (const auto& label : c["labels"]) labels += (labels.empty() ? "" : ",") + label.get<std::string>();
    const auto found = json_lines(
        must({"score", "rows.jsonl", "--model", model, "--device", "cpu", "-q", "--precision", "fp32", "--entities",
              labels, "--threshold", fmt::format("{}", c["threshold"].get<float>()), "--output-format", "jsonl"}));
    const size_t texts = golden["texts"].size() - kFirst;
    ASSERT_EQ(found.size(), texts * kRepeats);
    for (size_t r = 0; r < found.size(); ++r) {
      const json& want = c["entities"][kFirst + r % texts];
      ASSERT_EQ(found[r]["entities"].size(), want.size()) << found[r];
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_EQ(found[r]["entities"][i]["start"], want[i][0]);
        EXPECT_EQ(found[r]["entities"][i]["entity_group"], want[i][2]);
        EXPECT_NEAR(found[r]["entities"][i]["score"].get<double>(), want[i][3].get<double>(), 1e-4);
      }
    }
  }
}

TEST_F(EntitiesProgram, UsesNoMoreMemoryThanPlanned) {
  if (kInstrumented) GTEST_SKIP() << "plans do not include sanitizers";
  std::string rows;
  for (int i = 0; i < 400; ++i) rows += "Ada Lovelace lives in London and works for Acme Corp\n";
  put("texts.txt", rows);
  for (const char* model : {"span_rnn", "bi_span"}) {
    const Outcome run = brim(names({"--entities", "a,b", "-o", "out.csv", "--summary-json", "run.json"}, model));
    ASSERT_EQ(run.code, 0) << run.err;
    EXPECT_LE(run.peak_kib * 1024, json_of("run.json").at("planned_bytes").get<int64_t>()) << model;
    std::filesystem::remove(folder_ / "out.csv");
  }
}

TEST_F(EntitiesProgram, PlansTheHeadAndBothEncoders) {
  const std::vector<std::string> plan = {"plan", "--device", "cpu", "--precision", "fp32", "--json", "--model"};
  const json one = json::parse(must(with(plan, {"span_rnn", "--entities", "a,b"})));
  const auto has = [](const json& ledger, const std::string& owner) {
    return std::ranges::any_of(ledger, [&](const json& e) { return e["owner"].get<std::string>().ends_with(owner); });
  };
  EXPECT_TRUE(has(one.at("ledger"), "head on the host")) << one;
  EXPECT_EQ(one.dump().find("assuming two classes"), std::string::npos);
  EXPECT_NE(one.dump().find("entities of 2 labels"), std::string::npos) << one;
  const json two = json::parse(must(with(plan, {"bi_span", "--entities", "a,b"})));
  EXPECT_EQ(two.at("models").size(), 2u);
  put("serve.yaml", "models: {names: {path: bi_span, entities: [a, b]}}\n");
  const json served = json::parse(must({"plan", "--serve", "serve.yaml", "--device", "cpu", "--json"}));
  EXPECT_EQ(served.at("models").size(), 2u);
  refused(2, {"--entities", "requires a GLiNER model", "tiny"}, {"plan", "--model", "tiny", "--entities", "a"});
  refused(2, {"--task score", "cannot be trained"}, {"plan", "--model", "span_rnn", "--task", "train"});
}

TEST_F(EntitiesProgram, RejectsInvalidSettings) {
  refused(2, {"--entities", "at least one label"}, names({"--entities", ""}));
  refused(2, {"--entities", "label 2 is empty"}, names({"--entities", "a,,b"}));
  refused(2, {"--entities", "duplicate label \"a\""}, names({"--entities", "a,b, a"}));
  std::string many;
  for (int i = 0; i < 1001; ++i) many += fmt::format("label {}\n", i);
  put("many.txt", many);
  refused(2, {"--entities-file", "1,001 labels, at most 1,000"}, names({"--entities-file", "many.txt"}));
  many.resize(many.rfind("label"));
  put("many.txt", many);
  refused(2, {"1000 labels take", "leaving none of 192"}, names({"--entities-file", "many.txt"}));
  EXPECT_EQ(brim(names({"--entities-file", "many.txt"}, "bi_span")).code, 0);
  for (const char* model : {"span_rnn", "bi_span"})
    for (const char* threshold : {"-0.1", "1.01", "nan"})
      refused(2, {"threshold", threshold}, names({"--entities", "a", fmt::format("--threshold={}", threshold)}, model));
  refused(2, {"--threshold", "requires --entities"}, names({"--threshold", "0.5"}));
  refused(2, {"--model span_rnn", "--entities \"person,company\""}, names({}));
  refused(2, {"--entities", "GLiNER", "tiny"}, names({"--entities", "a"}, "tiny"));
}

TEST_F(EntitiesProgram, RejectsUnsupportedModels) {
  const std::pair<json, const char*> cases[] = {
      {{{"span_mode", "conv_max"}}, "\"span_mode\" is 'conv_max'"},
      {{{"relations_layer", "biaffine"}}, "\"relations_layer\" is '\"biaffine"},
      {{{"represent_spans", true}}, "\"represent_spans\" is 'true'"},
      {{{"words_splitter_type", "("}}, "\"words_splitter_type\" is '('"},
      {{{"labels_decoder", "gpt2"}}, "\"labels_decoder\" is '\"gpt2"},
      {{{"max_width", 0}}, "\"max_width\" is '0'"},
  };
  const std::string original = get("span_rnn/gliner_config.json");
  for (const auto& [changes, message] : cases) {
    put("span_rnn/gliner_config.json", original);
    edit_gliner("span_rnn", changes);
    refused(4, {"span_rnn/gliner_config.json", message}, names({"--entities", "a"}));
  }
  // Encoders that are only named.
  put("span_rnn/gliner_config.json", original);
  edit_gliner("span_rnn", {{"encoder_config", nullptr}, {"model_name", "example/encoder"}});
  refused(4, {"\"model_name\" 'example/encoder'", "brim pull example/encoder"}, names({"--entities", "a"}));
  std::filesystem::remove_all(folder_ / "bi_span/labels_tokenizer");
  refused(4, {"\"labels_encoder\" 'example/labels-encoder'", "brim pull example/labels-encoder"},
          names({"--entities", "a"}, "bi_span"));
  // Other models for labels given as text.
  for (const auto& [type, name] :
       {std::pair("GLiClass", "GLiClass is not supported"), std::pair("extractor", "GLiNER2 is not supported")}) {
    edit_config("tiny", [type = type](json& config) {
      config["model_type"] = type;
      config.erase("architectures");
    });
    refused(4, {"tiny/config.json", fmt::format("\"model_type\" is '{}'", type), name},
            {"score", "texts.txt", "--model", "tiny", "--device", "cpu"});
  }
}

TEST_F(EntitiesProgram, EvaluatesTaggedWords) {
  put("test.conll", "Ada B-person\nlives O\nin O\nLondon B-city\n\nParis B-city\n");
  for (const char* model : {"span_rnn", "bi_span"}) {
    const json found = json::parse(must({"eval", "test.conll", "--model", model, "--device", "cpu", "--json",
                                         "--entities", "person,city", "--threshold", "0.1"}));
    EXPECT_EQ(found.at("rows"), 2);
    EXPECT_TRUE(found.contains("entity_f1"));
  }
}

// Words of a text with the entities of a golden as tags, changed so that only some of them are found: every third one
// is missing, and of the next one only the first word is left.
struct TaggedText {
  std::string rows;
  size_t tagged = 0, equal = 0;

  TaggedText(const std::string& text, const json& entities) {
    std::vector<std::string> tags;
    std::vector<int> begins;  // in characters
    int at = 0;
    std::istringstream all(text);
    std::vector<std::string> words;
    for (std::string word; all >> word; words.push_back(word)) {
      begins.push_back(at);
      at += 1 + static_cast<int>(std::ranges::count_if(word, [](char c) { return (c & 0xC0) != 0x80; }));
    }
    tags.assign(words.size(), "O");
    for (size_t e = 0; e < entities.size(); ++e) {
      const std::string label = entities[e][2];
      if (e % 3 == 0 || label.find(' ') != std::string::npos) continue;
      ++tagged;
      int length = 0;
      for (size_t w = 0; w < words.size(); ++w)
        if (begins[w] >= entities[e][0] && begins[w] < entities[e][1] && (length++ == 0 || e % 3 == 2))
          tags[w] = (length == 1 ? "B-" : "I-") + label;
      equal += length == 1 || e % 3 == 2;
    }
    for (size_t w = 0; w < words.size(); ++w) rows += words[w] + " " + tags[w] + "\n";
    rows += "\n";
  }
};

TEST_F(EntitiesProgram, EvaluatesWithStrictF1) {
  for (const auto& [model, number] : {std::pair("span_rnn", 8u), std::pair("bi_span", 3u)}) {
    SCOPED_TRACE(model);
    const json golden = json_of(std::string(model) + "/golden.json");
    const json& c = golden["cases"][number];
    std::string rows, labels;
    size_t found = 0, tagged = 0, equal = 0;
    for (size_t t = 15; t < golden["texts"].size(); ++t) {  // texts of plain words
      const TaggedText text(golden["texts"][t], c["entities"][t]);
      rows += text.rows;
      found += c["entities"][t].size();
      tagged += text.tagged;
      equal += text.equal;
    }
    ASSERT_GT(equal, 3u);
    ASSERT_LT(equal, tagged);
    put("test.conll", rows);
    for (const auto& label : c["labels"]) labels += (labels.empty() ? "" : ",") + label.get<std::string>();
    const json report =
        json::parse(must({"eval", "test.conll", "--model", model, "--device", "cpu", "--precision", "fp32", "--json",
                          "--entities", labels, "--threshold", fmt::format("{}", c["threshold"].get<float>())}));
    EXPECT_NEAR(report.at("entity_f1").get<double>(),
                2.0 * static_cast<double>(equal) / static_cast<double>(found + tagged), 1e-9);
  }
}

}  // namespace
}  // namespace brim
