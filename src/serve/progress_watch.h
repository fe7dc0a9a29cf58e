// SPDX-License-Identifier: Apache-2.0
// Whether a device still gets on. Texts wait, and for far longer than predicted neither an answer came nor a batch
// ended: a text of many batches has but one answer, and little is left to predict while its last ones run.
#pragma once
#include <algorithm>
#include <cstdint>
#include <mutex>

namespace brim::serve {

class ProgressWatch {
 public:
  static constexpr double kSeconds = 5;  // of nothing at all, at least

  static bool too_long(double seconds, double predicted) { return seconds > std::max(kSeconds, 10 * predicted); }

  // Any thread; moments are the caller's.
  void note(int64_t now_ns) {  // an answer, or the first text where none waited
    std::lock_guard lock(mutex_);
    last_ns_ = std::max(last_ns_, now_ns);
  }
  // `batches`: of all models so far. What was computed since the last look counts as done now.
  bool stuck(int64_t now_ns, bool texts_wait, int64_t batches, double predicted_seconds) {
    std::lock_guard lock(mutex_);
    if (batches != batches_) last_ns_ = std::max(last_ns_, now_ns);
    batches_ = batches;
    return texts_wait && last_ns_ > 0 && too_long(static_cast<double>(now_ns - last_ns_) * 1e-9, predicted_seconds);
  }

 private:
  std::mutex mutex_;
  int64_t last_ns_ = 0, batches_ = 0;
};

}  // namespace brim::serve
