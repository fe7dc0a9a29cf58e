// SPDX-License-Identifier: Apache-2.0
#include "serve/durable/blocking_work.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace brim::serve {
namespace {

constexpr int kFlushingThreads = 4;  // one flush covers many waiting calls, so a few suffice
constexpr int kDiskThreads = 2;
constexpr int64_t kMaxFlushPauseMs = 50;           // between checks for queues that are due by age
constexpr std::chrono::seconds kJobRetryPause(1);  // after a job's state could not be written

int64_t unix_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

int64_t steady_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

BlockingWork::BlockingWork(const std::filesystem::path& state_dir, const std::vector<QueueRules>& rules,
                           QueueScorer& scorer, JobModels models, JobsStore::Options options)
    : state_(state_dir),
      queues_(state_, rules, scorer, {unix_ms, steady_ms}),
      jobs_(
          state_, std::move(models), [] { return unix_ms() / 1000; }, std::move(options)),
      flushing_(kFlushingThreads),
      disk_(kDiskThreads),
      flush_thread_([this] { flush_old(); }) {
  job_thread_ = std::jthread([this](const std::stop_token& stop) { run_jobs(stop); });
}

void BlockingWork::stop() {
  stop_jobs();
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  flushing_.stop();
  disk_.stop();
  if (flush_thread_.joinable()) flush_thread_.join();
  if (job_thread_.joinable()) job_thread_.join();
}

void BlockingWork::stop_jobs() { job_thread_.request_stop(); }

void BlockingWork::run_jobs(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    jobs_.wait_for_work(stop);
    if (stop.stop_requested()) return;
    try {
      jobs_.expire();
      jobs_.run_next(stop);
    } catch (const std::exception& error) {  // its state cannot be written; retry after a pause
      log_warning("{}", error.what());
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kJobRetryPause, [&] { return ending_; });
    }
  }
}

void BlockingWork::flush_old() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    lock.unlock();
    try {
      queues_.flush_by_age();
    } catch (const std::exception& error) {  // retried in the next iteration; /health reports it
      log_warning("{}", error.what());
    }
    const int64_t pause = std::clamp<int64_t>(queues_.due_ms().value_or(INT64_MAX) - steady_ms(), 1, kMaxFlushPauseMs);
    lock.lock();
    if (!ending_) changed_.wait_for(lock, std::chrono::milliseconds(pause));
  }
}

}  // namespace brim::serve
