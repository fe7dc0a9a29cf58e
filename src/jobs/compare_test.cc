// SPDX-License-Identifier: Apache-2.0
// Comparisons computed by hand.
#include "jobs/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace brim::jobs {
namespace {

ModelRun model(std::string name, std::vector<std::string> labels, std::vector<int32_t> predicted,
               double rows_per_second) {
  ModelRun run;
  run.name = std::move(name);
  run.labels = std::move(labels);
  run.predicted = std::move(predicted);
  run.record.stats.seconds = 1;
  run.record.stats.rows = static_cast<int64_t>(rows_per_second);
  return run;
}

const std::vector<std::string> kTruth = {"neg", "neg", "neg", "neg", "pos", "pos", "pos", "pos", "neu", "neu"};

// Eight rows correct against five: a predicts neu for one neg and neg for one pos; b spells its labels differently and
// predicts neg when unsure.
Comparison by_hand(double max_loss) {
  const auto a = model("a", {"neg", "neu", "pos"}, {0, 0, 0, 1, 2, 2, 2, 0, 1, 1}, 100);
  const auto b = model("b", {"POS", "NEG", "NEU"}, {1, 1, 1, 1, 0, 1, 1, 1, 1, 1}, 1000);
  return compare_models({a, b}, kTruth, max_loss);
}

TEST(Compare, MatchesManualCalculation) {
  const Comparison c = by_hand(0.01);
  EXPECT_EQ(c.rows, 10);
  ASSERT_EQ(c.models.size(), 2u);
  EXPECT_DOUBLE_EQ(c.models[0].metrics->accuracy, 0.8);
  EXPECT_DOUBLE_EQ(c.models[1].metrics->accuracy, 0.5);
  // a: recall 3/4, 1, 3/4; precision 3/4, 2/3, 1; F1 0.75, 0.8, 6/7.
  EXPECT_NEAR(c.models[0].metrics->macro_recall, (0.75 + 1 + 0.75) / 3, 1e-12);
  EXPECT_NEAR(c.models[0].metrics->macro_f1, (0.75 + 0.8 + 6.0 / 7) / 3, 1e-12);
  const auto errors = [&](size_t m, size_t k) {
    return std::vector<int64_t>{c.models[m].per_class[k].support, c.models[m].per_class[k].false_positives,
                                c.models[m].per_class[k].false_negatives};
  };
  EXPECT_EQ(errors(0, 0), (std::vector<int64_t>{4, 1, 1}));
  EXPECT_EQ(errors(0, 1), (std::vector<int64_t>{2, 1, 0}));
  EXPECT_EQ(errors(0, 2), (std::vector<int64_t>{4, 0, 1}));
  EXPECT_EQ(errors(1, 0), (std::vector<int64_t>{4, 5, 0}));
  EXPECT_EQ(errors(1, 1), (std::vector<int64_t>{2, 0, 2}));
  EXPECT_EQ(errors(1, 2), (std::vector<int64_t>{4, 0, 3}));
  ASSERT_EQ(c.pairs.size(), 1u);
  EXPECT_DOUBLE_EQ(c.pairs[0].agreement, 0.5);  // rows 1, 2, 3, 5 and 8
  EXPECT_EQ(c.disagreements(), (std::vector<size_t>{3, 5, 6, 8, 9}));
  // Only a correct: rows 6, 7, 9, 10; only b: row 4. Exact: 2·(C(5,0)+C(5,1))/2^5 = 12/32.
  EXPECT_EQ(c.pairs[0].mcnemar->only_a_right, 4);
  EXPECT_EQ(c.pairs[0].mcnemar->only_b_right, 1);
  EXPECT_NEAR(c.pairs[0].mcnemar->p_value, 0.375, 1e-12);
}

// Known values: 59 against 6 of 65 discordant pairs, chi² = (53-1)²/65 = 41.6; 12 against 2 exactly, p =
// 0.012939453125.
TEST(Compare, McNemarMatchesKnownValues) {
  const auto pair = [](int only_a, int only_b) {
    std::vector<int32_t> a, b;
    std::vector<std::string> truth;
    for (int i = 0; i < only_a + only_b + 7; ++i) {
      truth.push_back("x");
      a.push_back(i >= only_a && i < only_a + only_b ? 1 : 0);
      b.push_back(i < only_a ? 1 : 0);
    }
    return *compare_models({model("a", {"x", "y"}, a, 1), model("b", {"x", "y"}, b, 2)}, truth, 0).pairs[0].mcnemar;
  };
  EXPECT_NEAR(pair(12, 2).p_value, 0.012939453125, 1e-12);
  EXPECT_NEAR(pair(59, 6).p_value, std::erfc(std::sqrt(52.0 * 52 / 65 / 2)), 1e-15);
  EXPECT_LT(pair(59, 6).p_value, 1.2e-10);
  EXPECT_GT(pair(59, 6).p_value, 1.0e-10);
  EXPECT_EQ(pair(0, 0).p_value, 1);
  EXPECT_EQ(pair(5, 5).p_value, 1);
}

TEST(Compare, RecommendsByTheStatedRule) {
  EXPECT_EQ(by_hand(0.01).recommended, 0u);  // b is faster, but 30 points worse
  EXPECT_EQ(by_hand(0.299).recommended, 0u);
  EXPECT_EQ(by_hand(0.30).recommended, 1u);
  EXPECT_NE(by_hand(0.30).rule.find("within 30.00 points"), std::string::npos);
}

TEST(Compare, ReportsAConstantAnswerThatIsAsGood) {
  EXPECT_EQ(by_hand(0.01).rule.find("always predicting"), std::string::npos);
  // Two of four rows are correct, three of four are x.
  const auto c = compare_models({model("a", {"x", "y"}, {0, 1, 1, 1}, 1), model("b", {"x", "y"}, {1, 0, 1, 1}, 2)},
                                {"x", "x", "x", "y"}, 0.01);
  EXPECT_NE(c.rule.find("always predicting x (75.00 %)"), std::string::npos) << c.rule;
}

TEST(Compare, ReportsOnlyAgreementWithoutLabels) {
  const Comparison c = compare_models({model("a", {"x", "y"}, {0, 1, 1}, 5), model("b", {"Y", "X"}, {1, 0, 1}, 9),
                                       model("c", {"x", "y"}, {0, 1, 1}, 1)},
                                      {}, 0.01);
  ASSERT_EQ(c.pairs.size(), 3u);
  EXPECT_NEAR(c.pairs[0].agreement, 2.0 / 3, 1e-12);
  EXPECT_NEAR(c.pairs[1].agreement, 1, 1e-12);
  EXPECT_FALSE(c.pairs[0].mcnemar.has_value());
  const auto j = nlohmann::json::parse(to_json(c));
  EXPECT_TRUE(j["recommended"].is_null());
  EXPECT_FALSE(j["models"][0].contains("accuracy"));
  EXPECT_EQ(j["disagreements"], 1);
  EXPECT_NE(to_text(c).find("no recommendation"), std::string::npos);
}

TEST(Compare, JsonMatchesTheTable) {
  const auto j = nlohmann::json::parse(to_json(by_hand(0.01)));
  EXPECT_EQ(j["recommended"], "a");
  EXPECT_EQ(j["models"][1]["per_class"]["neg"]["false_positives"], 5);
  EXPECT_NEAR(j["pairs"][0]["mcnemar"]["p_value"].get<double>(), 0.375, 1e-12);
  EXPECT_TRUE(j["models"][0]["held_bytes"].is_null());
  EXPECT_TRUE(j["models"][0]["tokens_per_second"].is_null()) << "unknown must not be 0";
}

// Two classes against three: rows with a label that a model lacks count as its errors, over the same rows for both.
TEST(Compare, AcceptsModelsWithDifferentClasses) {
  const auto two = model("two", {"POS", "NEG"}, {1, 1, 1, 1, 0, 0, 0, 0, 1, 0}, 1000);
  const auto three = model("three", {"neg", "neu", "pos"}, {0, 0, 0, 1, 2, 2, 2, 1, 1, 1}, 100);
  const Comparison c = compare_models({two, three}, kTruth, 0.01);
  EXPECT_EQ(c.labels, (std::vector<std::string>{"POS", "NEG", "neu"}));
  EXPECT_EQ(c.shared, (std::vector<std::string>{"POS", "NEG"}));
  EXPECT_EQ(c.shared_rows, 8);
  EXPECT_DOUBLE_EQ(c.models[0].metrics->accuracy, 0.8) << "computed over all ten rows";
  EXPECT_DOUBLE_EQ(c.models[1].metrics->accuracy, 0.8);
  EXPECT_DOUBLE_EQ(*c.models[0].shared_accuracy, 1.0);
  EXPECT_DOUBLE_EQ(*c.models[1].shared_accuracy, 0.75);
  EXPECT_EQ(c.models[0].unknown, (std::vector<std::string>{"neu"}));
  EXPECT_DOUBLE_EQ(c.pairs[0].agreement, 0.6);
  const std::string text = to_text(c);
  EXPECT_NE(text.find("two has no neu: 2 rows with that label count as wrong"), std::string::npos) << text;
  EXPECT_NE(text.find("shared classes: POS, NEG, 8 of 10 rows"), std::string::npos) << text;
  const auto j = nlohmann::json::parse(to_json(c));
  EXPECT_EQ(j["shared_rows"], 8);
  EXPECT_EQ(j["models"][0]["unknown_labels"][0], "neu");
  // "1" is NEG for one model and neu for the other.
  EXPECT_FALSE(match_classes({"two", "three"}, {two.labels, three.labels}).find("1").has_value());
  EXPECT_TRUE(match_classes({"three", "three"}, {three.labels, three.labels}).find("1").has_value());
}

TEST(Compare, ReportsSignificance) {
  EXPECT_NE(to_text(by_hand(0.01)).find("difference not significant (p = 0.375)"), std::string::npos)
      << to_text(by_hand(0.01));
}

template <class Fn>
std::string refusal(Fn&& fn, int code) {
  try {
    fn();
  } catch (const Error& e) {
    EXPECT_EQ(exit_code(e.code()), code) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

TEST(Compare, RejectsIncomparableModels) {
  const auto a = model("a", {"neg", "pos"}, {0}, 1);
  const std::string differing = refusal(
      [&] {
        (void)compare_models({a, model("b", {"sport", "news"}, {0}, 1)}, {}, 0);
      },
      4);
  EXPECT_NE(differing.find("a: neg, pos"), std::string::npos);
  EXPECT_NE(differing.find("b: sport, news"), std::string::npos);
  EXPECT_NE(differing.find("brim profile models=a,b"), std::string::npos) << "suggests an alternative";
  (void)refusal([&] { (void)compare_models({a, a}, {"angry"}, 0); }, 3);
  (void)refusal([&] { (void)compare_models({a}, {}, 0); }, 2);
}

TEST(Compare, ParsesShares) {
  EXPECT_DOUBLE_EQ(parse_share("1%"), 0.01);
  EXPECT_DOUBLE_EQ(parse_share("0.5 %"), 0.005);
  EXPECT_DOUBLE_EQ(parse_share("0.02"), 0.02);
  EXPECT_DOUBLE_EQ(parse_share("0"), 0);
  for (const char* bad : {"", "%", "one", "-1%", "101%", "1", "5", "nan", "1%%x"})
    (void)refusal([&] { (void)parse_share(bad); }, 2);
}

}  // namespace
}  // namespace brim::jobs
