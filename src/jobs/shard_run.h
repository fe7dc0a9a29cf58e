// SPDX-License-Identifier: Apache-2.0
// Scores a shard of a job that `brim score --shard` has planned, with the model and the options that the job records.
#pragma once
#include <atomic>

#include "jobs/shards.h"

namespace brim::jobs {

// Publishes the part, unless it exists; continues the draft of an interrupted process. Throws usage if inputs or model
// have changed, interrupted if `stop` was set. `threads`: CPU threads; 0: all cores.
void run_shard(const ShardJob& job, int64_t index, int threads, const std::atomic<bool>& stop);

}  // namespace brim::jobs
