// SPDX-License-Identifier: Apache-2.0
// train from the command line: how flags are read, and what it leaves to score and evaluate.
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

TEST_F(Training, AFlagTakesItsValueAndNoMore) {
  refused(2, {"--output: its value is missing"}, train({"--train", "rows.csv", "--output"}));
  refused(2, {"--train: its value is missing"}, train({"--train", "--output", "out"}));
  refused(2, {"1e-4"}, train({"--learning-rate", "1e-3", "1e-4", "--train", "rows.csv", "--output", "out"}));
  refused(2, {"rows.csv"}, train({"--output", "out", "rows.csv"}));
  refused(2, {"did you mean --learning-rate"},
          train({"--lerning-rate", "1", "--train", "rows.csv", "--output", "out"}));
  EXPECT_FALSE(exists("out"));
  EXPECT_FALSE(exists("true"));
  // Files may follow each other; a switch needs no value; of a flag given twice the last counts.
  const Outcome got = brim(
      train({"--train", "rows.csv", "rows.csv", "--bf16", "--max-steps", "9", "--max-steps", "2", "--output", "out"}));
  EXPECT_EQ(got.code, 0) << got.err;
  EXPECT_NE(got.err.find("48 rows"), std::string::npos) << got.err;
  EXPECT_NE(got.err.find("in bf16"), std::string::npos) << got.err;
  EXPECT_NE(got.err.find("2 steps in"), std::string::npos) << got.err;
}

TEST_F(Training, BothHeadsScore) {
  std::string sentences;
  for (int s = 0; s < 12; ++s) sentences += fmt::format("w{}\tO\nw{}\tB-PER\n\n", 5 + s, 70 + s);
  put("tags.conll", sentences);
  make_model("bert_encoder", "bare");
  const Outcome got = brim({"train", "--model", "bare", "--task", "multi", "--train", "rows.csv", "--token-train",
                            "tags.conll", "--val", "rows.csv", "--token-val", "tags.conll", "--device", "cpu",
                            "--output", "out", "--max-steps", "2"});
  EXPECT_EQ(got.code, 0) << got.err;
  EXPECT_NE(got.err.find("the tagger in out/ner"), std::string::npos) << got.err;
  EXPECT_EQ(lines_of(must({"score", "-", "--model", "out", "-q"}, {.input = "w5 w6\n"})).at(0), "text,label,score");
  EXPECT_EQ(lines_of(must({"score", "-", "--model", "out/ner", "-q"}, {.input = "w5 w6\n"})).at(0), "text,entities");
}

}  // namespace
}  // namespace brim
