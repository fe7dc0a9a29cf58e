// SPDX-License-Identifier: Apache-2.0
// /jobs: files that are scored in the background. The file is sent as the body or read from the jobs' root directory.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "engine/zero_shot.h"
#include "serve/routes/routes.h"
#include "serve/server_parts.h"
#include "serve/zero_shot.h"

namespace brim::serve {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPieceBytes = 256 << 10;       // read and write size
constexpr size_t kMaxUnwrittenBytes = 1 << 20;  // buffered body bytes before reading pauses
constexpr size_t kDefaultPageSize = 100, kMaxPageSize = 1000;

class OpenFile {
 public:
  explicit OpenFile(int descriptor = -1) : descriptor_(descriptor) {}
  OpenFile(OpenFile&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  OpenFile& operator=(OpenFile&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~OpenFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

// File format for a content type; empty if unknown.
std::string format_of_type(std::string_view type) {
  type = type.substr(0, std::min(type.find(';'), type.size()));
  for (const auto& [name, format] :
       {std::pair("text/csv", "csv"), std::pair("text/tab-separated-values", "tsv"), std::pair("text/plain", "txt"),
        std::pair("application/x-ndjson", "jsonl"), std::pair("application/jsonl", "jsonl")})
    if (same_ignoring_case(type, name)) return format;
  return "";
}

Refusal no_job(std::string_view id) { return {404, "NotFound", fmt::format("job {} not found", id.substr(0, 200))}; }

std::string job_body(const Job& job) {
  return to_json(job).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

// Opens a regular file below `root`, after resolving links.
OpenFile open_below(const fs::path& root, const std::string& path) {
  const Refusal not_found{404, "NotFound", "file not found below the jobs' root directory"};
  std::error_code error;
  const fs::path base = fs::canonical(root, error);
  if (error) throw not_found;
  const fs::path resolved = fs::canonical(base / fs::path(path).relative_path(), error);
  if (error) throw not_found;
  OpenFile file(::open(resolved.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat facts {};
  if (file.get() < 0 || ::fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode)) throw not_found;
  // The path may have changed since it was resolved: check the file that was opened.
  const fs::path opened = fs::read_symlink(fmt::format("/proc/self/fd/{}", file.get()), error);
  const std::string prefix = (base / "").string();  // "/" is its own prefix
  if (error || !opened.string().starts_with(prefix)) throw not_found;
  return file;
}

// The byte range that a Range header selects; everything if there is no range, several, or an invalid one.
struct Part {
  uint64_t begin = 0, end = 0;
  bool partial = false;
};
Part part_of(std::string_view range, uint64_t size) {
  Part part{0, size};
  if (!range.starts_with("bytes=") || range.find(',') != std::string_view::npos) return part;
  range.remove_prefix(6);
  const size_t dash = range.find('-');
  if (dash == std::string_view::npos) return part;
  const auto number = [](std::string_view text) -> std::optional<uint64_t> {
    uint64_t value = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    return problem == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
  };
  const auto first = number(range.substr(0, dash)), last = number(range.substr(dash + 1));
  if ((!first && dash > 0) || (!last && dash + 1 < range.size()) || (!first && !last)) return part;
  part.partial = true;
  if (!first) {
    part.begin = size - std::min(size, *last);
  } else {
    part.begin = *first;
    if (last && *last < *first) return {0, size};
    if (last) part.end = std::min(size, *last == UINT64_MAX ? size : *last + 1);
  }
  if (part.begin >= size)
    throw Refusal{416, "Validation", fmt::format("range not satisfiable: the output has {} bytes", size),
                  fmt::format("Content-Range: bytes */{}\r\n", size)};
  return part;
}

// Returns the end of the last complete row of a file that is still growing.
uint64_t complete_rows(int file, uint64_t size) {
  std::string tail(kPieceBytes, '\0');
  while (size > 0) {
    const uint64_t begin = size - std::min<uint64_t>(size, tail.size());
    const ssize_t n = ::pread(file, tail.data(), size - begin, static_cast<off_t>(begin));
    if (n <= 0) return 0;
    const size_t newline = std::string_view(tail.data(), static_cast<size_t>(n)).rfind('\n');
    if (newline != std::string_view::npos) return begin + newline + 1;
    size = begin;
  }
  return 0;
}

// Receives an upload and writes it to disk, one piece at a time.
class JobUpload final : public Stream, public std::enable_shared_from_this<JobUpload> {
 public:
  JobUpload(ServerParts& server, Call& call, JobRequest request, std::string path)
      : Stream(call), server_(server), request_(std::move(request)), path_(std::move(path)) {}

  void take(std::string_view bytes) override {
    if (!path_.empty())
      return server_.dispatcher.refuse(*call_, {422, "Validation", "send either a body or a `path`, not both"});
    waiting_ += bytes;
    if (waiting_.size() > kMaxUnwrittenBytes) call_->exchange->pause();
    work();
  }
  void ended() override {
    ended_ = true;
    work();
  }

 private:
  void work() {
    if (working_ || (waiting_.empty() && !ended_)) return;
    working_ = true;
    const int thread = call_->thread;
    server_.durable->disk().call(
        [self = shared_from_this(), thread, bytes = std::exchange(waiting_, {}), last = ended_] {
          std::optional<Job> job;
          const auto refusal = self->server_.dispatcher.refusal_from([&] { job = self->write(bytes, last); });
          const std::weak_ptr<JobUpload> weak = self;
          self->server_.dispatcher.post(thread, [weak, refusal, job] {
            if (const auto found = weak.lock()) found->written(refusal, job);
          });
        });
  }

  // Runs as blocking work.
  std::optional<Job> write(const std::string& bytes, bool last) {
    if (file_ == nullptr) {
      if (path_.empty() && bytes.empty()) throw invalid("missing file (send it as the body, or give its `path`)");
      OpenFile source;
      if (!path_.empty()) source = open_below(server_.options.jobs_root, path_);
      file_ = server_.durable->jobs().begin(request_);
      std::string piece(kPieceBytes, '\0');
      while (source.get() >= 0) {
        const ssize_t n = ::read(source.get(), piece.data(), piece.size());
        if (n < 0) fail(ErrorCode::bad_data, "cannot read {}", path_);
        if (n == 0) break;
        file_->write(std::string_view(piece).substr(0, static_cast<size_t>(n)));
      }
    }
    file_->write(bytes);
    if (!last) return std::nullopt;
    return file_->finish();
  }

  void written(const std::optional<Refusal>& refusal, const std::optional<Job>& job) {
    working_ = false;
    if (call_ == nullptr || call_->done) return;
    if (refusal) return server_.dispatcher.refuse(*call_, *refusal);
    if (job) {
      call_->done = true;
      return call_->exchange->answer({.status = 201,
                                      .body = job_body(*job),
                                      .fields = fmt::format("Location: /jobs/{}\r\n{}X-Request-Id: {}\r\n", job->id,
                                                            ignored_field(call_->ignored), call_->id)});
    }
    work();
    if (waiting_.size() <= kMaxUnwrittenBytes) call_->exchange->resume();
  }

  ServerParts& server_;
  const JobRequest request_;
  const std::string path_;  // relative to the jobs' root directory
  std::string waiting_;
  bool working_ = false, ended_ = false;
  std::unique_ptr<JobsStore::Upload> file_;  // used by blocking work only
};

// Sends a job's output, reading each piece when the client has taken the previous one.
class JobOutput final : public Stream, public std::enable_shared_from_this<JobOutput> {
 public:
  JobOutput(ServerParts& server, Call& call, std::string id)
      : Stream(call), server_(server), id_(std::move(id)), range_(call.exchange->head().find("range")) {}

  void begin() {
    run_blocking([self = shared_from_this()] { self->open(); });
  }
  void sent() override {
    if (next_ == part_.end || call_->exchange->head().method == "HEAD") {
      call_->done = true;
      return call_->exchange->end_answer();
    }
    run_blocking([self = shared_from_this()] { self->read(); });
  }

 private:
  // Runs `step` as blocking work, then calls answered() with its result.
  void run_blocking(std::function<void()> step) {
    const int thread = call_->thread;
    const std::weak_ptr<JobOutput> weak = weak_from_this();
    server_.durable->disk().call([&server = server_, thread, weak, step = std::move(step)] {
      const auto refusal = server.dispatcher.refusal_from(step);
      server.dispatcher.post(thread, [weak, refusal] {
        if (const auto found = weak.lock()) found->answered(refusal);
      });
    });
  }

  void open() {
    const std::optional<Job> job = server_.durable->jobs().find(id_);
    if (!job) throw no_job(id_);
    job_ = *job;
    const std::optional<fs::path> path = server_.durable->jobs().output(id_);
    if (path) file_ = OpenFile(::open(path->c_str(), O_RDONLY | O_CLOEXEC));
    struct stat facts {};
    if (file_.get() < 0 || ::fstat(file_.get(), &facts) != 0)
      throw Refusal{404, "NotFound",
                    fmt::format("job {} has no output{} (status {})", id_, job->ended() ? "" : " yet",
                                job_status_name(job->status))};
    uint64_t size = static_cast<uint64_t>(facts.st_size);
    if (path->extension() == ".part") size = complete_rows(file_.get(), size);
    part_ = part_of(range_, size);
    next_ = part_.begin;
    head_.status = part_.partial ? 206 : 200;
    head_.content_type = content_type(path->string());
    head_.fields = "Accept-Ranges: bytes\r\n";
    if (part_.partial)
      head_.fields += fmt::format("Content-Range: bytes {}-{}/{}\r\n", part_.begin, part_.end - 1, size);
    read();
  }
  static const char* content_type(const std::string& path) {
    if (path.find("output.csv") != std::string::npos) return "text/csv; charset=utf-8";
    if (path.find("output.tsv") != std::string::npos) return "text/tab-separated-values; charset=utf-8";
    return "application/x-ndjson";
  }
  void read() {
    piece_.resize(std::min<uint64_t>(kPieceBytes, part_.end - next_));
    const ssize_t n =
        piece_.empty() ? 0 : ::pread(file_.get(), piece_.data(), piece_.size(), static_cast<off_t>(next_));
    if (n < 0 || (n == 0 && !piece_.empty())) fail(ErrorCode::bad_data, "job {}: cannot read the output", id_);
    piece_.resize(static_cast<size_t>(n));
    next_ += static_cast<uint64_t>(n);
  }
  void answered(const std::optional<Refusal>& refusal) {
    if (call_ == nullptr) return;
    if (refusal && begun_) return Dispatcher::abort_response(*call_, *refusal);  // the client notices the short body
    if (refusal) return server_.dispatcher.refuse(*call_, *refusal);
    if (std::exchange(begun_, true)) return call_->exchange->send(piece_);
    call_->model = server_.models.index_of(job_.model);
    call_->rows = static_cast<size_t>(job_.completed_rows + job_.failed_rows);
    call_->tokens = static_cast<size_t>(job_.tokens);
    head_.fields += fmt::format("X-Request-Id: {}\r\n", call_->id);
    head_.body = piece_;
    call_->exchange->begin_answer(std::move(head_), part_.end - part_.begin);
  }

  ServerParts& server_;
  const std::string id_, range_;
  Job job_;
  OpenFile file_;
  Part part_;
  uint64_t next_ = 0;
  std::string piece_;
  Response head_;
  bool begun_ = false;
};

std::shared_ptr<Stream> begin_job(RequestContext& context) {
  Call& call = context.call;
  ServerParts& server = context.server;
  if (server.durable == nullptr) throw Refusal{404, "NotFound", "jobs are disabled on this server"};
  JobRequest request = job_request(*call.exchange);
  call.ignored = unknown_job_keys(call.exchange->query(), "path");
  const std::string path = query_value(call.exchange->query(), "path");
  if (!path.empty() && server.options.jobs_root.empty())
    throw Refusal{403, "Unauthorized", "jobs from server files are disabled on this server"};
  // Before the body is read.
  server.durable->jobs().quota().check(static_cast<int64_t>(call.exchange->head().length));
  try {
    call.model =
        server.models.choose({.model = request.model, .bulk = true}, {ModelKind::classifier, ModelKind::rules}).model;
  } catch (const ModelBeingReplaced& replacing) {  // the job waits for the model
    call.model = replacing.model;
  }
  return std::make_shared<JobUpload>(server, call, std::move(request), path);
}

std::optional<Reply> list_jobs(RequestContext& context) {
  ServerParts& server = context.server;
  const std::string_view query = context.call.exchange->query();
  if (server.durable == nullptr) throw Refusal{404, "NotFound", "jobs are disabled on this server"};
  context.call.ignored = ignored_query_keys(query, std::array<std::string_view, 2>{"limit", "after"});
  const std::string value = query_value(query, "limit");
  size_t limit = kDefaultPageSize;
  const auto [end, problem] = std::from_chars(value.data(), value.data() + value.size(), limit);
  if (!value.empty() &&
      (problem != std::errc() || end != value.data() + value.size() || limit < 1 || limit > kMaxPageSize))
    throw invalid(fmt::format("`limit` must be a number from 1 to {}", kMaxPageSize));
  const auto list = [&server, limit, after = query_value(query, "after")] {
    JobsStore& store = server.durable->jobs();
    if (!after.empty() && !store.find(after)) throw no_job(after);
    std::vector<Job> jobs = store.list(limit + 1, after);
    const bool more = jobs.size() > limit;
    if (more) jobs.pop_back();
    std::string body = "{\"object\":\"list\",\"data\":[";
    const char* comma = "";
    for (const Job& job : jobs) {
      body += std::exchange(comma, ",");
      body += job_body(job);
    }
    return Reply{.body = fmt::format("{}],\"has_more\":{}}}", body, more)};
  };
  return server.dispatcher.run_on(server.durable->disk(), context.call, list);
}

std::optional<Reply> job_call(RequestContext& context) {
  Call& call = context.call;
  ServerParts& server = context.server;
  if (server.durable == nullptr) throw Refusal{404, "NotFound", "jobs are disabled on this server"};
  std::string id(call.exchange->path().substr(std::string_view("/jobs/").size()));
  const size_t slash = std::min(id.find('/'), id.size());
  const std::string verb = id.substr(slash);
  id.resize(slash);
  const bool cancels = call.exchange->head().method == "DELETE";
  if (verb == "/output" && !cancels) {
    const auto output = std::make_shared<JobOutput>(server, call, std::move(id));
    call.stream = output;
    output->begin();
    return kRespondsLater;
  }
  if (!verb.empty()) throw Refusal{404, "NotFound", "unknown job route (use /jobs/ID or GET /jobs/ID/output)"};
  return server.dispatcher.run_on(server.durable->disk(), call, [&server, id, cancels] {
    JobsStore& store = server.durable->jobs();
    const std::optional<Job> job = cancels ? store.cancel(id) : store.find(id);
    if (!job) throw no_job(id);
    return Reply{.body = job_body(*job),
                 .model = job->model,
                 .texts = static_cast<size_t>(job->completed_rows + job->failed_rows),
                 .tokens = job->tokens};
  });
}

constexpr Route kJobRoutes[] = {
    {"POST", "/jobs", Scope::jobs, kTei, true, nullptr, begin_job},
    {"GET", "/jobs", Scope::jobs, kTei, false, list_jobs},
    {"GET", "/jobs/{id}", Scope::jobs, kTei, false, job_call},
    {"DELETE", "/jobs/{id}", Scope::jobs, kTei, false, job_call},
    {"GET", "/jobs/{id}/output", Scope::jobs, kTei, false, job_call},
};

}  // namespace

std::string unknown_job_keys(std::string_view query, std::string_view own) {
  const std::string_view known[] = {own,
                                    "model",
                                    "text_column",
                                    "pair_column",
                                    "format",
                                    "output_format",
                                    "all_scores",
                                    "candidate_labels",
                                    "hypothesis_template",
                                    "multi_label"};
  return ignored_query_keys(query, known);
}

JobRequest job_request(const Exchange& exchange) {
  const std::string_view query = exchange.query();
  JobRequest request;
  request.model = query_value(query, "model");
  request.text_column = query_value(query, "text_column");
  request.pair_column = query_value(query, "pair_column");
  const std::string format = query_value(query, "format"), path = query_value(query, "path"),
                    by_type = format_of_type(exchange.head().find("content-type"));
  request.format_given = !format.empty() || !by_type.empty();
  if (!format.empty())
    request.format = format;
  else if (!path.empty())
    request.format = rows::row_format_name(rows::row_format_of(path));
  else if (!by_type.empty())
    request.format = by_type;
  if (const std::string output = query_value(query, "output_format"); !output.empty()) request.output_format = output;
  const std::string all = query_value(query, "all_scores");
  if (!all.empty() && all != "true" && all != "false") throw invalid("`all_scores` must be true or false");
  request.all_scores = all == "true";
  nlohmann::json parameters = nlohmann::json::object();
  for (const char* key : {"candidate_labels", "hypothesis_template"})
    if (std::string value = query_value(query, key); !value.empty()) parameters[key] = std::move(value);
  if (const std::string several = query_value(query, "multi_label"); !several.empty()) {
    if (several != "true" && several != "false") throw invalid("`multi_label` must be true or false");
    parameters["multi_label"] = several == "true";
  }
  request.zero_shot = zero_shot_of(parameters);
  if (request.zero_shot)
    engine::check_zero_shot(*request.zero_shot, {.labels = "candidate_labels", .pattern = "hypothesis_template"});
  JobsStore::check(request);
  return request;
}

Routes job_routes() { return kJobRoutes; }

}  // namespace brim::serve
