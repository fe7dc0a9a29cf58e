// SPDX-License-Identifier: Apache-2.0
#include "rows/metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <tuple>

#include "base/error.h"

namespace brim::rows {
namespace {

double ratio(double a, double b) { return b > 0 ? a / b : 0; }

ClassScore score_of(int64_t right, int64_t predictions, int64_t support) {
  ClassScore s;
  s.precision = ratio(static_cast<double>(right), static_cast<double>(predictions));
  s.recall = ratio(static_cast<double>(right), static_cast<double>(support));
  s.f1 = ratio(2 * s.precision * s.recall, s.precision + s.recall);
  s.support = support;
  return s;
}

double correlation(std::span<const double> a, std::span<const double> b) {
  const auto n = static_cast<double>(a.size());
  double mean_a = 0, mean_b = 0, ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    mean_a += a[i] / n;
    mean_b += b[i] / n;
  }
  for (size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean_a) * (b[i] - mean_b);
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
  }
  return ratio(ab, std::sqrt(aa * bb));
}

std::vector<double> ranks_of(std::span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    end = begin + 1;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    for (size_t i = begin; i < end; ++i) ranks[order[i]] = static_cast<double>(begin + end - 1) / 2;
  }
  return ranks;
}

using Span = std::tuple<std::string, size_t, size_t>;  // type, first, last

// Follows conlleval: B- or a change of type begins an entity; I- after O begins one too.
std::set<Span> spans_of(const std::vector<std::string>& tags) {
  std::set<Span> spans;
  std::string open;
  size_t begin = 0;
  auto close = [&](size_t end) {
    if (!open.empty()) spans.insert({open, begin, end - 1});
    open.clear();
  };
  for (size_t i = 0; i < tags.size(); ++i) {
    const std::string& tag = tags[i];
    if (tag == "O" || tag.empty()) {
      close(i);
      continue;
    }
    const bool prefixed = tag.size() > 2 && tag[1] == '-';
    const std::string type = prefixed ? tag.substr(2) : tag;
    if ((prefixed && tag[0] == 'B') || type != open) {
      close(i);
      open = type;
      begin = i;
    }
  }
  close(tags.size());
  return spans;
}

}  // namespace

RegressionMetrics regression_metrics(std::span<const double> expected, std::span<const double> predicted) {
  BRIM_CHECK(expected.size() == predicted.size(), "{} numbers against {}", expected.size(), predicted.size());
  RegressionMetrics m;
  for (size_t i = 0; i < expected.size(); ++i)
    m.mse += (expected[i] - predicted[i]) * (expected[i] - predicted[i]) / static_cast<double>(expected.size());
  m.pearson = correlation(expected, predicted);
  m.spearman = correlation(ranks_of(expected), ranks_of(predicted));
  return m;
}

ClassificationMetrics classification_metrics(std::span<const int32_t> expected, std::span<const int32_t> predicted,
                                             int32_t classes) {
  BRIM_CHECK(expected.size() == predicted.size(), "{} labels, {} predictions", expected.size(), predicted.size());
  ClassificationMetrics m;
  const auto K = static_cast<size_t>(classes);
  m.confusion.assign(K, std::vector<int64_t>(K, 0));
  for (size_t i = 0; i < expected.size(); ++i) {
    BRIM_CHECK(expected[i] >= 0 && expected[i] < classes && predicted[i] >= 0 && predicted[i] < classes,
               "classes {} and {} of {}", expected[i], predicted[i], classes);
    ++m.confusion[static_cast<size_t>(expected[i])][static_cast<size_t>(predicted[i])];
  }
  int64_t right = 0;
  double seen = 0;
  for (size_t k = 0; k < K; ++k) {
    int64_t predictions = 0, support = 0;
    for (size_t j = 0; j < K; ++j) {
      predictions += m.confusion[j][k];
      support += m.confusion[k][j];
    }
    m.per_class.push_back(score_of(m.confusion[k][k], predictions, support));
    right += m.confusion[k][k];
    if (predictions + support == 0) continue;
    ++seen;
    m.macro_f1 += m.per_class[k].f1;
    m.macro_recall += m.per_class[k].recall;
    m.macro_precision += m.per_class[k].precision;
  }
  if (seen > 0) {
    m.macro_f1 /= seen;
    m.macro_recall /= seen;
    m.macro_precision /= seen;
  }
  m.accuracy = ratio(static_cast<double>(right), static_cast<double>(expected.size()));
  return m;
}

