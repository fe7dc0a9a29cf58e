// SPDX-License-Identifier: Apache-2.0
// Where requests that wait for disk or device are worked on, which an I/O thread may not: queues, and files that are
// scored in the background. A few threads do them, a few more those that wait for no model; one flushes what has waited
// long enough, one runs the jobs.
#pragma once
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "serve/jobs_store.h"
#include "serve/queues.h"
#include "serve/state_dir.h"
#include "serve/workers.h"

namespace brim::serve {

class BlockingWork {
 public:
  // Throws cannot_write where the directory is another server's.
  BlockingWork(const std::filesystem::path& state_dir, const std::vector<QueueRules>& rules, QueueScorer& scorer,
               JobModels models, JobsStore::Options options);
  ~BlockingWork();  // what has begun is finished, what waits is dropped; a job goes on the next time
  BlockingWork(const BlockingWork&) = delete;
  BlockingWork& operator=(const BlockingWork&) = delete;

  Workers& flushing() { return flushing_; }  // calls that may wait for a flush, and so for a model
  Workers& disk() { return disk_; }          // those that wait for the disk alone
  void stop_jobs();                          // at a row; they go on the next time
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
