// SPDX-License-Identifier: Apache-2.0
// The record of a training run for its trace: what ran where, under which plan, with which counters, and what other
// plans of the same job were predicted to bring. See jobs/doctor_trace.h.
#pragma once
#include "jobs/run_readings.h"
#include "train/job.h"
#include "train/trainer.h"

namespace brim::jobs {

class TrainRecorder {
 public:
  // Takes readings around the steps of the run that is given these callbacks. Must outlive it.
  void watch(train::TrainCallbacks& callbacks);
  const TracedRun& record() const { return run_; }  // once the run has ended

 private:
  void begins(const train::TrainJob& job);
  void ends(const train::TrainJob& job, const train::TrainOutcome& outcome);
  TracedRun run_;
  RunReadings readings_;
};

}  // namespace brim::jobs
