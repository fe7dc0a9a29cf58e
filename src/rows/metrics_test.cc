// SPDX-License-Identifier: Apache-2.0
// Expected values were computed by hand and agree with the definitions of scikit-learn and seqeval.
#include "rows/metrics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace brim::rows {
namespace {

TEST(ClassificationMetrics, MatchManualCalculation) {
  const std::vector<int32_t> expected = {0, 0, 0, 1, 1, 2}, predicted = {0, 0, 1, 1, 2, 2};
  const auto m = classification_metrics(expected, predicted, 3);
  EXPECT_NEAR(m.accuracy, 4.0 / 6, 1e-12);
  EXPECT_NEAR(m.per_class[0].recall, 2.0 / 3, 1e-12);
  EXPECT_NEAR(m.per_class[0].precision, 1, 1e-12);
  EXPECT_NEAR(m.per_class[1].f1, 0.5, 1e-12);
  EXPECT_NEAR(m.per_class[2].precision, 0.5, 1e-12);
  EXPECT_NEAR(m.macro_recall, (2.0 / 3 + 0.5 + 1) / 3, 1e-12);
  EXPECT_NEAR(m.macro_f1, (0.8 + 0.5 + 2.0 / 3) / 3, 1e-12);
  EXPECT_EQ(m.confusion[0][1], 1);
  EXPECT_EQ(m.confusion[1][2], 1);
}

TEST(ClassificationMetrics, IgnoreAbsentClassesAndRejectInvalidOnes) {
  const std::vector<int32_t> one = {1, 1};
  EXPECT_EQ(classification_metrics(one, one, 5).macro_f1, 1);
  const std::vector<int32_t> bad = {1, 7};
  EXPECT_THROW(classification_metrics(one, bad, 5), Error);
  EXPECT_EQ(classification_metrics({}, {}, 2).accuracy, 0);
}

TEST(MultiLabelCounts, MatchManualCalculation) {
  MultiLabelCounts counts(4);  // the last label is neither expected nor predicted
  const std::vector<std::vector<int32_t>> expected = {{1, 0, 1, 0}, {1, 1, 0, 0}, {0, 0, 0, 0}},
                                          predicted = {{1, 0, 1, 0}, {1, 0, 1, 0}, {0, 0, 0, 0}};
  for (size_t r = 0; r < 3; ++r) counts.add(expected[r], predicted[r]);
  const auto m = counts.metrics();
  EXPECT_DOUBLE_EQ(m.accuracy, 2.0 / 3);
  EXPECT_EQ(m.per_class[0].support, 2);
  EXPECT_DOUBLE_EQ(m.per_class[0].f1, 1);
  EXPECT_DOUBLE_EQ(m.per_class[1].recall, 0);
  EXPECT_DOUBLE_EQ(m.per_class[2].precision, 0.5);
  EXPECT_DOUBLE_EQ(m.per_class[2].f1, 2.0 / 3);
  EXPECT_DOUBLE_EQ(m.macro_recall, 2.0 / 3);
  EXPECT_DOUBLE_EQ(m.macro_f1, (1 + 0 + 2.0 / 3) / 3);
  EXPECT_TRUE(m.confusion.empty());
  EXPECT_THROW(counts.add(std::vector<int32_t>{1}, std::vector<int32_t>{1}), Error);
}

TEST(EntityMetrics, CountExactSpansOnly) {
  const std::vector<std::vector<std::string>> want = {{"B-PER", "I-PER", "O", "B-LOC"}, {"B-LOC", "B-LOC"}};
  const std::vector<std::vector<std::string>> got = {{"B-PER", "O", "O", "B-LOC"}, {"B-LOC", "I-LOC"}};
  const auto m = entity_metrics(want, got);  // correct: LOC at 3; predicted: PER(0-0), LOC(3), LOC(0-1); expected: 4
  EXPECT_NEAR(m.precision, 1.0 / 3, 1e-12);
  EXPECT_NEAR(m.recall, 1.0 / 4, 1e-12);
  EXPECT_EQ(m.per_type.at("PER").support, 1);
  EXPECT_EQ(m.per_type.at("PER").f1, 0);
}

TEST(EntityMetrics, TreatStrayInsideTagsAsEntityStarts) {
  const auto m = entity_metrics({{"O", "B-PER", "I-PER"}}, {{"O", "I-PER", "I-PER"}});
  EXPECT_EQ(m.f1, 1);
}

TEST(Iob, ConvertsIob1ToBio) {
  const std::vector<std::string> iob1 = {"I-PER", "I-PER", "B-PER", "O", "I-LOC", "I-PER"};
  EXPECT_EQ(iob_to_bio(iob1), (std::vector<std::string>{"B-PER", "I-PER", "B-PER", "O", "B-LOC", "B-PER"}));
  const std::vector<std::string> bio = {"B-PER", "I-PER", "O"};
  EXPECT_EQ(iob_to_bio(bio), bio);
  const std::vector<std::string> iobes = {"S-PER", "B-LOC", "I-LOC", "E-LOC", "O", "U-PER", "B-LOC", "L-LOC"};
  EXPECT_EQ(iob_to_bio(iobes),
            (std::vector<std::string>{"B-PER", "B-LOC", "I-LOC", "I-LOC", "O", "B-PER", "B-LOC", "I-LOC"}));
}

TEST(McNemar, ExactAndApproximate) {
  std::vector<int32_t> truth(20, 1), a(20, 1), b(20, 1);
  for (int i = 0; i < 9; ++i) b[i] = 0;
  a[19] = 0;
  const auto m = mcnemar(truth, a, b);
  EXPECT_EQ(m.only_a_right, 9);
  EXPECT_EQ(m.only_b_right, 1);
  EXPECT_NEAR(m.p_value, 2 * (1 + 10) / 1024.0, 1e-9);
  EXPECT_EQ(mcnemar(truth, a, a).p_value, 1);
  truth.assign(200, 1);
  a.assign(200, 1);
  b.assign(200, 1);
  for (int i = 0; i < 60; ++i) (i < 40 ? b : a)[i] = 0;
  EXPECT_NEAR(mcnemar(truth, a, b).p_value, std::erfc(std::sqrt(19.0 * 19 / 60 / 2)), 1e-12);
}

TEST(Percentile, InterpolatesBetweenRanks) {
  const std::vector<double> v = {1, 2, 3, 4};
  EXPECT_EQ(percentile(v, 0), 1);
  EXPECT_EQ(percentile(v, 1), 4);
  EXPECT_NEAR(percentile(v, 0.5), 2.5, 1e-12);
  EXPECT_EQ(percentile({}, 0.5), 0);
}

// Expected values from numpy and scipy.stats.
TEST(Metrics, Regression) {
  const std::vector<double> expected = {1, 2, 2, 4, 5}, predicted = {0.5, 2.5, 2, 3, 7};
  const RegressionMetrics m = regression_metrics(expected, predicted);
  EXPECT_NEAR(m.mse, 1.1, 1e-12);
  EXPECT_NEAR(m.pearson, 0.910169322395, 1e-9);
  EXPECT_NEAR(m.spearman, 0.974679434481, 1e-9);
  EXPECT_EQ(regression_metrics(expected, std::vector<double>(5, 1.0)).pearson, 0);
  EXPECT_TRUE(std::isnan(regression_metrics(expected, std::vector<double>(5, std::nan(""))).mse));  // must terminate
}

}  // namespace
}  // namespace brim::rows
