// SPDX-License-Identifier: Apache-2.0
#include "serve/durable/jobs_store.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iterator>
#include <random>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "io/sync_directory.h"
#include "jobs/score_file.h"
#include "rows/resume.h"
#include "rows/row_reader.h"
#include "rows/row_writer.h"
#include "serve/durable/time_left.h"

namespace brim::serve {
namespace {

namespace fs = std::filesystem;
using JobJson = nlohmann::ordered_json;

constexpr int kJobVersion = 1;
constexpr std::chrono::seconds kPollInterval(1);  // for jobs to retry or expire
constexpr JobStatus kAllStatus[] = {JobStatus::validating, JobStatus::in_progress, JobStatus::finalizing,
                                    JobStatus::completed,  JobStatus::failed,      JobStatus::cancelling,
                                    JobStatus::cancelled,  JobStatus::expired};

std::string random_id() {
  std::random_device device;
  return fmt::format("batch_{:08x}{:08x}", device(), device());
}

std::string job_text(const JobJson& json) { return json.dump(2, ' ', false, JobJson::error_handler_t::replace); }

JobJson stored(const Job& job) {
  JobJson json = {{"version", kJobVersion},
                  {"id", job.id},
                  {"model", job.request.model},
                  {"format", job.request.format},
                  {"text_column", job.request.text_column},
                  {"output_format", job.request.output_format},
                  {"all_scores", job.request.all_scores},
                  {"pair_column", job.request.pair_column},
                  {"chosen_model", job.model},
                  {"reason", job.reason},
                  {"instead_of", job.instead_of},
                  {"status", job_status_name(job.status)},
                  {"number", job.number},
                  {"created_at", job.created_at},
                  {"times", job.times},
                  {"completed", job.completed_rows},
                  {"failed", job.failed_rows},
                  {"tokens", job.tokens},
                  {"blank_lines", job.blank_lines},
                  {"total", nullptr},
                  {"error", job.error}};
  if (job.total_rows) json["total"] = *job.total_rows;
  if (const auto& labels = job.request.zero_shot) {
    json["candidate_labels"] = labels->labels;
    json["hypothesis_template"] = labels->text_template;
    json["multi_label"] = labels->multi_label;
  }
  return json;
}

Job restored(const std::string& text) {
  const JobJson json = JobJson::parse(text);
  if (json.at("version").get<int>() != kJobVersion)
    fail(ErrorCode::bad_data, "unsupported version {} (expected {})", json.at("version").get<int>(), kJobVersion);
  Job job;
  job.id = json.at("id").get<std::string>();
  job.request = {json.at("model").get<std::string>(),       json.at("format").get<std::string>(),
                 json.at("text_column").get<std::string>(), json.at("output_format").get<std::string>(),
                 json.at("all_scores").get<bool>(),         json.value("pair_column", "")};  // missing in older files
  if (json.contains("candidate_labels"))
    job.request.zero_shot = {json.at("candidate_labels").get<std::vector<std::string>>(),
                             json.at("hypothesis_template").get<std::string>(), json.at("multi_label").get<bool>()};
  job.model = json.at("chosen_model").get<std::string>();
  job.reason = json.value("reason", "");  // missing in older files
  job.instead_of = json.value("instead_of", "");
  const auto status = json.at("status").get<std::string>();
  const auto* found = std::find_if(std::begin(kAllStatus), std::end(kAllStatus),
                                   [&](JobStatus known) { return status == job_status_name(known); });
  if (found == std::end(kAllStatus)) fail(ErrorCode::bad_data, "unknown status {}", status);
  job.status = *found;
  job.number = json.at("number").get<int64_t>();
  job.created_at = json.at("created_at").get<int64_t>();
  job.times = json.at("times").get<std::map<std::string, int64_t>>();
  job.completed_rows = json.at("completed").get<int64_t>();
  job.failed_rows = json.at("failed").get<int64_t>();
  job.tokens = json.value("tokens", int64_t{0});  // missing in older files, like blank_lines
  job.blank_lines = json.value("blank_lines", int64_t{0});
  if (!json.at("total").is_null()) job.total_rows = json.at("total").get<int64_t>();
  job.error = json.at("error").get<std::string>();
  job.progress = job.status == JobStatus::completed ? 1 : 0;
  return job;
}

// A kill loses one block. Large blocks keep a GPU busy; on a slow CPU, small blocks lose less work.
size_t block_rows_for(const Scorer& scorer) {
  return scorer.kind() != ModelKind::rules && scorer.device().starts_with("cpu") ? 512 : 8192;
}
constexpr size_t kBlockBytes = size_t{4} << 20;  // text bytes per block

// Groups rows into blocks, possibly across chunks. Block boundaries depend only on the rows.
class BlockReader {
 public:
  BlockReader(rows::RowReader& reader, size_t max_rows) : reader_(reader), max_rows_(max_rows) {}

