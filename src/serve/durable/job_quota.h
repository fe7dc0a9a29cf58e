// SPDX-License-Identifier: Apache-2.0
// Limits on the number of jobs that are kept and on the bytes of their uploaded files. Outputs are not counted.
// Thread-safe; never waits for the disk.
#pragma once
#include <cstdint>
#include <mutex>

namespace brim::serve {

class JobQuota {
 public:
  struct Limits {
    int64_t jobs = 10'000;
    int64_t bytes = int64_t{64} << 30;
  };
  explicit JobQuota(const Limits& limits) : limits_(limits) {}

  // These throw cannot_write at the limit and then change nothing.
  void check(int64_t bytes) const;  // one more job with this many bytes
  void add_job();
  void add_bytes(int64_t bytes);

  void restore(int64_t bytes);  // a job from an earlier start, also beyond the limits
  void remove_job();
  void remove_bytes(int64_t bytes);

 private:
  void check_job() const;
  void check_bytes(int64_t bytes) const;

  const Limits limits_;
  mutable std::mutex mutex_;
  int64_t jobs_ = 0, bytes_ = 0;
};

}  // namespace brim::serve
