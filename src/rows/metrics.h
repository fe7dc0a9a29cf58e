// SPDX-License-Identifier: Apache-2.0
// How good predictions are: accuracy, per-class precision, recall and F1 with their macro means, the confusion matrix;
// strict entity F1 as conlleval and seqeval count it; agreement of two models and whether a difference is
// significant (McNemar).
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace brim::rows {

struct ClassScore {
  double precision = 0, recall = 0, f1 = 0;  // 0 where undefined
  int64_t support = 0;                       // rows whose true class this is
};

struct ClassificationMetrics {
  double accuracy = 0, macro_f1 = 0, macro_recall = 0, macro_precision = 0;
  std::vector<ClassScore> per_class;
  std::vector<std::vector<int64_t>> confusion;  // [true][predicted]
};
// Classes are 0 … classes-1. Macro means are over classes that occur, in truth or prediction.
ClassificationMetrics classification_metrics(std::span<const int32_t> expected, std::span<const int32_t> predicted,
                                             int32_t classes);

// Numbers against numbers. A correlation is 0 where either side is always the same.
struct RegressionMetrics {
  double mse = 0, pearson = 0, spearman = 0;  // spearman: of ranks, equal values share the mean of theirs
};
RegressionMetrics regression_metrics(std::span<const double> expected, std::span<const double> predicted);

// Several labels a row, counted row by row. Accuracy is the share of rows whose labels are all right; macro means are
// over labels that occur, in truth or prediction; there is no confusion matrix.
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
// Tag sequences in BIO ("B-PER", "I-PER", "O"); an entity counts when type, begin and end are all right.
EntityMetrics entity_metrics(const std::vector<std::vector<std::string>>& expected,
                             const std::vector<std::vector<std::string>>& predicted);
// IOB1 (I- begins an entity, B- only after one of its type), IOBES and BILOU to BIO; BIO stays as it is.
std::vector<std::string> iob_to_bio(const std::vector<std::string>& tags);

// Share of equal entries.
double agreement(std::span<const int32_t> a, std::span<const int32_t> b);

constexpr double kSignificant = 0.05;  // a p-value below it: unlikely to be chance

struct McNemar {
  int64_t only_a_right = 0, only_b_right = 0;
  double p_value = 1;  // exact binomial up to 50 disagreements, else chi-square with continuity correction
};
McNemar mcnemar(std::span<const int32_t> expected, std::span<const int32_t> a, std::span<const int32_t> b);

// Linear interpolation between the two nearest ranks; `sorted` ascends, share is 0…1.
double percentile(std::span<const double> sorted, double share);

}  // namespace brim::rows
