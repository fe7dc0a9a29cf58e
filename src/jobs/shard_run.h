// SPDX-License-Identifier: Apache-2.0
// Plans the job of `brim score --shard`, and scores a shard of it with the model and the options that the job records.
#pragma once
#include <atomic>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "jobs/score_models.h"
#include "jobs/shards.h"

namespace brim::jobs {

struct ShardPlan {
  std::filesystem::path folder;
  std::vector<std::string> inputs;
  std::vector<NamedModel> models;
  std::string adapter;                         // its directory, or empty
  std::map<std::string, std::string> options;  // settings that change the output, by name
  std::string output_format = "auto";          // added to the options
  rows::RowReaderOptions reading;
  int64_t count = 0;
};
// The job in the folder, as planned now or by an earlier process. Throws usage if it is another one.
ShardJob plan_shards(const ShardPlan& plan);

// Publishes the part, unless it exists; continues the draft of an interrupted process. Throws usage if inputs or model
// have changed, interrupted if `stop` was set. `threads`: CPU threads; 0: all cores.
void run_shard(const ShardJob& job, int64_t index, int threads, const std::atomic<bool>& stop);

}  // namespace brim::jobs
