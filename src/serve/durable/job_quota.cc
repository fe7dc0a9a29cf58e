// SPDX-License-Identifier: Apache-2.0
#include "serve/durable/job_quota.h"

#include "base/error.h"
#include "base/units.h"

namespace brim::serve {

void JobQuota::check_job() const {
  if (jobs_ >= limits_.jobs)
    fail(ErrorCode::cannot_write, Remedy{"delete finished jobs, or raise `max_jobs`"},
         "too many jobs: {}, at most {} allowed", jobs_, limits_.jobs);
}

void JobQuota::check_bytes(int64_t bytes) const {
  if (bytes > limits_.bytes - bytes_)
    fail(ErrorCode::cannot_write, Remedy{"delete finished jobs, or raise `max_jobs_bytes`"},
         "the file does not fit in the job quota: {} of {} used", format_bytes(bytes_), format_bytes(limits_.bytes));
}

void JobQuota::check(int64_t bytes) const {
  std::lock_guard lock(mutex_);
  check_job();
  check_bytes(bytes);
}

void JobQuota::add_job() {
  std::lock_guard lock(mutex_);
  check_job();
  ++jobs_;
}

void JobQuota::add_bytes(int64_t bytes) {
  std::lock_guard lock(mutex_);
  check_bytes(bytes);
  bytes_ += bytes;
}

void JobQuota::restore(int64_t bytes) {
  std::lock_guard lock(mutex_);
  ++jobs_;
  bytes_ += bytes;
}

void JobQuota::remove_job() {
  std::lock_guard lock(mutex_);
  --jobs_;
}

void JobQuota::remove_bytes(int64_t bytes) {
  std::lock_guard lock(mutex_);
  bytes_ -= bytes;
}

}  // namespace brim::serve