void MultiLabelCounts::add(std::span<const int32_t> expected, std::span<const int32_t> predicted) {
  BRIM_CHECK(expected.size() == right_.size() && predicted.size() == right_.size(), "{} and {} labels, {} classes",
             expected.size(), predicted.size(), right_.size());
  for (size_t k = 0; k < right_.size(); ++k) {
    right_[k] += expected[k] & predicted[k];
    marked_[k] += expected[k];
    found_[k] += predicted[k];
  }
  ++rows_;
  exact_ += std::equal(expected.begin(), expected.end(), predicted.begin());
}

ClassificationMetrics MultiLabelCounts::metrics() const {
  ClassificationMetrics m;
  m.accuracy = ratio(static_cast<double>(exact_), static_cast<double>(rows_));
  double seen = 0;
  for (size_t k = 0; k < right_.size(); ++k) {
    const ClassScore& s = m.per_class.emplace_back(score_of(right_[k], found_[k], marked_[k]));
    if (marked_[k] + found_[k] == 0) continue;
    m.macro_precision += s.precision;
    m.macro_recall += s.recall;
    m.macro_f1 += s.f1;
    ++seen;
  }
  for (double* mean : {&m.macro_precision, &m.macro_recall, &m.macro_f1}) *mean = ratio(*mean, seen);
  return m;
}

EntityMetrics entity_metrics(const std::vector<std::vector<std::string>>& expected,
                             const std::vector<std::vector<std::string>>& predicted) {
  BRIM_CHECK(expected.size() == predicted.size(), "{} sentences, {} predicted", expected.size(), predicted.size());
  struct Count {
    int64_t right = 0, predictions = 0, support = 0;
  };
  std::map<std::string, Count> counts;
  Count all;
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto want = spans_of(expected[i]), got = spans_of(predicted[i]);
    for (const auto& s : want) {
      ++counts[std::get<0>(s)].support;
      ++all.support;
    }
    for (const auto& s : got) {
      ++counts[std::get<0>(s)].predictions;
      ++all.predictions;
      if (want.count(s) > 0) {
        ++counts[std::get<0>(s)].right;
        ++all.right;
      }
    }
  }
  EntityMetrics m;
  for (const auto& [type, c] : counts) m.per_type[type] = score_of(c.right, c.predictions, c.support);
  const ClassScore total = score_of(all.right, all.predictions, all.support);
  m.precision = total.precision;
  m.recall = total.recall;
  m.f1 = total.f1;
  m.support = total.support;
  return m;
}

std::vector<std::string> iob_to_bio(const std::vector<std::string>& tags) {
  std::vector<std::string> out = tags;
  for (size_t i = 0; i < tags.size(); ++i) {
    if (tags[i].size() < 3 || tags[i][1] != '-') continue;
    if (tags[i][0] == 'S' || tags[i][0] == 'U') out[i][0] = 'B';
    if (tags[i][0] == 'E' || tags[i][0] == 'L') out[i][0] = 'I';
    const bool continues = i > 0 && tags[i - 1].size() > 2 && tags[i - 1].substr(1) == tags[i].substr(1);
    if (out[i][0] == 'I' && !continues) out[i][0] = 'B';
  }
  return out;
}

double agreement(std::span<const int32_t> a, std::span<const int32_t> b) {
  BRIM_CHECK(a.size() == b.size(), "{} and {} predictions", a.size(), b.size());
  size_t same = 0;
  for (size_t i = 0; i < a.size(); ++i) same += a[i] == b[i];
  return a.empty() ? 1 : static_cast<double>(same) / static_cast<double>(a.size());
}

McNemar mcnemar(std::span<const int32_t> expected, std::span<const int32_t> a, std::span<const int32_t> b) {
  BRIM_CHECK(expected.size() == a.size() && a.size() == b.size(), "{}, {} and {} entries", expected.size(), a.size(),
             b.size());
  McNemar m;
  for (size_t i = 0; i < a.size(); ++i) {
    const bool right_a = a[i] == expected[i], right_b = b[i] == expected[i];
    m.only_a_right += right_a && !right_b;
    m.only_b_right += right_b && !right_a;
  }
  const auto n = static_cast<double>(m.only_a_right + m.only_b_right),
             less = static_cast<double>(std::min(m.only_a_right, m.only_b_right));
  if (n == 0) return m;
  if (n <= 50) {
    double tail = 0;
    for (double k = 0; k <= less; ++k)
      tail += std::exp(std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1) - n * std::log(2.0));
    m.p_value = std::min(1.0, 2 * tail);
  } else {
    const double distance = std::max(0.0, std::abs(static_cast<double>(m.only_a_right - m.only_b_right)) - 1);
    m.p_value = std::erfc(std::sqrt(distance * distance / n / 2));  // chi-square, one degree of freedom
  }
  return m;
}

double percentile(std::span<const double> sorted, double share) {
  if (sorted.empty()) return 0;
  const double at = std::clamp(share, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (at - static_cast<double>(low));
}

}  // namespace brim::rows
