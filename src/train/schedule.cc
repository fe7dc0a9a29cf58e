// SPDX-License-Identifier: Apache-2.0
#include "train/schedule.h"

#include <algorithm>
#include <cmath>

namespace brim::train {

int64_t rows_of_step(const TrainSettings& s, double tokens_per_row) {
  if (s.batch_tokens <= 0) return s.global_batch();
  return std::max<int64_t>(1,
                           static_cast<int64_t>(static_cast<double>(s.batch_tokens) / std::max(1.0, tokens_per_row)));
}

double scaled_learning_rate(const TrainSettings& s, int64_t rows) {
  const double ratio = static_cast<double>(rows) / static_cast<double>(std::max<int64_t>(1, s.lr_reference_batch));
  if (s.lr_scaling == LrScaling::sqrt) return s.learning_rate * std::sqrt(ratio);
  if (s.lr_scaling == LrScaling::linear) return s.learning_rate * ratio;
  return s.learning_rate;
}

int64_t warmup_of(const TrainSettings& s, int64_t total) {
  if (s.lr_schedule == LrSchedule::constant) return 0;  // same as Hugging Face's constant schedule
  return static_cast<int64_t>(std::ceil(
      s.warmup_steps >= 1 ? s.warmup_steps : std::max(s.warmup_steps, s.warmup_ratio) * static_cast<double>(total)));
}

double learning_rate_at(const TrainSettings& s, double peak, int64_t step, int64_t total) {
  const auto warmup = static_cast<double>(warmup_of(s, total));
  const auto at = static_cast<double>(step);
  if (at < warmup) return peak * at / std::max(1.0, warmup);
  if (s.lr_schedule == LrSchedule::constant || s.lr_schedule == LrSchedule::constant_with_warmup) return peak;
  const double left = std::max(1.0, static_cast<double>(total) - warmup), share = std::min(1.0, (at - warmup) / left);
  return s.lr_schedule == LrSchedule::cosine ? peak * 0.5 * (1 + std::cos(M_PI * share)) : peak * (1 - share);
}

StepSchedule::StepSchedule(const TrainSettings& settings, const TrainSet& set)
    : settings_(settings),
      set_(set),
      peak_(scaled_learning_rate(settings, rows_of_step(settings, set.tokens_per_row()))) {
  first_step_.push_back(0);
  const bool by_steps = settings.max_steps > 0;
  double epochs_left = by_steps ? 1e18 : settings.num_train_epochs;
  for (int64_t epoch = 0; epochs_left > 1e-9; ++epoch) {
    int64_t steps;
    if (settings.batch_tokens > 0) {
      steps = static_cast<int64_t>(
                  step_begins(epoch_order(set.rows(), static_cast<uint64_t>(settings.seed), epoch)).size()) -
              1;
    } else {
      steps = (set.rows() + settings.global_batch() - 1) / settings.global_batch();
    }
    // 2.1 - 2 is slightly more than 0.1; the excess must not add a step.
    constexpr double kRounding = 1e-9;
    const double part = std::ceil(static_cast<double>(steps) * (epochs_left - kRounding));
    const int64_t taken = epochs_left >= 1 ? steps : static_cast<int64_t>(part);
    total_ += taken;
    epochs_left -= 1;
    if (by_steps && total_ >= settings.max_steps) {
      total_ = settings.max_steps;
      first_step_.push_back(first_step_.back() + steps);
      break;
    }
    first_step_.push_back(first_step_.back() + steps);
  }
}

std::vector<int64_t> StepSchedule::step_begins(const std::vector<int64_t>& order) const {
  std::vector<int64_t> begins = {0};
  const auto n = static_cast<int64_t>(order.size());
  if (settings_.batch_tokens <= 0) {
    for (int64_t at = settings_.global_batch(); at < n; at += settings_.global_batch()) begins.push_back(at);
  } else {
    int64_t tokens = 0;
    for (int64_t i = 0; i < n; ++i) {
      const int32_t length = set_.length(order[static_cast<size_t>(i)]);
      if (tokens > 0 && tokens + length > settings_.batch_tokens) {
        begins.push_back(i);
        tokens = 0;
      }
      tokens += length;
    }
  }
  begins.push_back(n);
  return begins;
}

int64_t StepSchedule::epoch_of(int64_t step) const {
  return std::upper_bound(first_step_.begin(), first_step_.end() - 1, step) - first_step_.begin() - 1;
}

double StepSchedule::epochs_done(int64_t steps) const {
  const int64_t epoch = epoch_of(std::max<int64_t>(0, steps - 1));
  const auto first = first_step_[static_cast<size_t>(epoch)], next = first_step_[static_cast<size_t>(epoch) + 1];
  return static_cast<double>(epoch) +
         static_cast<double>(steps - first) / static_cast<double>(std::max<int64_t>(1, next - first));
}

bool StepSchedule::ends_epoch(int64_t step) const {
  return step + 1 == total_ || std::find(first_step_.begin() + 1, first_step_.end(), step + 1) != first_step_.end();
}

std::vector<int64_t> StepSchedule::rows(int64_t step) {
  const int64_t epoch = epoch_of(step);
  if (epoch != cached_epoch_) {
    order_ = epoch_order(set_.rows(), static_cast<uint64_t>(settings_.seed), epoch);
    begins_ = step_begins(order_);
    cached_epoch_ = epoch;
  }
  const auto k = static_cast<size_t>(step - first_step_[static_cast<size_t>(epoch)]);
  return {order_.begin() + begins_[k], order_.begin() + begins_[k + 1]};
}

}  // namespace brim::train