  const std::vector<RowRef>& rows() const { return rows_; }
  rows::RowPosition position() const { return rows_.back().chunk->position_after(rows_.back().row); }
  int64_t file_bytes() const { return rows_.back().chunk->file_bytes(); }

  bool next() {
    rows_.clear();
    size_t bytes = 0;
    if (!chunks_.empty()) chunks_.erase(chunks_.begin(), chunks_.end() - 1);  // the last chunk may have unread rows
    for (;;) {
      if (!chunks_.empty()) {
        const rows::RowChunk& chunk = *chunks_.back();
        while (row_ < chunk.size()) {
          rows_.push_back({&chunk, row_});
          bytes += chunk.texts[row_].size() + chunk.pair(row_).value_or("").size();
          ++row_;
          if (rows_.size() >= max_rows_ || bytes >= kBlockBytes) return true;
        }
      }
      auto chunk = std::make_unique<rows::RowChunk>();
      if (!reader_.next_chunk(*chunk)) return !rows_.empty();
      chunks_.push_back(std::move(chunk));
      row_ = 0;
    }
  }

 private:
  rows::RowReader& reader_;
  const size_t max_rows_;
  std::vector<std::unique_ptr<rows::RowChunk>> chunks_;
  size_t row_ = 0;  // next row of the last chunk
  std::vector<RowRef> rows_;
};

// Settings that must stay the same when a job resumes.
rows::RowReaderOptions reader_options(const JobRequest& request) {
  rows::RowReaderOptions options;
  options.format = rows::parse_row_format(request.format);
  options.text_column = request.text_column;
  options.pair_column = request.pair_column;
  options.max_record_bytes = kLongestRow;
  return options;
}

rows::RunIdentity run_identity(const Job& job, const JobModel& model, const fs::path& input, size_t block_rows) {
  rows::RunIdentity identity;
  identity.inputs = {input.string()};
  identity.model = model.identity;
  identity.model_files = model.files;
  identity.options = {{"block-rows", std::to_string(block_rows)},
                      {"text-column", job.request.text_column},
                      {"all-scores", job.request.all_scores ? "yes" : "no"},
                      {"precision", model.scorer->precision()}};
  if (!job.request.pair_column.empty()) identity.options["pair-column"] = job.request.pair_column;
  if (const auto& labels = job.request.zero_shot)
    identity.options["labels"] = JobJson({labels->labels, labels->text_template, labels->multi_label})
                                     .dump(-1, ' ', false, JobJson::error_handler_t::replace);
  return identity;
}

}  // namespace

const char* job_status_name(JobStatus status) {
  static constexpr const char* kNames[] = {"validating", "in_progress", "finalizing", "completed",
                                           "failed",     "cancelling",  "cancelled",  "expired"};
  return kNames[static_cast<size_t>(status)];
}

bool Job::ended() const {
  return status == JobStatus::completed || status == JobStatus::failed || status == JobStatus::cancelled ||
         status == JobStatus::expired;
}

nlohmann::ordered_json to_json(const Job& job) {
  const auto time_of = [&](const char* name) {
    const auto found = job.times.find(name);
    return found == job.times.end() ? JobJson() : JobJson(found->second);
  };
  const auto or_null = [](const std::string& text) { return text.empty() ? JobJson() : JobJson(text); };
  JobJson json = {{"id", job.id},
                  {"object", "batch"},
                  {"endpoint", "/score"},
                  {"model", job.model.empty() ? job.request.model : job.model},
                  {"reason", or_null(job.reason)},
                  {"instead_of", or_null(job.instead_of)},
                  {"status", job_status_name(job.status)},
                  {"errors", nullptr},
                  {"created_at", job.created_at}};
  for (const JobStatus status : kAllStatus)
    if (status != JobStatus::validating) {
      const std::string name = std::string(job_status_name(status)) + "_at";
      json[name] = time_of(name.c_str());
    }
  json["request_counts"] = {{"total", nullptr}, {"completed", job.completed_rows}, {"failed", job.failed_rows}};
  if (job.total_rows) json["request_counts"]["total"] = *job.total_rows;
  json["blank_lines"] = job.blank_lines;
  json["progress"] = job.progress;
  const bool running = job.status == JobStatus::in_progress && job.waiting.empty();
  const auto number_or_null = [&](const std::optional<double>& n) { return running && n ? JobJson(*n) : JobJson(); };
  json["rows_per_second"] = number_or_null(job.rows_per_second);
  json["seconds_left"] = number_or_null(job.seconds_left);
  json["waiting"] = or_null(job.ended() ? "" : job.waiting);
  if (!job.error.empty()) json["errors"] = {{"object", "list"}, {"data", JobJson::array({{{"message", job.error}}})}};
  return json;
}

JobsStore::JobsStore(const StateDir& state, JobModels models, Clock clock, Options options)
    : folder_(state.folder("jobs")),
      models_(std::move(models)),
      clock_(std::move(clock)),
      options_(std::move(options)),
      quota_(options_.limits) {
  load();
}

void JobsStore::load() {
  for (const auto& entry : fs::directory_iterator(folder_)) {
    std::error_code unknown, ignored;
    if (!fs::exists(entry.path() / "job.json", unknown) && !unknown) {  // an unfinished upload
      fs::remove_all(entry.path(), ignored);
      continue;
    }
    std::ifstream in(entry.path() / "job.json", std::ios::binary);
    const std::string name = entry.path().filename().string();
    Job job;
    try {
      job = restored({std::istreambuf_iterator<char>(in), {}});
      if (job.id != name) fail(ErrorCode::bad_data, "job id {} does not match the directory", job.id);
    } catch (const std::exception& e) {  // keep the files for inspection
      job = {};
      job.id = name;
      job.status = JobStatus::failed;
      job.error = fmt::format("cannot read {}: {}", (entry.path() / "job.json").string(), e.what());
    }
    if (job.status == JobStatus::cancelling) set_status(job, JobStatus::cancelled);
    next_number_ = std::max(next_number_, job.number + 1);
    if (const auto bytes = fs::file_size(input_of(job), ignored); !ignored)
      job.input_bytes = static_cast<int64_t>(bytes);
    quota_.restore(job.input_bytes);
    jobs_[job.id] = std::move(job);
  }
}

fs::path JobsStore::input_of(const Job& job) const { return folder_of(job.id) / ("input." + job.request.format); }

fs::path JobsStore::output_of(const Job& job) const {
  const rows::OutputFormat format = job.request.output_format == "auto"
                                        ? rows::output_format_of("", rows::parse_row_format(job.request.format))
                                        : rows::parse_output_format(job.request.output_format);
  return folder_of(job.id) / (std::string("output.") + rows::output_format_name(format));
}

void JobsStore::save(const Job& job) const {
  io::write_file_atomically(folder_of(job.id) / "job.json", job_text(stored(job)) + "\n");
}

void JobsStore::set_status(Job& job, JobStatus status) {
  job.status = status;
  job.times[std::string(job_status_name(status)) + "_at"] = clock_();
  save(job);
}

std::vector<std::string> JobsStore::faults() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> all;
  for (const auto& [id, job] : jobs_)
    if (!job.waiting.empty()) all.push_back(fmt::format("job {} is waiting: {}", job.id, job.waiting));
  return all;
}

