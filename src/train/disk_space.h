// SPDX-License-Identifier: Apache-2.0
// Disk space that a training run will need for its model and checkpoints, checked before the first step.
#pragma once
#include <cstdint>
#include <filesystem>

#include "model/train_state.h"
#include "train/job.h"
#include "train/schedule.h"

namespace brim::train {

struct DiskNeed {
  int64_t model_bytes = 0;       // the trained model, all heads
  int64_t checkpoint_bytes = 0;  // one checkpoint
  int64_t saves = 0;             // checkpoints still to be written
  int64_t keep = 0;              // `save_total_limit`; 0: all
  int64_t kept = 0;              // checkpoints on disk already
  bool rewrites_model = false;   // the model is written whenever it is the best so far, beside the one it replaces
  bool has_model = false;        // on disk already

  // Checkpoints on disk at the same time: one more than `keep` while the newest is written.
  int64_t most_checkpoints() const;
  // Largest growth of the output directory at any time.
  int64_t bytes() const;
};

// For a run that begins at `first_step` and writes to the job's output directory.
DiskNeed disk_need(const TrainJob& job, const StepSchedule& schedule, const model::TrainState& state,
                   int64_t first_step, bool evaluates);

// Fails with Error(cannot_write) if the file system of `dir` has less than need.bytes() available.
void check_disk_space(const std::filesystem::path& dir, const DiskNeed& need);

}  // namespace brim::train
