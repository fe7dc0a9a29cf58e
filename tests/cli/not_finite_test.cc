// SPDX-License-Identifier: Apache-2.0
// Commands with a model that computes NaN output no label, vector or metric for it.
#include <limits>

#include "cli/program.h"
#include "hub/edit_weight.h"

namespace brim {
namespace {

class NotFiniteOutput : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    for (const char* golden : {"bert_sequence", "bert_token"}) {
      make_model(golden, golden);
      // Affects only rows with the word w7.
      hub::edit_weight(folder_ / golden, "bert.embeddings.word_embeddings.weight", 7 * 48,
                       std::numeric_limits<float>::quiet_NaN());
    }
    put("a.csv", "text,label\nw5 w6,neutral\nw7 w8,neutral\nw9,neutral\n");
  }
  static std::vector<std::string> with(std::vector<std::string> all, const std::string& model) {
    for (const char* more : {"--model", model.c_str(), "--device", "cpu", "-q"}) all.emplace_back(more);
    return all;
  }
  const std::vector<std::string> says_ = {"a.csv: line 3: the model's output is not finite"};
};

TEST_F(NotFiniteOutput, IsARowErrorOfScore) {
  for (const char* model : {"bert_sequence", "bert_token"}) {
    refused(4, says_, with({"score", "a.csv", "-o", "out.csv"}, model));
    EXPECT_FALSE(exists("out.csv"));
    const auto rows = json_lines(must(
        with({"score", "a.csv", "--output-format", "jsonl", "--on-error", "null", "--text-column", "text"}, model)));
    ASSERT_EQ(rows.size(), 3u);
    const char* key = std::string(model) == "bert_token" ? "entities" : "predicted_score";
    EXPECT_FALSE(rows[0].at(key).is_null());
    EXPECT_TRUE(rows[1].at(key).is_null());
    EXPECT_FALSE(rows[2].at(key).is_null());
    EXPECT_EQ(lines_of(must(with({"score", "a.csv", "--on-error", "skip"}, model))).size(), 3u);
  }
}

TEST_F(NotFiniteOutput, OfOneModelIsARowErrorForAll) {
  refused(4, says_, with({"score", "a.csv", "--model", "tiny"}, "bert_sequence"));
  refused(4, says_, with({"score", "a.csv", "--model", "bert_sequence"}, "tiny"));
}

// Rounding to int8 would turn NaN into a finite weight.
TEST_F(NotFiniteOutput, Int8ExportRejectsWeightsThatAreNotFinite) {
  refused(4, {"bert.embeddings.word_embeddings.weight", "contains NaN or infinity", "int8"},
          {"models", "export", "bert_sequence", "--precision", "int8", "-o", "small"});
  EXPECT_FALSE(exists("small/model.safetensors"));
  must({"models", "export", "bert_sequence", "--precision", "fp16", "-o", "half"});
  refused(4, says_, with({"score", "a.csv"}, "half"));
}

TEST_F(NotFiniteOutput, FailsEvalCompareAndEmbed) {
  const Outcome eval = refused(4, says_, with({"eval", "a.csv"}, "bert_sequence"));
  EXPECT_EQ(eval.out.find("accuracy"), std::string::npos) << eval.out;
  refused(4, says_, {"compare", "--models", "tiny,bert_sequence", "--data", "a.csv", "--device", "cpu", "-q"});
  const Outcome embed = refused(4, says_, with({"embed", "a.csv"}, "bert_sequence"));
  EXPECT_EQ(embed.out.find("nan"), std::string::npos) << embed.out;
  put("a.conll", "w5 O\nw6 O\n\nw7 O\nw8 O\n");
  refused(4, {"a.conll:4: the model's output is not finite"}, with({"eval", "a.conll"}, "bert_token"));
}

}  // namespace
}  // namespace brim
