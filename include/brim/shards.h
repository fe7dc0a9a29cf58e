// SPDX-License-Identifier: Apache-2.0
// Shards of text files, planned by `brim score --shard`: any number of processes score them, each row exactly once.
#pragma once
#include <cstdint>
#include <stop_token>
#include <string>

#include "brim/error.h"

namespace brim {

// Scores a shard of the job in `folder` and publishes its part, unless it exists. Throws usage if the inputs or the
// model have changed. `threads`: CPU threads; 0: all cores.
BRIM_API void run_shard(const std::string& folder, int64_t shard, int threads = 0, std::stop_token stop = {});

// Verifies every part and writes _manifest.json and _SUCCESS; returns the number of rows. Throws bad_data if a part is
// missing or damaged.
BRIM_API int64_t finish_shards(const std::string& folder);

}  // namespace brim
