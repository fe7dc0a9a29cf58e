// SPDX-License-Identifier: Apache-2.0
// Files that are scored in the background. A job is a folder: the file as it was sent, job.json with its state, and the
// output, which grows beside a note of how far it reaches (rows/resume.h). Rows are scored in blocks, and the notes
// stand between blocks: a job that was killed and goes on scores the same blocks and so gives the same bytes.
// States and counts have the names of OpenAI's batches. Thread-safe; one job runs at a time, in order of arrival; one
// that cannot go on for now (its model cannot be loaded, the disk is full) lets the others go first.
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
#include "serve/job_quota.h"
#include "serve/row_scorer.h"
#include "serve/state_dir.h"

namespace brim::serve {

enum class JobStatus : uint8_t {
  validating,
  in_progress,
  finalizing,
  completed,
  failed,
  cancelling,
  cancelled,
  expired  // it ended long ago, and its files are gone
};
const char* job_status_name(JobStatus status);

// What a client asks for.
struct JobRequest {
  std::string model;           // a model or a ladder; empty: the default one
  std::string format = "csv";  // txt, csv, tsv, jsonl
  std::string text_column, output_format = "auto";
  bool all_scores = false;
  std::string pair_column = {};  // of a second text that belongs to the first; empty: there is none
  bool format_given = true;      // else it is a guess
};

// Who scores a job. The name is kept: a ladder's choice holds for the whole job, also after a restart.
struct JobModel {
  std::string name, identity;      // identity: what names the weights
  std::vector<std::string> files;  // whose change means other weights
  std::shared_ptr<Scorer> scorer;
  ScoreTexts score;                // with it
  std::string reason, instead_of;  // why it was chosen, and the rung it stands in for
};
struct Job;
using JobModels = std::function<JobModel(const Job& job)>;  // throws does_not_fit: not now; bad_model: never

struct Job {
  std::string id;
  JobRequest request;
  std::string model;               // that answers; empty until it has begun
  std::string reason, instead_of;  // as JobModel has them
  JobStatus status = JobStatus::validating;
  int64_t number = 0;                    // in order of arrival
  int64_t created_at = 0;                // unix seconds, as are the others
  std::map<std::string, int64_t> times;  // by state: in_progress_at, completed_at …
  int64_t completed_rows = 0, failed_rows = 0;
  std::optional<int64_t> total_rows;  // known at the end
  double progress = 0;                // share of the file's bytes
  std::string error;
  // Why it could not go on, which may pass, and when it is tried again. Not kept on disk.
  std::string waiting;
  int64_t retry_at = 0;
  int64_t input_bytes = 0;  // of the quota; 0 once its files are removed
  bool ended() const;
};
nlohmann::ordered_json to_json(const Job& job);  // as GET /jobs/{id} answers

class JobsStore {
 public:
  using Clock = std::function<int64_t()>;  // unix seconds

  struct Options {
    std::function<std::string()> new_id;  // makes names; none: random ones
    size_t block_rows = 0;                // 0: by device
    double checkpoint_seconds = 2;        // how often the note of how far the output reaches is written
    double retry_seconds = 10;            // a job that could not go on for now is tried again
    // After its end the files are kept for so long, then what is known of it as long again. Negative: for ever.
    double keep_seconds = 30 * 86'400;
    JobQuota::Limits limits = {};
  };
  // Finds the jobs that are there; those that were running go on.
  JobsStore(const StateDir& state, JobModels models, Clock clock, Options options);

  // A file that is being sent. Without finish() nothing remains of it.
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
  static void check(const JobRequest& request);       // throws usage for a format that is none
  std::unique_ptr<Upload> begin(JobRequest request);  // throws cannot_write beyond the quota
  const JobQuota& quota() const { return quota_; }

  // Newest first; those that came before the job `after`, where there is one of that name.
  std::vector<Job> list(size_t most = SIZE_MAX, const std::string& after = "") const;
  std::optional<Job> find(const std::string& id) const;
  // Where the output is, or the rows so far; empty: there are none yet.
  std::optional<std::filesystem::path> output(const std::string& id) const;
  // Stops a job that waits or runs; one that has ended is removed with its files. Empty: there is none.
  std::optional<Job> cancel(const std::string& id);

  // Runs the job that has waited longest, if there is one, until it ends, cannot go on for now or `stop` is asked for:
  // then it goes on where it was, the next time. Whether there was one. For one thread.
  bool run_next(std::stop_token stop);
  // Rows of this process's jobs so far.
  struct Rows {
    int64_t completed = 0, failed = 0;
  };
  Rows rows_done() const;
  std::vector<std::string> faults() const;  // what jobs wait for, in sentences
  void expire();                            // what is older than it may be
  // Until there is a job that can be tried, or `stop`, but not for long.
  void wait_for_work(std::stop_token stop);

 private:
  std::filesystem::path folder_of(const std::string& id) const { return folder_ / id; }
  std::filesystem::path input_of(const Job& job) const;
  std::filesystem::path output_of(const Job& job) const;
  void load();
  void save(const Job& job) const;
  void set_status(Job& job, JobStatus status);
  void update(const std::string& id, const std::function<void(Job&)>& change);
  Job* next_job();  // under the lock; null: none
  void run(Job job, std::stop_token stop);
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