JobsStore::Rows JobsStore::rows_done() const {
  const std::lock_guard lock(mutex_);
  return rows_done_;
}

void JobsStore::update(const std::string& id, const std::function<void(Job&)>& change) {
  const std::lock_guard lock(mutex_);
  if (const auto found = jobs_.find(id); found != jobs_.end()) change(found->second);
}

JobsStore::Upload::Upload(JobsStore& store, JobRequest request) : store_(store) {
  job_.id = store.options_.new_id ? store.options_.new_id() : random_id();
  job_.request = std::move(request);
  job_.created_at = store.clock_();
  store.quota_.add_job();
  try {
    std::error_code error;
    if (!fs::create_directory(store.folder_of(job_.id), error))
      fail(ErrorCode::cannot_write, "cannot create {}: {}", store.folder_of(job_.id).string(), error.message());
    file_.emplace(store.input_of(job_));
  } catch (...) {
    store.quota_.remove_job();
    throw;
  }
}

JobsStore::Upload::~Upload() {
  if (finished_) return;
  file_.reset();
  std::error_code ignored;
  fs::remove_all(store_.folder_of(job_.id), ignored);
  store_.quota_.remove_bytes(bytes_);
  store_.quota_.remove_job();
}

void JobsStore::Upload::write(std::string_view bytes) {
  store_.quota_.add_bytes(static_cast<int64_t>(bytes.size()));
  bytes_ += static_cast<int64_t>(bytes.size());
  file_->write(bytes);
}

