// SPDX-License-Identifier: Apache-2.0
// One run of `brim score`: opens models, scores the rows of files or stdin and writes them. Knows shards only as parts
// to publish; score.cc plans them.
#pragma once
#include "cli/score_flags.h"
#include "jobs/shard_run.h"
#include "rows/row_reader.h"

namespace brim::cli {

// Returns the exit code. `part`: part of a shard, or null.
int score_rows(const ScoreFlags& flags, const rows::RowReaderOptions& reading, jobs::ShardPart* part);

}  // namespace brim::cli
