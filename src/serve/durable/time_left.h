// SPDX-License-Identifier: Apache-2.0
// Estimates the remaining time of a job from its progress since the first known one.
#pragma once
#include <algorithm>
#include <optional>

namespace brim::serve {

class TimeLeft {
 public:
  // Progress at the start, 0 to 1; empty if unknown: the position of a resumed job in a compressed file counts
  // decompressed bytes, its progress compressed ones.
  explicit TimeLeft(std::optional<double> begin) : begin_(begin) {}

  // `seconds`: time since the start. Empty without progress.
  std::optional<double> after(double seconds, double progress) {
    if (!begin_) {
      begin_ = progress;
      begin_seconds_ = seconds;
    }
    if (progress <= *begin_) return std::nullopt;
    return (seconds - begin_seconds_) * std::max(0.0, 1 - progress) / (progress - *begin_);
  }

 private:
  std::optional<double> begin_;
  double begin_seconds_ = 0;
};

}  // namespace brim::serve