Job JobsStore::Upload::finish() {
  file_->commit();
  const std::lock_guard lock(store_.mutex_);
  job_.number = store_.next_number_++;
  job_.input_bytes = bytes_;
  store_.save(job_);
  io::sync_directory(store_.folder_);  // makes the new job directory durable
  finished_ = true;
  store_.jobs_[job_.id] = job_;
  store_.changed_.notify_all();
  return job_;
}

void JobsStore::check(const JobRequest& request) {
  if (rows::parse_row_format(request.format) == rows::RowFormat::automatic)
    fail(ErrorCode::usage, "unknown `format={}` (use txt, csv, tsv or jsonl)", request.format);
  if (request.output_format != "auto") rows::parse_output_format(request.output_format);
  if (request.zero_shot && !request.pair_column.empty())
    fail(ErrorCode::usage, "`pair_column={}`: not supported with `candidate_labels`", request.pair_column);
}

std::unique_ptr<JobsStore::Upload> JobsStore::begin(JobRequest request) {
  check(request);
  return std::make_unique<Upload>(*this, std::move(request));
}

std::vector<Job> JobsStore::list(size_t limit, const std::string& after) const {
  const auto order = [](const Job& job) { return std::pair<int64_t, std::string_view>(job.number, job.id); };
  const std::lock_guard lock(mutex_);
  const auto last = jobs_.find(after);
  std::vector<const Job*> found;
  for (const auto& [id, job] : jobs_)
    if (last == jobs_.end() || order(job) < order(last->second)) found.push_back(&job);
  const auto end = found.begin() + static_cast<std::ptrdiff_t>(std::min(limit, found.size()));
  std::partial_sort(found.begin(), end, found.end(), [&](const Job* a, const Job* b) { return order(*a) > order(*b); });
  std::vector<Job> jobs;
  for (auto it = found.begin(); it != end; ++it) jobs.push_back(**it);
  return jobs;
}

void JobsStore::expire() {
  if (options_.keep_seconds < 0) return;
  std::vector<fs::path> obsolete;  // removed without the lock: deleting a large file takes time
  {
    const std::lock_guard lock(mutex_);
    const int64_t before = clock_() - static_cast<int64_t>(options_.keep_seconds);
    for (auto it = jobs_.begin(); it != jobs_.end();) {
      Job& job = (it++)->second;
      const auto since = job.times.find(std::string(job_status_name(job.status)) + "_at");
      if (!job.ended() || since == job.times.end() || since->second >= before) continue;
      if (job.status == JobStatus::expired) {
        obsolete.push_back(folder_of(job.id));
        jobs_.erase(std::string(job.id));
        quota_.remove_job();
        continue;
      }
      const fs::path target = output_of(job), part = io::AtomicFile::part_path(target);
      for (const fs::path& path : {input_of(job), target, part, fs::path(part.string() + ".json")})
        obsolete.push_back(path);
      set_status(job, JobStatus::expired);
      quota_.remove_bytes(std::exchange(job.input_bytes, 0));
    }
  }
  std::error_code ignored;
  for (const fs::path& path : obsolete) fs::remove_all(path, ignored);
}

