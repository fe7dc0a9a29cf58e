// SPDX-License-Identifier: Apache-2.0
// Creates the record of a training run for its trace: model, device, plan, counters, and predictions for other plans of
// the same job. See jobs/doctor_trace.h.
#pragma once
#include "jobs/run_readings.h"
#include "train/job.h"
#include "train/trainer.h"

namespace brim::jobs {

class TrainRecorder {
 public:
  // Registers callbacks that take readings around the run's steps. Must outlive the run.
  void watch(train::TrainCallbacks& callbacks);
  const RunRecord& record() const { return run_; }  // call after the run has ended

 private:
  void begins(const train::TrainJob& job);
  void ends(const train::TrainJob& job, const train::TrainOutcome& outcome);
  RunRecord run_;
  RunReadings readings_;
};

}  // namespace brim::jobs
