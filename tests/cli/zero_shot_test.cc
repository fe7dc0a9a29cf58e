// SPDX-License-Identifier: Apache-2.0
// Zero-shot classification on the command line: score, eval, compare and plan with --labels.
#include <fmt/format.h>

#include <cmath>

#include "cli/program.h"

namespace brim {
namespace {

class ZeroShotProgram : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    make_model("bert_pair", "nli");
    edit_config("nli", [](nlohmann::json& config) {
      config["id2label"] = {{"0", "contradiction"}, {"1", "neutral"}, {"2", "ENTAILMENT"}};
      config.erase("label2id");
    });
    put("texts.txt", "w22\nw77 w13\nw37 w20 w68 w62 w65\n");
  }
  static std::vector<std::string> with(std::vector<std::string> first, const std::vector<std::string>& more) {
    first.insert(first.end(), more.begin(), more.end());
    return first;
  }
  static std::vector<std::string> nli(std::vector<std::string> more) {
    return with({"score", "texts.txt", "--model", "nli", "--device", "cpu", "-q", "--precision", "fp32"}, more);
  }
};

// Values of tests/data/zero_shot.json.
TEST_F(ZeroShotProgram, ScoresEqualTransformers) {
  const std::vector<std::vector<double>> want = {
      {0.341287, 0.2760289, 0.3826841}, {0.322812, 0.2022951, 0.4748929}, {0.2894399, 0.3746641, 0.335896}};
  const auto rows = json_lines(must(nli({"--labels", "w10, w20 w21,w30", "--all-scores", "--output-format", "jsonl"})));
  ASSERT_EQ(rows.size(), want.size());
  const char* labels[] = {"w10", "w20 w21", "w30"};
  for (size_t i = 0; i < want.size(); ++i)
    for (size_t k = 0; k < 3; ++k)
      EXPECT_NEAR(rows[i].at("scores").at(labels[k]).get<double>(), want[i][k], 2e-5) << rows[i].dump();
  EXPECT_EQ(rows[0].at("label"), "w30");
  put("labels.txt", "\xEF\xBB\xBFw10\r\nw20 w21\r\nw30\r\n");
  EXPECT_EQ(json_lines(must(nli({"--labels-file", "labels.txt", "--all-scores", "--output-format", "jsonl"}))), rows);
  const auto independent = json_lines(
      must(nli({"--labels", "w10,w20 w21,w30", "--multi-label", "--all-scores", "--output-format", "jsonl"})));
  EXPECT_NEAR(independent[1].at("scores").at("w30").get<double>(), 0.2245602, 2e-5);
}

TEST_F(ZeroShotProgram, RejectsInvalidSettings) {
  refused(2, {"--labels", "at least one label"}, nli({"--labels", ""}));
  refused(2, {"--labels", "label 2 is empty"}, nli({"--labels", "w5,,w6"}));
  refused(2, {"--labels", "duplicate label \"w5\""}, nli({"--labels", "w5,w6, w5"}));
  refused(2, {"--labels-file none.txt"}, nli({"--labels-file", "none.txt"}));
  put("empty.txt", "\n");
  refused(2, {"--labels-file empty.txt", "is empty"}, nli({"--labels-file", "empty.txt"}));
  std::string many;
  for (int i = 0; i < 10000; ++i) many += fmt::format("label {}\n", i);
  put("many.txt", many);
  refused(2, {"--labels-file", "10,000 labels, at most 1,000"}, nli({"--labels-file", "many.txt"}));
  refused(2, {"--labels-file many.txt", "--labels"}, nli({"--labels", "w5", "--labels-file", "many.txt"}));
  for (const char* pattern : {"{0}", "{x}", "{{}}", "about", "{} {}"})
    refused(2, {fmt::format("--template \"{}\"", pattern), "exactly once"},
            nli({"--labels", "w5", "--template", pattern}));
  refused(2, {"--template", "requires --labels"}, nli({"--template", "about {}"}));
  refused(2, {"--multi-label", "requires --labels"}, nli({"--multi-label"}));
  refused(4, {"tiny/config.json", "negative, neutral, positive", "entailment"},
          {"score", "texts.txt", "--model", "tiny", "--device", "cpu", "--labels", "w5,w6"});
  refused(2, {"--labels", "vader"}, {"score", "texts.txt", "--model", "vader", "--labels", "w5,w6"});
  refused(2, {"--labels", "tiny, vader"},
          {"score", "texts.txt", "--model", "tiny", "--model", "vader", "--labels", "w5,w6"});
  put("pairs.csv", "text,b\nw5,w6\n");
  refused(2, {"pairs are not supported"},
          {"score", "pairs.csv", "--pair-column", "b", "--model", "nli", "--device", "cpu", "--labels", "w5,w6"});
}

// With several models the labels are those of the NLI model; the others keep theirs.
TEST_F(ZeroShotProgram, OtherModelsKeepTheirLabels) {
  const auto rows = json_lines(must({"score", "texts.txt", "--model", "a=nli", "--model", "b=tiny", "--device", "cpu",
                                     "-q", "--labels", "w10,w30", "--output-format", "jsonl"}));
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].at("a_label").get<std::string>().substr(0, 1), "w");
  EXPECT_EQ(rows[0].at("b_label").get<std::string>().substr(0, 2), "ne");
}