std::optional<Job> JobsStore::find(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<fs::path> JobsStore::output(const std::string& id) const {
  const std::optional<Job> job = find(id);
  if (!job) return std::nullopt;
  const fs::path whole = output_of(*job), part = io::AtomicFile::part_path(whole);
  std::error_code ignored;
  for (const fs::path& path : {whole, part})
    if (fs::exists(path, ignored)) return path;
  return std::nullopt;
}

std::optional<Job> JobsStore::cancel(const std::string& id) {
  std::unique_lock lock(mutex_);
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return std::nullopt;
  Job& job = found->second;
  if (job.ended()) {
    const Job removed = job;
    jobs_.erase(found);
    lock.unlock();  // deleting a large file takes time
    std::error_code ignored;
    fs::remove_all(folder_of(id), ignored);
    quota_.remove_bytes(removed.input_bytes);
    quota_.remove_job();
    return removed;
  }
  if (running_ == id) {
    stop_running_.request_stop();
    if (job.status != JobStatus::cancelling) set_status(job, JobStatus::cancelling);
  } else {
    set_status(job, JobStatus::cancelled);
  }
  return job;
}

void JobsStore::wait_for_work(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, stop, kPollInterval,
                    [&] { return next_job() != nullptr; });  // retry times pass without a notification
}

Job* JobsStore::next_job() {
  const int64_t now = clock_();
  Job* next = nullptr;
  for (auto& [id, job] : jobs_)
    // A retry time too far in the future predates a backward clock change.
    if (!job.ended() && (job.retry_at <= now || static_cast<double>(job.retry_at - now) > options_.retry_seconds + 1) &&
        (next == nullptr || job.number < next->number))
      next = &job;
  return next;
}

bool JobsStore::run_next(std::stop_token stop) {
  Job job;
  {
    const std::lock_guard lock(mutex_);
    Job* const next = next_job();
    if (next == nullptr) return false;
    next->waiting.clear();
    job = *next;
    running_ = job.id;
    stop_running_ = std::stop_source();
  }
  const auto ended = [this] {
    const std::lock_guard lock(mutex_);
    running_.clear();
  };
  try {
    run(std::move(job), std::move(stop));
  } catch (...) {
    ended();
    throw;
  }
  ended();
  return true;
}

void JobsStore::run(Job job, std::stop_token stop) {
  std::string error;
  std::optional<Error> temporary;
  std::exception_ptr device_lost;
  bool done = false;
  const bool unchosen = job.model.empty();
  try {
    const std::stop_callback on_stop(stop, [this] { stop_running_.request_stop(); });
    score_rows(job, stop_running_.get_token());
    done = true;
  } catch (const Error& e) {
    // Written rows stay; the job resumes after a restart, or once there is memory or disk space.
    const bool resumes =
        e.code() == ErrorCode::interrupted || e.code() == ErrorCode::device_lost || e.code() == ErrorCode::cancelled;
    if (e.code() == ErrorCode::does_not_fit || e.code() == ErrorCode::cannot_write)
      temporary = e;
    else if (!resumes)
      error = e.what();
    if (e.code() == ErrorCode::device_lost) device_lost = std::current_exception();
  } catch (const std::exception& e) {
    error = e.what();
  }
  update(job.id, [&](Job& known) {
    if (done) {
      known.total_rows = known.completed_rows + known.failed_rows;
      known.progress = 1;
      set_status(known, JobStatus::completed);
    } else if (!error.empty()) {
      known.error = error;
      set_status(known, JobStatus::failed);
    } else if (known.status == JobStatus::cancelling) {
      set_status(known, JobStatus::cancelled);
    } else if (temporary) {
      if (known.waiting != temporary->what()) log_warning("job {} is waiting: {}", known.id, temporary->what());
      known.waiting = temporary->what();
      known.retry_at = clock_() + static_cast<int64_t>(std::ceil(options_.retry_seconds));
      // Before the first row, a ladder may choose another model.
      if (temporary->code() == ErrorCode::does_not_fit && unchosen && known.completed_rows + known.failed_rows == 0) {
        known.model.clear();
        known.reason.clear();
        known.instead_of.clear();
        save(known);
      }
    }  // otherwise the server is stopping and the job resumes at the next start
  });
  if (device_lost) std::rethrow_exception(device_lost);
}

