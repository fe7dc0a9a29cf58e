// SPDX-License-Identifier: Apache-2.0
// Files of texts scored by many processes, each row exactly once. A job divides its inputs into N shards of whole
// records; shard I becomes part-0000I in the job's folder. The folder is the one python/brim/bulk.py keeps for Parquet
// files, name for name: _brim/job.json describes the job; _manifest.json and _SUCCESS are written once all parts are
// verified. All names but the parts' start with an underscore, so that readers of the whole folder skip them.
//
// A part is written under a name of its own and published by a hard link, which never replaces: retries, speculation
// and two drivers at once are harmless. _brim/part-0000I.json (job, rows, checksum) is published before the part and
// decides whose draft becomes it, so that a part and what is said of it always belong together.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "rows/row_reader.h"

namespace brim::jobs {

// Which shard of how many, as the user or a scheduler says it.
struct ShardChoice {
  int64_t index = 0;
  std::optional<int64_t> count;  // none: the job that is there knows it
};
using EnvLookup = std::function<std::optional<std::string>(const char* name)>;
// "3/64"; "auto" and "auto/64" take the index, and the first one the count too, from the variables of a Slurm array or
// an indexed Kubernetes job. `planned`: the job is there already, so a part of an array may run again.
ShardChoice read_shard(std::string_view text, const EnvLookup& env, bool planned);

struct ShardSlice {
  size_t input = 0;
  rows::ByteRange range;
};

struct Shard {
  int64_t id = 0;
  std::string part;                // "part-00017.csv"
  std::vector<ShardSlice> slices;  // empty: there are more shards than rows
};

// What makes two jobs the same one.
struct ShardFacts {
  std::vector<std::pair<std::string, std::string>> inputs;  // absolute names, what changes with the content
  std::string model;                                        // hash of the model's files
  std::map<std::string, std::string> options;               // those that change the output, by setting
  int64_t count = 0;
};

struct ShardJob {
  std::filesystem::path folder;
  std::string id, model_name;
  ShardFacts facts;
  bool by_bytes = true;  // else by row groups: planned by brim.bulk
  std::vector<Shard> shards;

  rows::RowReaderOptions reading(rows::RowReaderOptions options, const Shard& shard) const;  // of that shard alone
};

std::string input_signature(const std::string& path);
std::string model_digest(const std::filesystem::path& dir);

// Shards of about equal bytes, cut between records. A compressed input is one piece.
std::vector<Shard> cut_shards(const std::vector<std::string>& inputs, const rows::RowReaderOptions& reading,
                              int64_t count, const std::string& suffix);

// The job in `folder`; none where none was planned. Throws bad_data for what is no job.
std::optional<ShardJob> find_job(const std::filesystem::path& folder);
// The job of these facts in `folder`, planned now unless it is there. Another one there is refused.
ShardJob plan_job(const std::filesystem::path& folder, const std::string& model_name, const ShardFacts& facts,
                  const rows::RowReaderOptions& reading, const std::string& suffix);

// One shard of a job while it is scored.
class ShardPart {
 public:
  ShardPart(const ShardJob& job, int64_t index);
  ~ShardPart();
  ShardPart(const ShardPart&) = delete;
  ShardPart& operator=(const ShardPart&) = delete;

  const Shard& shard() const { return shard_; }
  // Its part is published. One that another job left is refused.
  bool is_done() const;
  // Where to write, and whether what an earlier process left there is ours to continue.
  const std::string& draft() const { return draft_; }
  bool resumable() const { return lock_ >= 0; }
  // The draft is whole: it becomes the part, unless another process was first.
  void publish(int64_t rows, int64_t bad_rows);
  void note_failure(const Error& error) const;  // for those who look after the job

 private:
  bool settle() const;

  const ShardJob& job_;
  const Shard& shard_;
  int lock_ = -1;
  std::string draft_;
};

struct ShardStates {
  std::vector<int64_t> done, missing;                   // by id
  std::vector<std::pair<int64_t, std::string>> failed;  // of those missing: what the last attempt said
};
ShardStates shard_states(const ShardJob& job);
// Verifies every part, writes _manifest.json and _SUCCESS, removes drafts; returns the number of rows. Throws bad_data
// if a part is missing, damaged or belongs to another job.
int64_t finish_job(const ShardJob& job);

std::string id_ranges(const std::vector<int64_t>& ids);  // "3,17-20", as schedulers take them

}  // namespace brim::jobs
