// SPDX-License-Identifier: Apache-2.0
// brim train: flags, log messages and written models.
#include <fmt/format.h>

#include "cli/program.h"

namespace brim {
namespace {

class Training : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    std::string rows = "text,label\n";
    for (int r = 0; r < 24; ++r)
      rows += fmt::format("w{} w{},{}\n", 5 + r % 30 + 30 * (r % 3), 5 + r * 7 % 91,
                          r % 3 == 0   ? "negative"
                          : r % 3 == 1 ? "neutral"
                                       : "positive");
    put("rows.csv", rows);
  }
  static std::vector<std::string> train(const std::vector<std::string>& more) {
    std::vector<std::string> all = {"train", "--model", "tiny", "--device", "cpu", "--threads", "1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

TEST_F(Training, FlagsConsumeOnlyTheirValues) {
  refused(2, {"--output: missing value"}, train({"--train", "rows.csv", "--output"}));
  refused(2, {"--train: missing value"}, train({"--train", "--output", "out"}));
  refused(2, {"1e-4"}, train({"--learning-rate", "1e-3", "1e-4", "--train", "rows.csv", "--output", "out"}));
  refused(2, {"rows.csv"}, train({"--output", "out", "rows.csv"}));
  refused(2, {"did you mean --learning-rate"},
          train({"--lerning-rate", "1", "--train", "rows.csv", "--output", "out"}));
  EXPECT_FALSE(exists("out"));
  EXPECT_FALSE(exists("true"));
  // Several files may follow a flag; switches need no value; the last occurrence of a flag applies.
  const Outcome got = brim(
      train({"--train", "rows.csv", "rows.csv", "--bf16", "--max-steps", "9", "--max-steps", "2", "--output", "out"}));
  EXPECT_EQ(got.code, 0) << got.err;
  EXPECT_NE(got.err.find("48 rows"), std::string::npos) << got.err;
  EXPECT_NE(got.err.find("in bf16"), std::string::npos) << got.err;
  EXPECT_NE(got.err.find("2 steps in"), std::string::npos) << got.err;
}

TEST_F(Training, ScoresWithBothHeads) {
  std::string sentences;
  for (int s = 0; s < 12; ++s) sentences += fmt::format("w{}\tO\nw{}\tB-PER\n\n", 5 + s, 70 + s);
  put("tags.conll", sentences);
  make_model("bert_encoder", "bare");
  const Outcome got = brim({"train", "--model", "bare", "--task", "multi", "--train", "rows.csv", "--token-train",
                            "tags.conll", "--val", "rows.csv", "--token-val", "tags.conll", "--device", "cpu",
                            "--output", "out", "--max-steps", "2"});
  EXPECT_EQ(got.code, 0) << got.err;
  EXPECT_NE(got.err.find("tagger in out/ner"), std::string::npos) << got.err;
  EXPECT_EQ(lines_of(must({"score", "-", "--model", "out", "-q"}, {.input = "w5 w6\n"})).at(0), "text,label,score");
  EXPECT_EQ(lines_of(must({"score", "-", "--model", "out/ner", "-q"}, {.input = "w5 w6\n"})).at(0), "text,entities");
}

TEST_F(Training, HelpShowsDefaultsAndSuggestsFlagNames) {
  const std::string help = must({"help", "train"}), all = must({"train", "--help-all"});
  for (const char* part : {"peak learning rate (default: 5e-05)", "(default: 32)", "(default: linear)", "--on-error"})
    EXPECT_NE(help.find(part), std::string::npos) << part;
  EXPECT_EQ(must({"train", "--help"}), help);
  EXPECT_EQ(must({"help", "--all", "train"}), all);
  EXPECT_LE(lines_of(help).size(), 72u) << "two screens";
  for (const char* part : {"\nAdvanced:\n", "--delimiter", "env: BRIM_LEARNING_RATE", "same as --batch-size"}) {
    EXPECT_EQ(help.find(part), std::string::npos) << part;
    EXPECT_NE(all.find(part), std::string::npos) << part;
  }
  refused(2, {"did you mean --learning-rate?"}, train({"--lr", "1e-4"}));
  refused(2, {"did you mean --num-train-epochs?"}, train({"--epochs", "2"}));
  refused(2, {"did you mean --resume-from-checkpoint?"}, train({"--resume"}));
  refused(2, {"unexpected argument 'rows.csv' (did you mean --train rows.csv?)"}, train({"rows.csv"}));
}

TEST_F(Training, LogsConfigurationAtStart) {
  const Outcome got = brim(train({"--train", "rows.csv", "--val", "rows.csv", "--num-train-epochs", "1", "--output",
                                  "out", "--batch-size", "24"}));
  EXPECT_EQ(got.code, 0) << got.err;
  for (const char* part :
       {"1 step of 24 rows", "labels: negative, neutral, positive", "1 epoch · learning rate 5e-05, schedule linear",
        "24 validation rows evaluated every epoch · keeping the model with the best macro_f1",
        "in fp32 (default on a CPU)", "1 step in "})
    EXPECT_NE(got.err.find(part), std::string::npos) << part << "\n" << got.err;
  for (const char* part : {"samples/s", "card: ", "1 steps"})
    EXPECT_EQ(got.err.find(part), std::string::npos) << part << "\n" << got.err;
  // Evaluation ran in fp32; a different precision is logged.
  EXPECT_NE(brim({"eval", "rows.csv", "--model", "out", "--precision", "bf16"}).err.find("use --precision fp32"),
            std::string::npos);
  EXPECT_EQ(brim({"eval", "rows.csv", "--model", "out", "--precision", "fp32"}).err.find("reproduce"),
            std::string::npos);
}

TEST_F(Training, AcceptsOtherFormatsAndRejectsBadRows) {
  put("semi.csv", "text;label\nw5;negative\nw6;\nw7;positive\n");
  refused(2, {"--delimiter ';'"}, train({"--train", "semi.csv", "--output", "out"}));
  refused(3, {"semi.csv:3", "set --on-error skip to skip it"},
          train({"--train", "semi.csv", "--output", "out", "--delimiter", ";"}));
  const Outcome got = brim(train({"--train", "semi.csv", "--output", "out", "--delimiter", ";", "--on-error", "skip"}));
  EXPECT_EQ(got.code, 0) << got.err;
  EXPECT_NE(got.err.find("1 training row skipped, first: semi.csv:3"), std::string::npos) << got.err;
  put("latin.csv", "text,label\nw5,negative\nw6,caf\xe9\n");
  refused(3, {"latin.csv:3", "not UTF-8"},
          train({"--train", "latin.csv", "--output", "new", "--ignore-mismatched-head"}));
  EXPECT_FALSE(exists("new"));
}

TEST_F(Training, PlanAndTrainAgree) {
  put("a.yaml", "gradient_accumulation_steps: 0\n");
  refused(2, {"gradient_accumulation_steps: 0: must be above zero"},
          {"plan", "--task", "train", "--model", "tiny", "--device", "cpu", "--config", "a.yaml"});
  // Batch size in tokens: with the length of the data, the plan has the learning rate of the run. Every row has 4
  // tokens.
  put("b.yaml", "batch_tokens: 384\nlr_scaling: sqrt\nlearning_rate: 1e-4\nlr_reference_batch: 6\n");
  const auto plan = nlohmann::json::parse(must({"plan", "--task", "train", "--model", "tiny", "--device", "cpu",
                                                "--config", "b.yaml", "--typical-length", "4", "--json"}));
  EXPECT_EQ(plan.at("global_batch"), 96);
  EXPECT_NEAR(plan.at("learning_rate").get<double>(), 4e-4, 1e-12);
  const Outcome got = brim(train({"--train", "rows.csv", "--output", "out", "--config", "b.yaml"}));
  EXPECT_EQ(got.code, 0) << got.err;
  EXPECT_NE(got.err.find("learning rate 0.0004 (0.0001 for 6 rows, scaled by sqrt to 96 rows)"), std::string::npos)
      << got.err;
  // Settings of a file for GPUs are optional on a CPU, for both.
  put("c.yaml", "fp16: true\n");
  EXPECT_EQ(nlohmann::json::parse(
                must({"plan", "--task", "train", "--model", "tiny", "--device", "cpu", "--config", "c.yaml", "--json"}))
                .at("precision"),
            "fp32");
}

// The limit includes the pass of the teacher and checkpoints; the reported memory is the resident memory.
TEST_F(Training, StaysBelowLimitOnCpu) {
  const std::string included = BRIM_SOURCE_DIR "/models/default";
  must({"models", "export", included, "-o", "fp32", "--precision", "fp32"});
  misalign_weights("fp32");
  struct Case {
    std::string model;
    bool teacher;
  };
  for (const Case& c : {Case{included, false}, Case{included, true}, Case{"fp32", false}, Case{"fp32", true}}) {
    SCOPED_TRACE(c.model + (c.teacher ? " with a teacher" : " alone"));
    const std::string& model = c.model;
    const bool teacher = c.teacher;
    const auto with = [&](const std::string& limit) {
      std::vector<std::string> words = {"train",    "--model",
                                        model,      "--train",
                                        "rows.csv", "--val",
                                        "rows.csv", "--device",
                                        "cpu",      "--threads",
                                        "2",        "--output",
                                        "limited",  "--max-steps",
                                        "2",        "--save-steps",
                                        "1",        "--logging-steps",
                                        "1",        "--memory-limit",
                                        limit,      "--overwrite-output-dir"};
      if (teacher) words.insert(words.end(), {"--teacher", model});
      return words;
    };
    const Outcome small = refused(5, {"Largest part", "context", "--memory-limit"}, with("64MiB"));
    const int64_t least = std::stoll(small.err.substr(small.err.find("--memory-limit ") + 15));
    const Outcome got = brim(with(fmt::format("{}MiB", least)));
    EXPECT_EQ(got.code, 0) << got.err;
    if (kInstrumented) continue;
    EXPECT_LE(got.peak_kib, least * 1024) << got.err;
    const auto log = json_of("limited/trainer_state.json").at("log_history");
    const auto reported = log.at(0).at("memory_used_bytes").get<double>();
    EXPECT_GT(reported, 0.8 * static_cast<double>(got.peak_kib) * 1024);
    EXPECT_LE(reported, 1.01 * static_cast<double>(got.peak_kib) * 1024);
  }
}

TEST_F(Training, StaysBelowPlanForAllTokenPlacements) {
  for (const std::string placement : {"staged", "resident", "streamed"}) {
    const Outcome got = brim(train({"--train", "rows.csv", "--val", "rows.csv", "--output", placement, "--max-steps",
                                    "4", "--logging-steps", "1", "--token-set", placement}));
    ASSERT_EQ(got.code, 0) << got.err;
    const auto log = json_of(placement + "/trainer_state.json").at("log_history");
    if (!kInstrumented) {
      EXPECT_LE(got.peak_kib * 1024, log.at(0).at("memory_planned_bytes").get<int64_t>()) << placement;
    }
  }
}

}  // namespace
}  // namespace brim