JobModel JobsStore::choose_model(Job& job) {
  const bool unchosen = job.model.empty();
  JobModel model = models_(job);
  require_labels(*model.scorer, model.name);
  update(job.id, [&](Job& known) {
    known.model = job.model = model.name;
    known.reason = model.reason;
    known.instead_of = model.instead_of;
    known.rows_per_second = known.seconds_left = {};  // an earlier attempt may have set them
    if (known.status == JobStatus::validating)
      set_status(known, JobStatus::in_progress);
    else if (unchosen)
      save(known);
  });
  return model;
}

void JobsStore::score_rows(Job& job, const std::stop_token& stop) {
  const fs::path input = input_of(job), target = output_of(job);
  rows::RowReader reader({input.string()}, reader_options(job.request));
  const bool unchosen = job.model.empty();
  const JobModel model = choose_model(job);

  std::error_code ignored;
  if (fs::exists(target, ignored)) return;  // killed after renaming the output, before saving the status
  jobs::ScoredRows scored({jobs::ScoredModel{model.scorer.get(), "", model.labels}}, reader.schema(),
                          rows::parse_output_format(target.extension().string().substr(1)), job.request.all_scores);
  const size_t block_rows = options_.block_rows > 0 ? options_.block_rows : block_rows_for(*model.scorer);
  rows::RowOutputOptions output_options;
  output_options.resume = !unchosen && fs::exists(io::AtomicFile::part_path(target).string() + ".json", ignored);
  output_options.checkpoint_seconds = options_.checkpoint_seconds;
  jobs::ScoreFile file(target.string(), run_identity(job, model, input, block_rows), output_options, reader, scored,
                       {{"rows", 0}, {"bad rows", 0}, {"tokens", 0}});
  std::map<std::string, int64_t>& counters = file.counters();
  BlockReader blocks(reader, block_rows);
  RowScorer put(model.score, scored);
  std::string bytes;
  const int64_t begun_ns = now_ns(), earlier_rows = counters["rows"] + counters["bad rows"];
  const auto total_bytes = static_cast<double>(reader.bytes_total());
  TimeLeft time_left(file.resumed() ? std::nullopt : std::optional(0.0));
  while (blocks.next()) {
    bytes.clear();
    const std::optional<RowScorer::Done> done = put(blocks.rows(), bytes, stop);
    if (!done) {
      file.output().suspend();
      fail(ErrorCode::interrupted, "stopped");
    }
    counters["tokens"] += done->tokens;
    file.write_block(bytes, done->good, done->bad, blocks.position());
    const double seconds = seconds_since(begun_ns);
    update(job.id, [&](Job& known) {
      known.completed_rows = counters["rows"];
      known.failed_rows = counters["bad rows"];
      rows_done_.completed += done->good;
      rows_done_.failed += done->bad;
      known.tokens = counters["tokens"];
      // Within a chunk, the offset is more precise; in a compressed file it counts decompressed bytes.
      if (total_bytes > 0)
        known.progress = static_cast<double>(std::min(blocks.file_bytes(), blocks.position().offset)) / total_bytes;
      const int64_t rows = known.completed_rows + known.failed_rows - earlier_rows;
      known.rows_per_second = static_cast<double>(rows) / std::max(seconds, 1e-6);
      known.seconds_left = time_left.after(seconds, known.progress);
    });
  }
  update(job.id, [&](Job& known) {
    known.completed_rows = counters["rows"];
    known.failed_rows = counters["bad rows"];
    known.blank_lines = reader.blank_lines();
    if (known.status == JobStatus::in_progress) set_status(known, JobStatus::finalizing);
  });
  file.output().commit();
}

}  // namespace brim::serve
