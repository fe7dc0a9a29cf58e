// SPDX-License-Identifier: Apache-2.0
#include "serve/gate_run.h"

#include "base/test_files.h"

namespace brim::serve {
namespace {

// Predicts the class whose first letter starts the text; every `every`-th text gets the first class.
struct LetterModel {
  std::vector<std::string> labels;
  size_t every = 0;
  int runs = 0;

  std::vector<int32_t> label_of(std::span<const std::string_view> texts) {
    ++runs;
    std::vector<int32_t> predicted;
    for (size_t i = 0; i < texts.size(); ++i) {
      int32_t label = 0;
      for (size_t k = 0; k < labels.size(); ++k)
        if (labels[k][0] == texts[i][0]) label = static_cast<int32_t>(k);
      predicted.push_back(texts[i].ends_with("!") ? -1 : every > 0 && i % every == 0 ? 0 : label);
    }
    return predicted;
  }
};

class GateRunTest : public testing::Test {
 protected:
  GateRunTest() {
    std::string rows = "headline,mood\n";
    const char* const names[] = {"bad", "calm", "good"};
    for (int i = 0; i < 300; ++i) rows += std::string(names[i % 3]) + " text," + names[i % 3] + "\n";
    put_file(dir / "gate.csv", rows + "good!,good\n");
  }
  LadderRules rules() {
    LadderRules r;
    r.name = "mood";
    r.rungs = {{"large", {}}, {"good", {}}, {"poor", {}}, {"two", {}}};
    r.gate = {(dir / "gate.csv").string(), "headline", "mood", "", {0.02, 0.88}};
    return r;
  }
  GateModel model(const std::string& name) {
    if (name == "missing") fail(ErrorCode::bad_model, "missing: no such directory");
    LetterModel& letters = models[name];
    letters.labels =
        name == "two" ? std::vector<std::string>{"bad", "good"} : std::vector<std::string>{"bad", "calm", "good"};
    letters.every = name == "poor" ? 5 : name == "good" ? 100 : 0;
    return {name + weights, letters.labels,
            [&](std::span<const std::string_view> texts, const std::stop_token&) { return letters.label_of(texts); }};
  }
  std::vector<std::string> measure(Ladder& ladder) {
    return measure_gate(
        ladder, [this](const std::string& name) { return model(name); }, dir / "gate.json");
  }

  TempDir dir;
  std::map<std::string, LetterModel> models;
  std::string weights = "@1";
};

TEST_F(GateRunTest, MeasuresOnceAndCachesResult) {
  Ladder ladder(rules());
  EXPECT_TRUE(measure(ladder).empty());
  const LadderView view = ladder.view(0);
  EXPECT_EQ(view.rungs[0].gate.verdict, Verdict::passed) << view.rungs[0].gate.why;
  EXPECT_EQ(view.rungs[1].gate.verdict, Verdict::passed) << view.rungs[1].gate.why;
  EXPECT_EQ(view.rungs[2].gate.verdict, Verdict::refused) << view.rungs[2].gate.why;
  EXPECT_HAS(view.rungs[2].gate.why, "against large");
  EXPECT_EQ(view.rungs[3].gate.figures->rows, 200) << "rows whose class it has and that were answered";
  EXPECT_EQ(models["large"].runs, 1);
  EXPECT_EQ(models["poor"].runs, 1);

  Ladder again(rules());
  EXPECT_TRUE(measure(again).empty());
  EXPECT_EQ(models["poor"].runs, 1) << "read from the file";
  EXPECT_EQ(again.view(0).rungs[2].gate.why, view.rungs[2].gate.why);
  ASSERT_TRUE(again.view(0).rungs[2].gate.figures);
  EXPECT_EQ(again.view(0).rungs[2].gate.figures->per_class.size(), view.rungs[2].gate.figures->per_class.size());

  weights = "@2";
  EXPECT_TRUE(measure(again).empty());
  EXPECT_EQ(models["poor"].runs, 2) << "different weights";
  put_file(dir / "gate.json", "not json");
  EXPECT_TRUE(measure(again).empty());
  EXPECT_EQ(models["poor"].runs, 3);
}

TEST_F(GateRunTest, MeasuresScorers) {
  const GateModel vader = gate_model(Scorer::open({.model = "vader"}), "vader", "vader");
  const std::vector<std::string_view> texts = {"a great day", "awful"};
  const std::vector<int32_t> predicted = vader.label_of(texts, {});
  ASSERT_EQ(predicted.size(), 2u);
  EXPECT_EQ(vader.labels[static_cast<size_t>(predicted[0])], "positive");
  EXPECT_EQ(vader.labels[static_cast<size_t>(predicted[1])], "negative");
}

TEST_F(GateRunTest, ReportsErrors) {
  LadderRules r = rules();
  r.rungs[1].model = "missing";
  Ladder ladder(r);
  const std::vector<std::string> problems = measure(ladder);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_HAS(problems[0], "cannot measure missing: missing: no such directory");
  EXPECT_EQ(ladder.view(0).rungs[1].gate.verdict, Verdict::not_measured);
  EXPECT_EQ(ladder.view(0).rungs[2].gate.verdict, Verdict::refused);

  ladder.report_fault("missing", "no such directory");
  EXPECT_TRUE(measure(ladder).empty()) << "the ladder reports it";
  const int runs = models["large"].runs;
  ladder.report_fault("large", "no such directory either");
  EXPECT_TRUE(measure(ladder).empty()) << "the ladder reports the model that the others are compared with";
  EXPECT_EQ(models["large"].runs, runs);

  r.gate.text = "no such column";
  Ladder other(r);
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { measure(other); }), "no such column");
  put_file(dir / "gate.csv", "headline,mood\n");
  r.gate.text = "headline";
  Ladder empty(r);
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { measure(empty); }), "no rows");
  r.gate.data.clear();
  Ladder without(r);
  EXPECT_TRUE(measure(without).empty());
}

}  // namespace
}  // namespace brim::serve