TEST_F(ZeroShotProgram, ScoresManyRows) {
  const std::string texts = made_up_lines(3000, 1, 30);
  put("texts.txt", texts);
  must(nli({"--labels", "w10,w30", "-o", "out.csv"}));
  const std::string whole = get("out.csv");
  EXPECT_EQ(lines_of(whole).size(), 3001u);
}

TEST_F(ZeroShotProgram, EvalAndCompareUseTheLabels) {
  put("rows.csv", "text,label\nw22,w30\nw77 w13,w30\nw37 w20 w68 w62 w65,w10\n");
  const auto e = nlohmann::json::parse(must({"eval", "rows.csv", "--model", "nli", "--device", "cpu", "--json",
                                             "--precision", "fp32", "--labels", "w10,w20 w21,w30"}));
  EXPECT_EQ(e.at("rows"), 3);
  EXPECT_EQ(e.at("labels"), nlohmann::json({"w10", "w20 w21", "w30"}));
  EXPECT_NEAR(e.at("accuracy").get<double>(), 2.0 / 3, 1e-6);
  // A single label is a class, not a number.
  put("one.csv", "text,label\nw22,w30\nw77,\n");
  const auto one = nlohmann::json::parse(
      must({"eval", "one.csv", "--model", "nli", "--device", "cpu", "--json", "--labels", "w30"}));
  EXPECT_TRUE(one.value("multi_label", false)) << one.dump();
  refused(3, {"rows.csv:2", "w30"}, {"eval", "rows.csv", "--model", "nli", "--device", "cpu", "--labels", "w5,w6"});
  put("classes.csv", "text,label\nw22,negative\nw77 w13,positive\n");
  const auto c = nlohmann::json::parse(must({"compare", "--models", "nli,tiny", "--data", "classes.csv", "--device",
                                             "cpu", "-q", "--json", "--labels", "negative,neutral,positive"}));
  EXPECT_EQ(c.at("models").size(), 2u);
  refused(
      2, {"--multi-label"},
      {"compare", "--models", "nli,tiny", "--data", "classes.csv", "--labels", "negative,positive", "--multi-label"});
}

TEST_F(ZeroShotProgram, TeachesASmallModel) {
  std::string texts = "text\n";
  for (int r = 0; r < 60; ++r) texts += fmt::format("w{} w{}\n", 5 + r, 5 + r * 7 % 91);
  put("unlabelled.csv", texts);
  const auto train = [&](std::vector<std::string> more) {
    return with({"train", "--train", "unlabelled.csv", "--model", "tiny", "--output", "out", "--device", "cpu",
                 "--threads", "1", "--num-train-epochs", "1"},
                more);
  };
  const std::vector<std::string> teacher = {"--teacher", "nli", "--labels", "w10,w20 w21,w30"};
  refused(4, {"w10, w20 w21, w30", "negative, neutral, positive", "--ignore-mismatched-head"}, train(teacher));
  refused(2, {"--labels", "teacher"}, train({"--labels", "w10,w30"}));
  refused(4, {"tiny/config.json", "entailment"}, train({"--teacher", "tiny", "--labels", "w10,w30"}));
  EXPECT_FALSE(exists("out"));
  const Outcome got = brim(train(with(teacher, {"--ignore-mismatched-head"})));
  EXPECT_EQ(got.code, 0) << got.err;
  EXPECT_NE(got.err.find("the student agrees with the teacher on "), std::string::npos) << got.err;
  EXPECT_EQ(lines_of(get("out/to_label.csv")).size(), 51u);
  EXPECT_NE(get("out/report.html").find("labelling by hand"), std::string::npos);
  const auto labels = json_of("out/config.json")["id2label"];
  EXPECT_EQ(labels["1"], "w20 w21");
  // The scores can also come from a file.
  must({"score", "unlabelled.csv", "--model", "nli", "--device", "cpu", "-q", "--labels", "w10,w20 w21,w30",
        "--all-scores", "-o", "scores.csv"});
  EXPECT_EQ(brim(with({"train", "--train", "unlabelled.csv", "--model", "out", "--output", "other", "--device", "cpu"},
                      {"--threads", "1", "--num-train-epochs", "1", "--teacher", "scores.csv"}))
                .code,
            0);
}

TEST_F(ZeroShotProgram, PlanCountsPairs) {
  const auto plan = [&](std::vector<std::string> more) {
    return must(with({"plan", "--model", "nli", "--device", "cpu", "--typical-length", "20"}, more));
  };
  const std::string three = plan({"--labels", "w5,w6,w7"});
  EXPECT_NE(three.find("3 labels"), std::string::npos) << three;
  EXPECT_EQ(plan({}).find("labels"), std::string::npos);
  refused(4, {"tiny/config.json", "entailment"}, {"plan", "--model", "tiny", "--device", "cpu", "--labels", "w5,w6"});
  refused(2, {"--labels", "score"}, {"plan", "--model", "nli", "--task", "train", "--labels", "w5,w6"});
}

}  // namespace
}  // namespace brim
