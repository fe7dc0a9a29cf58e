// SPDX-License-Identifier: Apache-2.0
// Commands with a LoRA adapter: the same results as with the merged model, and refusals.
#include "cli/program.h"

namespace brim {
namespace {

const std::string kAdapters = std::string(BRIM_SOURCE_DIR) + "/tests/data/adapters/";

class AdapterProgram : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    make_model("roberta_sequence", "base");
    make_model("bert_encoder", "headless");
    must({"models", "merge", "base", kAdapters + "roberta", "-o", "merged"});
    put("texts.csv", "text,label\nw5 w6,negative\nw7 w8 w9,neutral\nw30,positive\n");
  }
  // Results with the adapter and with the merged model.
  std::pair<std::string, std::string> both(const std::vector<std::string>& command) const {
    std::vector<std::string> adapted = command, merged = command;
    const std::vector<std::string> common = {"--device", "cpu", "--precision", "fp32"};
    adapted.insert(adapted.end(), {"--model", "base", "--adapter", kAdapters + "roberta"});
    merged.insert(merged.end(), {"--model", "merged"});
    for (auto* all : {&adapted, &merged}) all->insert(all->end(), common.begin(), common.end());
    return {must(adapted), must(merged)};
  }
};

TEST_F(AdapterProgram, GivesTheResultsOfTheMergedModel) {
  for (const std::vector<std::string>& command : {std::vector<std::string>{"score", "texts.csv", "--all-scores", "-q"},
                                                  {"eval", "texts.csv", "--json", "-q"},
                                                  {"embed", "texts.csv", "--text-column", "text", "-q"}}) {
    const auto [adapted, merged] = both(command);
    EXPECT_EQ(adapted, merged) << command[0];
    EXPECT_FALSE(adapted.empty());
  }
  const std::string plain =
      must({"score", "texts.csv", "--all-scores", "-q", "--model", "base", "--device", "cpu", "--precision", "fp32"});
  EXPECT_NE(plain, both({"score", "texts.csv", "--all-scores", "-q"}).first);
}

TEST_F(AdapterProgram, GivesAnEncoderTheHeadOfTheAdapter) {
  const std::vector<std::string> score = {"score", "texts.csv", "--model", "headless", "--device", "cpu", "-q"};
  refused(4, {"no classification head"}, score);
  std::vector<std::string> adapted = score;
  adapted.insert(adapted.end(), {"--adapter", kAdapters + "bert_new_head"});
  EXPECT_NE(must(adapted).find("LABEL_"), std::string::npos);
  adapted[0] = "plan";
  adapted.erase(adapted.begin() + 1);
  adapted.erase(std::find(adapted.begin(), adapted.end(), "-q"));
  EXPECT_EQ(must(adapted).find("assuming two classes"), std::string::npos);
}

TEST_F(AdapterProgram, ComparesAModelWithItsAdapters) {
  const auto compared =
      nlohmann::json::parse(must({"compare", "--models", "base", "--adapter", kAdapters + "roberta", "--data",
                                  "texts.csv", "--json", "--device", "cpu", "--precision", "fp32", "-q"}));
  ASSERT_EQ(compared["models"].size(), 2u);
  EXPECT_EQ(compared["models"][1]["name"], kAdapters + "roberta");
  refused(2, {"needs at least two models"},
          {"compare", "--models", "headless", "--adapter", kAdapters + "bert_new_head", "--data", "texts.csv",
           "--device", "cpu"});
}

TEST_F(AdapterProgram, RefusesAdaptersThatDoNotFit) {
  const auto score = [](std::vector<std::string> more) {
    std::vector<std::string> all = {"score", "texts.csv", "--device", "cpu", "-q"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  refused(4, {"the adapter belongs to another base model"},
          score({"--model", "base", "--adapter", kAdapters + "deberta"}));
  refused(4, {"contains a LoRA adapter", "--model", "--adapter"}, score({"--model", kAdapters + "roberta"}));
  refused(4, {"no adapter_config.json"}, score({"--model", "base", "--adapter", "merged"}));
  refused(2, {"--adapter", "VADER"}, score({"--model", "vader", "--adapter", kAdapters + "roberta"}));
  refused(2, {"--adapter", "supports one --model"},
          score({"--model", "base", "--model", "m=merged", "--adapter", kAdapters + "roberta"}));
  std::filesystem::copy(kAdapters + "roberta", folder_ / "dora");
  auto config = json_of("dora/adapter_config.json");
  config["use_dora"] = true;
  put("dora/adapter_config.json", config.dump());
  refused(4, {"\"use_dora\"", "DoRA is not supported"}, score({"--model", "base", "--adapter", "dora"}));
}

TEST_F(AdapterProgram, ServesAdaptersBesideTheirBase) {
  const auto serve = [](std::vector<std::string> more) {
    std::vector<std::string> all = {"serve", "--check", "--device", "cpu", "--precision", "fp32"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const Outcome both = brim(
      serve({"--model", "base", "--adapter", "a=" + kAdapters + "roberta", "--adapter", "b=" + kAdapters + "roberta"}));
  EXPECT_EQ(both.code, 0) << both.err;
  for (const char* line : {"base: base on cpu", "a: ", "b: ", "; adapter of base"})
    EXPECT_NE(both.err.find(line), std::string::npos) << both.err;
  const Outcome headless = brim(serve({"--model", "headless", "--adapter", "a=" + kAdapters + "bert_new_head"}));
  EXPECT_EQ(headless.code, 0) << headless.err;
  EXPECT_EQ(headless.err.find("headless: "), std::string::npos) << "it has no head of its own";
  refused(
      2, {"--adapter", "duplicate name a"},
      serve({"--model", "base", "--adapter", "a=" + kAdapters + "roberta", "--adapter", "a=" + kAdapters + "deberta"}));
  refused(2, {"--adapter", "VADER has no adapters"}, serve({"--model", "vader", "--adapter", "a=b"}));
  refused(2, {"--adapters-root", "not a directory"}, serve({"--model", "base", "--adapters-root", "none"}));
}

TEST_F(AdapterProgram, PlansCountTheBaseOfServedAdaptersOnce) {
  put("serve.yaml", "models:\n  base: {path: ./base}\n  a: {path: ./base, adapter: " + kAdapters +
                        "roberta}\n  b: {path: ./base, adapter: " + kAdapters + "roberta}\n");
  const auto plan = nlohmann::json::parse(must({"plan", "--serve", "serve.yaml", "--device", "cpu", "--json"}));
  int bases = 0, adapters = 0;
  for (const auto& entry : plan["ledger"]) {
    bases += entry["owner"].get<std::string>().starts_with("encoder of ") ? 1 : 0;
    adapters += entry["owner"].get<std::string>().ends_with(": adapter") ? 1 : 0;
  }
  EXPECT_EQ(bases, 2) << "weights and tokenizer";
  EXPECT_EQ(adapters, 3) << "also the head of the base";
  put("bad.yaml", "models:\n  v: {builtin: vader, adapter: ./x}\n");
  refused(2, {"bad.yaml", "adapter", "VADER"}, {"plan", "--serve", "bad.yaml"});
}

}  // namespace
}  // namespace brim
