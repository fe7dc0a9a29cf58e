// SPDX-License-Identifier: Apache-2.0
#include "train/soft_labels.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace brim::train {
namespace {

// Scores are 32-bit floats: zero may mean anything below, and one anything above.
constexpr double kLeastProbability = 1e-38, kLeastOdds = 1e-7;

double log_odds(double p) {
  p = std::clamp(p, kLeastOdds, 1 - kLeastOdds);
  return std::log(p / (1 - p));
}

}  // namespace

int64_t soft_label_bytes(int64_t rows, int64_t classes, size_t teachers) {
  return rows * (classes * 4 + static_cast<int64_t>(sizeof(TeacherVote)) + 4 * static_cast<int64_t>(teachers));
}

SoftLabelMixer::SoftLabelMixer(int64_t rows, int64_t classes, double temperature, bool multi_label)
    : rows_(rows), temperature_(temperature), multi_label_(multi_label) {
  const auto all = static_cast<size_t>(rows * classes);
  out_.classes = classes;
  out_.logits.assign(all, 0);
  mean_.assign(all, 0);
}

void SoftLabelMixer::add(const Teacher& teacher, std::span<const float> scores) {
  const auto K = static_cast<size_t>(out_.classes), own = teacher.labels.size();
  BRIM_CHECK(scores.size() == static_cast<size_t>(rows_) * own, "{} scores", scores.size());
  std::vector<double> soft(K);
  std::vector<int32_t> choices(multi_label_ ? 0 : static_cast<size_t>(rows_), -1);
  for (size_t row = 0; row < static_cast<size_t>(rows_); ++row) {
    const float* p = scores.data() + row * own;
    double sum = 0;
    for (size_t k = 0; k < K; ++k) {
      const double value = p[teacher.class_of[k]];
      soft[k] = multi_label_ ? 1 / (1 + std::exp(-log_odds(value) / temperature_))
                             : std::pow(std::max(value, kLeastProbability), 1 / temperature_);
      sum += soft[k];
      mean_[row * K + k] += static_cast<float>(teacher.weight * value);
      if (!multi_label_ && (choices[row] < 0 || value > p[teacher.class_of[static_cast<size_t>(choices[row])]]))
        choices[row] = static_cast<int32_t>(k);
    }
    for (size_t k = 0; k < K; ++k)
      out_.logits[row * K + k] += static_cast<float>(teacher.weight * (multi_label_ ? soft[k] : soft[k] / sum));
  }
  if (!multi_label_) out_.choices.push_back(std::move(choices));
}

void SoftLabelMixer::vote(int64_t row, const float* mean) {
  const auto K = static_cast<size_t>(out_.classes);
  TeacherVote v;
  if (multi_label_) {
    v.margin = 1;
    for (size_t k = 0; k < K; ++k) v.margin = std::min(v.margin, std::abs(2 * mean[k] - 1));
    v.score = (1 + v.margin) / 2;
  } else {
    const size_t best = static_cast<size_t>(std::max_element(mean, mean + K) - mean);
    float second = 0;
    for (size_t k = 0; k < K; ++k)
      if (k != best) second = std::max(second, mean[k]);
    v.label = static_cast<int32_t>(best);
    v.score = mean[best];
    v.margin = mean[best] - second;
  }
  out_.votes[static_cast<size_t>(row)] = v;
}

SoftLabels SoftLabelMixer::finish() {
  out_.votes.resize(static_cast<size_t>(rows_));
  for (int64_t row = 0; row < rows_; ++row) vote(row, mean_.data() + row * out_.classes);
  for (float& value : out_.logits) {
    const double p = value;
    value = static_cast<float>(temperature_ * (multi_label_ ? log_odds(p) : std::log(std::max(p, kLeastProbability))));
  }
  mean_ = {};
  return std::move(out_);
}

}  // namespace brim::train
