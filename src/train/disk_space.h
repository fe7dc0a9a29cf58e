// SPDX-License-Identifier: Apache-2.0
// Estimates the disk space a training run needs for its model and checkpoints, and checks it before the first step.
// Does not reserve space.
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
  int64_t keep = 0;              // `save_total_limit`; 0: unlimited
  int64_t kept = 0;              // checkpoints already on disk
  bool rewrites_model = false;   // writes each new best model next to the one it replaces
  bool has_model = false;        // a model is already on disk

  // Maximum number of checkpoints on disk at once: `keep` plus one while the newest is being written.
  int64_t most_checkpoints() const;
  // Largest growth of the output directory at any time.
  int64_t bytes() const;
};

// Need of a run that begins at `first_step` and writes to the job's output directory.
DiskNeed disk_need(const TrainJob& job, const StepSchedule& schedule, const model::TrainState& state,
                   int64_t first_step, bool evaluates);

// Fails with Error(cannot_write) if the file system of `dir` has less than need.bytes() available.
void check_disk_space(const std::filesystem::path& dir, const DiskNeed& need);

}  // namespace brim::train
