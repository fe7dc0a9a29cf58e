// SPDX-License-Identifier: Apache-2.0
// Threads for work that may block on disk or a device, which I/O threads must not do: queue calls and background jobs.
// Queue calls that may flush and calls that only need the disk have separate pools; one thread flushes by age, one runs
// jobs.
#pragma once
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "serve/durable/jobs_store.h"
#include "serve/durable/queues.h"
#include "serve/durable/state_dir.h"
#include "serve/workers.h"

namespace brim::serve {

class BlockingWork {
 public:
  // Throws cannot_write if another server uses the directory.
  BlockingWork(const std::filesystem::path& state_dir, const std::vector<QueueRules>& rules, QueueScorer& scorer,
               JobModels models, JobsStore::Options options);
  ~BlockingWork() { stop(); }
  BlockingWork(const BlockingWork&) = delete;
  BlockingWork& operator=(const BlockingWork&) = delete;

  Workers& flushing() { return flushing_; }  // for calls that may wait for a flush, and so for a model
  Workers& disk() { return disk_; }          // for calls that wait only for the disk
  void stop_jobs();                          // at the next row; jobs resume at the next start
  void stop();                               // finishes what has begun and drops the rest; may be repeated
  Queues& queues() { return queues_; }
  JobsStore& jobs() { return jobs_; }
  const StateDir& state() const { return state_; }

 private:
  void flush_old();
  void run_jobs(const std::stop_token& stop);

  StateDir state_;
  Queues queues_;
  JobsStore jobs_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  Workers flushing_, disk_;
  std::thread flush_thread_;
  std::jthread job_thread_;
};

}  // namespace brim::serve
