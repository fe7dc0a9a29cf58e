// SPDX-License-Identifier: Apache-2.0
// Evaluation metrics: accuracy, per-class precision, recall and F1 with macro means, the confusion matrix; strict
// entity F1 as in conlleval and seqeval; agreement of two models and the significance of a difference (McNemar).
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace brim::rows {

struct ClassScore {
  double precision = 0, recall = 0, f1 = 0;  // 0 if undefined
  int64_t support = 0;                       // rows with this true class
};

struct ClassificationMetrics {
  double accuracy = 0, macro_f1 = 0, macro_recall = 0, macro_precision = 0;
  std::vector<ClassScore> per_class;
  std::vector<std::vector<int64_t>> confusion;  // [true][predicted]
};
// Classes are 0 … classes-1. Macro means cover classes that occur in truth or prediction.
ClassificationMetrics classification_metrics(std::span<const int32_t> expected, std::span<const int32_t> predicted,
                                             int32_t classes);

// Regression metrics. A correlation is 0 if either side is constant.
struct RegressionMetrics {
  double mse = 0, pearson = 0, spearman = 0;  // spearman uses mean ranks for ties
};
RegressionMetrics regression_metrics(std::span<const double> expected, std::span<const double> predicted);

// Counts multi-label results row by row. Accuracy is the share of rows with all labels correct; macro means cover
// labels that occur in truth or prediction; there is no confusion matrix.
class MultiLabelCounts {
 public:
  explicit MultiLabelCounts(size_t classes) : right_(classes), marked_(classes), found_(classes) {}
  void add(std::span<const int32_t> expected, std::span<const int32_t> predicted);  // 0 or 1 for each class
  ClassificationMetrics metrics() const;

 private:
  std::vector<int64_t> right_, marked_, found_;  // both, truth, prediction
  int64_t rows_ = 0, exact_ = 0;
};

struct EntityMetrics {
  double precision = 0, recall = 0, f1 = 0;
  int64_t support = 0;
  std::map<std::string, ClassScore> per_type;
};
// Tag sequences in BIO ("B-PER", "I-PER", "O"); an entity counts if type, begin and end are all correct.
EntityMetrics entity_metrics(const std::vector<std::vector<std::string>>& expected,
                             const std::vector<std::vector<std::string>>& predicted);
// Converts IOB1 (I- begins an entity, B- only after one of its type), IOBES and BILOU to BIO; BIO is unchanged.
std::vector<std::string> iob_to_bio(const std::vector<std::string>& tags);

// Share of equal entries.
double agreement(std::span<const int32_t> a, std::span<const int32_t> b);

constexpr double kSignificant = 0.05;  // significance threshold for p-values

struct McNemar {
  int64_t only_a_right = 0, only_b_right = 0;
  double p_value = 1;  // exact binomial up to 50 disagreements, else chi-square with continuity correction
};
McNemar mcnemar(std::span<const int32_t> expected, std::span<const int32_t> a, std::span<const int32_t> b);

// Linear interpolation between the two nearest ranks; `sorted` is ascending, share is 0…1.
double percentile(std::span<const double> sorted, double share);

}  // namespace brim::rows
