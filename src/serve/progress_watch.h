// SPDX-License-Identifier: Apache-2.0
// Detects a stalled device: texts are waiting, and for much longer than predicted there was neither a result nor a
// finished batch. Both count, because a long text has many batches but one result, and the prediction shrinks towards
// its end.
#pragma once
#include <algorithm>
#include <cstdint>
#include <mutex>

namespace brim::serve {

class ProgressWatch {
 public:
  static constexpr double kMinSeconds = 5;  // minimum time without any progress

  static bool too_long(double seconds, double predicted) { return seconds > std::max(kMinSeconds, 10 * predicted); }

  // Thread-safe; the caller supplies the time.
  void note(int64_t now_ns) {  // call for each result, and for the first text after an idle time
    std::lock_guard lock(mutex_);
    last_ns_ = std::max(last_ns_, now_ns);
  }
  // `batches`: total of all models. A change since the last call counts as progress now.
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
