// SPDX-License-Identifier: Apache-2.0
// Background scoring jobs. A job is a directory with the uploaded file, job.json (its state) and the output, which
// grows next to a checkpoint file (rows/resume.h). Rows are scored in blocks and checkpoints fall between blocks, so a
// job that is killed and resumed scores the same blocks and produces the same bytes. States and counts are named as in
// OpenAI's batch API. Thread-safe. Jobs run one at a time in order of arrival; a job that cannot continue for now (its
// model cannot be loaded, the disk is full) lets others go first.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "brim/brim.h"
#include "io/atomic_file.h"
#include "serve/durable/job_quota.h"
#include "serve/durable/state_dir.h"
#include "serve/row_scorer.h"

namespace brim::serve {

enum class JobStatus : uint8_t {
  validating,
  in_progress,
  finalizing,
  completed,
  failed,
  cancelling,
  cancelled,
  expired  // finished long ago, its files are deleted
};
const char* job_status_name(JobStatus status);

struct JobRequest {
  std::string model;           // model or ladder; empty: default
  std::string format = "csv";  // txt, csv, tsv, jsonl
  std::string text_column, output_format = "auto";
  bool all_scores = false;
  std::string pair_column = {};            // column of the second text of a pair; empty: none
  bool format_given = true;                // false: `format` is a guess
  std::optional<ZeroShot> zero_shot = {};  // labels for an NLI model
};

// The model of a job. A ladder's choice holds for the whole job, also after a restart.
struct JobModel {
  std::string name, identity;      // identity: fingerprint of the weights
  std::vector<std::string> files;  // files that determine the weights
  std::shared_ptr<Scorer> scorer;
  ScoreTexts score;
  std::string reason, instead_of;                     // reason of the choice, and the rung it replaces
  std::shared_ptr<const ZeroShotLabels> labels = {};  // those of the request, which `score` uses
};
struct Job;
using JobModels = std::function<JobModel(const Job& job)>;  // throws does_not_fit: retry later; bad_model: never

struct Job {
  std::string id;
  JobRequest request;
  std::string model;               // chosen model; empty before the first run
  std::string reason, instead_of;  // see JobModel
  JobStatus status = JobStatus::validating;
  int64_t number = 0;                    // order of arrival
  int64_t created_at = 0;                // Unix time, as are all times here
  std::map<std::string, int64_t> times;  // by state: in_progress_at, completed_at, …
  int64_t completed_rows = 0, failed_rows = 0;
  int64_t blank_lines = 0;            // skipped lines of the file, set at the end
  std::optional<int64_t> total_rows;  // set at the end
  double progress = 0;                // share of the file's bytes
  std::string error;
  // Temporary error and retry time. Not saved.
  std::string waiting;
  int64_t retry_at = 0;
  int64_t input_bytes = 0;  // counted in the quota; 0 once the files are deleted
  int64_t tokens = 0;       // all attempts
  // Since the job was last resumed by this process. Not saved.
  std::optional<double> rows_per_second, seconds_left;
  bool ended() const;
};
nlohmann::ordered_json to_json(const Job& job);  // as in the response of GET /jobs/{id}

class JobsStore {
 public:
  using Clock = std::function<int64_t()>;  // Unix time

  struct Options {
    std::function<std::string()> new_id;  // empty: random ids
    size_t block_rows = 0;                // 0: chosen by device
    double checkpoint_seconds = 2;        // interval between checkpoints of the output
    double retry_seconds = 10;            // retry interval after temporary errors
    // Files of finished jobs are kept for this time, then their status for the same time again. Negative: forever.
    double keep_seconds = 30 * 86'400;
    JobQuota::Limits limits = {};
  };
  // Loads the existing jobs; interrupted ones resume.
  JobsStore(const StateDir& state, JobModels models, Clock clock, Options options);

  // A file being uploaded. Without finish(), the destructor removes it.
  class Upload {
   public:
    Upload(JobsStore& store, JobRequest request);
    ~Upload();
    Upload(const Upload&) = delete;
    Upload& operator=(const Upload&) = delete;
    void write(std::string_view bytes);  // throws cannot_write, also beyond the quota
    Job finish();

   private:
    JobsStore& store_;
    Job job_;
    std::optional<io::AtomicFile> file_;
    int64_t bytes_ = 0;
    bool finished_ = false;
  };
  static void check(const JobRequest& request);       // throws usage for an unknown format
  std::unique_ptr<Upload> begin(JobRequest request);  // throws cannot_write beyond the quota
  const JobQuota& quota() const { return quota_; }

  // Newest first; with `after`, only jobs older than it, if it exists.
  std::vector<Job> list(size_t limit = SIZE_MAX, const std::string& after = "") const;
  std::optional<Job> find(const std::string& id) const;
  // Path of the output, or of the partial output; empty if there is none yet.
  std::optional<std::filesystem::path> output(const std::string& id) const;
  // Cancels a waiting or running job; removes a finished one with its files. Empty if unknown.
  std::optional<Job> cancel(const std::string& id);

  // Runs the oldest runnable job until it ends, fails temporarily or `stop` is requested; then it resumes the next
  // time. Returns false if there was none. For one thread.
  bool run_next(std::stop_token stop);
  // Rows scored by this process.
  struct Rows {
    int64_t completed = 0, failed = 0;
  };
  Rows rows_done() const;
  std::vector<std::string> faults() const;  // temporary errors of waiting jobs
  void expire();                            // deletes files and jobs older than keep_seconds
  // Waits until a job is runnable, `stop` is requested or a short time has passed.
  void wait_for_work(std::stop_token stop);

 private:
  std::filesystem::path folder_of(const std::string& id) const { return folder_ / id; }
  std::filesystem::path input_of(const Job& job) const;
  std::filesystem::path output_of(const Job& job) const;
  void load();
  void save(const Job& job) const;
  void set_status(Job& job, JobStatus status);
  void update(const std::string& id, const std::function<void(Job&)>& change);
  Job* next_job();  // requires the lock; null: none
  void run(Job job, std::stop_token stop);
  JobModel choose_model(Job& job);
  void score_rows(Job& job, const std::stop_token& stop);

  const std::filesystem::path folder_;
  const JobModels models_;
  const Clock clock_;
  const Options options_;
  JobQuota quota_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::map<std::string, Job> jobs_;
  std::string running_;
  Rows rows_done_;
  std::stop_source stop_running_;
  int64_t next_number_ = 1;
};

}  // namespace brim::serve
