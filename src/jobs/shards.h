// SPDX-License-Identifier: Apache-2.0
// Scores text files with many processes, each row exactly once. A job divides its inputs into N shards of complete
// records; shard I becomes part-0000I in the job's folder. The folder layout is the one used by python/brim/bulk.py for
// Parquet files: _brim/job.json describes the job; _manifest.json and _SUCCESS are written once all parts are verified.
// All names except the parts start with an underscore, so that readers of the whole folder skip them.
//
// A part is written under a unique name and published by a hard link, which never replaces a file: retries, speculative
// execution and concurrent drivers are harmless. _brim/part-0000I.json (job, rows, checksum) is published before the
// part and selects the draft that becomes the part, so that a part and its record always match.
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

// Shard index and count, given by the user or a scheduler.
struct ShardChoice {
  int64_t index = 0;
  std::optional<int64_t> count;  // empty: taken from the existing job
};
using EnvLookup = std::function<std::optional<std::string>(const char* name)>;
// Parses "3/64"; "auto" and "auto/64" take the index ("auto" also the count) from the variables of a Slurm array or an
// indexed Kubernetes job. `planned`: the job already exists, so a part of an array may run again.
ShardChoice read_shard(std::string_view text, const EnvLookup& env, bool planned);

struct ShardSlice {
  size_t input = 0;
  rows::ByteRange range;
};

struct Shard {
  int64_t id = 0;
  std::string part;                // "part-00017.csv"
  std::vector<ShardSlice> slices;  // empty if there are more shards than rows
};

// Properties that identify a job.
struct ShardFacts {
  std::vector<std::pair<std::string, std::string>> inputs;  // absolute path, fingerprint of the content
  std::string model;                                        // hash of the model's files
  std::map<std::string, std::string> options;               // options that change the output, by setting
  int64_t count = 0;
};

struct ShardJob {
  std::filesystem::path folder;
  std::string id, model_name;
  ShardFacts facts;
  bool by_bytes = true;  // otherwise by row groups: planned by brim.bulk
  std::vector<Shard> shards;

  rows::RowReaderOptions reading(rows::RowReaderOptions options,
                                 const Shard& shard) const;  // options restricted to this shard
};

std::string input_signature(const std::string& path);
std::string model_digest(const std::filesystem::path& dir);

// Creates shards of about equal size in bytes, cut between records. A compressed input is not divided.
std::vector<Shard> cut_shards(const std::vector<std::string>& inputs, const rows::RowReaderOptions& reading,
                              int64_t count, const std::string& suffix);

// Returns the job in `folder`; nullopt if none was planned. Throws bad_data if it is not a job.
std::optional<ShardJob> find_job(const std::filesystem::path& folder);
// Returns the job with these facts in `folder`, planning it if it does not exist. Throws if the folder holds a
// different job.
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
  // Whether its part is published. Throws if a part of another job exists.
  bool is_done() const;
  // Path to write to, and whether an earlier process's draft there may be continued.
  const std::string& draft() const { return draft_; }
  bool resumable() const { return lock_ >= 0; }
  // Publishes the complete draft as the part, unless another process was first.
  void publish(int64_t rows, int64_t bad_rows);
  void note_failure(const Error& error) const;  // recorded for job status

 private:
  bool settle() const;

  const ShardJob& job_;
  const Shard& shard_;
  int lock_ = -1;
  std::string draft_;
};

struct ShardStates {
  std::vector<int64_t> done, missing;                   // by id
  std::vector<std::pair<int64_t, std::string>> failed;  // missing shards with the error of the last attempt
};
ShardStates shard_states(const ShardJob& job);
// Verifies every part, writes _manifest.json and _SUCCESS, removes drafts; returns the number of rows. Throws bad_data
// if a part is missing, damaged or belongs to another job.
int64_t finish_job(const ShardJob& job);

std::string id_ranges(const std::vector<int64_t>& ids);  // "3,17-20", as accepted by schedulers

}  // namespace brim::jobs
