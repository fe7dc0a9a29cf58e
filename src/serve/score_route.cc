// SPDX-License-Identifier: Apache-2.0
// POST /score: rows in, rows out, as `brim score` does with a file. The body is never whole: a thread of its own reads
// rows from it as they come, scores them as bulk work and sends them back; where either side is slow, the other waits.
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "io/compress.h"
#include "serve/row_scorer.h"
#include "serve/service.h"

namespace brim::serve {
namespace {

constexpr int kMostRowStreams = 16;
constexpr size_t kMostAhead = 1 << 20;  // bytes of rows that wait to be scored, or to be read by the client

// Rows are scored and sent in pieces of about a second's work, so that a client sees them come however slow or
// busy the device is. How much that is shows with each piece; smaller ones than the least would cost a tenth more.
class PieceSize {
 public:
  // How many of the rows from `begin` on are the next piece.
  size_t rows(const rows::RowChunk& chunk, size_t begin) {
    taken_ = 0;
    size_t end = begin;
    for (; end < chunk.size() && taken_ < bytes_; ++end)
      taken_ += chunk.texts[end].size() + chunk.pair(end).value_or("").size() + 1;
    return end - begin;
  }
  void took(double seconds) {
    const double wanted = static_cast<double>(taken_) * std::min(kMostGrowth, kSeconds / std::max(seconds, 1e-6));
    bytes_ = std::clamp(static_cast<size_t>(wanted), kLeast, kMost);
  }

 private:
  static constexpr double kSeconds = 1, kMostGrowth = 8;
  static constexpr size_t kFirst = 8 << 10, kLeast = 32 << 10, kMost = 512 << 10;
  size_t bytes_ = kFirst, taken_ = 0;
};

const char* rows_type(rows::OutputFormat format) {
  return format == rows::OutputFormat::csv   ? "text/csv; charset=utf-8"
         : format == rows::OutputFormat::tsv ? "text/tab-separated-values; charset=utf-8"
                                             : "application/x-ndjson";
}

// What the I/O thread and the rows' thread share of one stream.
struct RowPipe {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::string> body;  // that came and was not read yet
  size_t body_bytes = 0;
  bool body_ended = false, gone = false, paused = false;
  size_t unsent = 0;  // bytes of rows that the client has not read
  std::stop_source stop;

  void give_up() {
    {
      std::lock_guard lock(mutex);
      gone = true;
    }
    stop.request_stop();
    changed.notify_all();
  }
};

class BodySource final : public io::ByteSource {
 public:
  BodySource(std::shared_ptr<RowPipe> pipe, std::function<void()> room)
      : ByteSource("the body"), pipe_(std::move(pipe)), room_(std::move(room)) {}

  size_t read(char* into, size_t capacity) override {
    std::unique_lock lock(pipe_->mutex);
    pipe_->changed.wait(lock, [&] { return !pipe_->body.empty() || pipe_->body_ended || pipe_->gone; });
    if (pipe_->gone) fail(ErrorCode::interrupted, "the client left");
    if (pipe_->body.empty()) return 0;
    std::string& piece = pipe_->body.front();
    const size_t n = std::min(capacity, piece.size() - at_);
    std::memcpy(into, piece.data() + at_, n);
    at_ += n;
    position_ += static_cast<int64_t>(n);
    pipe_->body_bytes -= n;
    if (at_ == piece.size()) {
      pipe_->body.pop_front();
      at_ = 0;
    }
    const bool has_room = pipe_->paused && pipe_->body_bytes <= kMostAhead / 2;
    if (has_room) pipe_->paused = false;
    lock.unlock();
    if (has_room) room_();
    return n;
  }
  bool ready() override {
    std::lock_guard lock(pipe_->mutex);
    return !pipe_->body.empty() || pipe_->body_ended || pipe_->gone;
  }
  int64_t position() const override { return position_; }
  int64_t size() const override { return -1; }

 private:
  const std::shared_ptr<RowPipe> pipe_;
  const std::function<void()> room_;
  size_t at_ = 0;  // in the first piece
  int64_t position_ = 0;
};

}  // namespace

// The I/O thread's side. The rows' thread has the pipe, and finds this one by its weak pointer.
class Service::RowStream final : public Stream, public std::enable_shared_from_this<RowStream> {
 public:
  RowStream(Service& service, Call& call, const RequestOptions& options, JobRequest request, std::string source)
      : Stream(call), service_(service), request_(std::move(request)), source_(std::move(source)) {
    call.bulk = true;
    choose(options);
  }
  ~RowStream() override { pipe_->give_up(); }

  void begin() {
    {
      std::lock_guard lock(service_.rows_mutex_);
      ++service_.row_streams_;
    }
    try {
      std::thread([pipe = pipe_, self = weak_from_this(), &service = service_, thread = call_->thread,
                   options = options_, request = request_, source = source_]() mutable {
        Rows{pipe, self, service, thread, std::move(options), request, source}.run();  // and lets the model go
        // Nothing of the service is touched after this.
        std::lock_guard lock(service.rows_mutex_);
        --service.row_streams_;
        service.rows_ended_.notify_all();
      }).detach();
    } catch (...) {  // no thread: nobody would count it down
      std::lock_guard lock(service_.rows_mutex_);
      --service_.row_streams_;
      throw;
    }
  }

  void take(std::string_view bytes) override {
    bool full;
    {
      std::lock_guard lock(pipe_->mutex);
      pipe_->body.emplace_back(bytes);
      pipe_->body_bytes += bytes.size();
      full = pipe_->body_bytes > kMostAhead;
      pipe_->paused = pipe_->paused || full;
    }
    if (full) call_->exchange->pause();
    pipe_->changed.notify_all();
  }
  void ended() override {
    {
      std::lock_guard lock(pipe_->mutex);
      pipe_->body_ended = true;
    }
    pipe_->changed.notify_all();
  }
  void sent() override {
    {
      std::lock_guard lock(pipe_->mutex);
      pipe_->unsent = 0;
    }
    pipe_->changed.notify_all();
  }

 private:
  // The rows' thread.
  struct Rows {
    std::shared_ptr<RowPipe> pipe;
    std::weak_ptr<RowStream> stream;
    Service& service;
    int thread;
    RequestOptions options;
    JobRequest request;
    std::string source;

    void post(std::function<void(RowStream&)> work) {
      service.server_->post(thread, [weak = stream, work = std::move(work)] {
        const auto found = weak.lock();
        if (found != nullptr && found->call_ != nullptr && !found->call_->done) work(*found);
      });
    }
    void run() {
      try {
        score_all();
        post([](RowStream& s) { s.finish(); });
      } catch (const Error& error) {
        if (error.code() != ErrorCode::interrupted)
          post([refusal = service.refusal_of_blocking_work(error)](RowStream& s) { s.fail_with(refusal); });
      } catch (const std::exception& error) {
        log_warning("/score: {}", error.what());
        post([](RowStream& s) { s.fail_with({500, "Backend", "internal error"}); });
      }
    }
    void score_all() {
      if (options.served == nullptr) {  // it is being replaced
        options = service.choose_for_bulk(request.model, source);
        post([chosen = options](RowStream& s) { s.choose(chosen); });
      }
      rows::RowReaderOptions reading;
      reading.format = rows::parse_row_format(request.format);
      reading.text_column = request.text_column;
      reading.pair_column = request.pair_column;
      reading.max_record_bytes = kLongestRow;
      auto body = std::make_unique<BodySource>(pipe, [this] { post([](RowStream& s) { s.go_on(); }); });
      rows::RowReader reader(io::decompressed(std::move(body)), reading);
      rows::RowWriterOptions writing;
      writing.format = request.output_format == "auto" ? rows::output_format_of("", reading.format)
                                                       : rows::parse_output_format(request.output_format);
      const ServedModel& model = *options.served;
      writing.results = {RowScorer::columns(*model.scorer, request.all_scores, model.name)};
      rows::RowWriter writer(reader.schema(), writing);
      RowScorer score(*model.scorer, service.bulk_scorer(options), writer, request.all_scores);
      std::string bytes;
      writer.header(bytes);
      rows::RowChunk chunk;
      std::vector<RowPlace> places;
      PieceSize piece;
      for (bool first = true; reader.next_chunk(chunk); first = false) {
        if (first && !request.format_given && chunk.size() > 0 && chunk.error(0) != nullptr)
          fail(ErrorCode::bad_data,
               "the first row is not JSON: say what rows these are by `format` (csv, tsv, txt, jsonl) or Content-Type");
        for (size_t begin = 0; begin < chunk.size(); begin += places.size()) {
          places.clear();
          for (size_t n = piece.rows(chunk, begin), row = begin; row < begin + n; ++row)
            places.push_back({&chunk, row});
          const int64_t since = now_ns();
          const std::optional<RowScorer::Done> done = score(places, bytes, pipe->stop.get_token());
          if (!done) fail(ErrorCode::interrupted, "stopped");
          piece.took(seconds_since(since));
          send(bytes, *done, writing.format);
        }
      }
      if (!bytes.empty()) send(bytes, {}, writing.format);
    }
    void send(std::string& bytes, const RowScorer::Done& done, rows::OutputFormat format) {
      {
        std::unique_lock lock(pipe->mutex);
        pipe->changed.wait(lock, [&] { return pipe->unsent < kMostAhead || pipe->gone; });
        if (pipe->gone) fail(ErrorCode::interrupted, "the client left");
        pipe->unsent += bytes.size();
      }
      post([piece = std::exchange(bytes, {}), done, format](RowStream& s) { s.send(piece, done, format); });
    }
  };

  void choose(const RequestOptions& options) {
    options_ = options;
    call_->model = options.model;
    call_->served = options.served;
    call_->reason = options.reason;
    call_->instead_of = options.instead_of;
  }
  void go_on() { call_->exchange->resume(); }
  void send(const std::string& bytes, const RowScorer::Done& done, rows::OutputFormat format) {
    call_->rows += static_cast<size_t>(done.good + done.bad);
    call_->tokens += static_cast<size_t>(done.tokens);
    start(format);
    call_->exchange->send(bytes);
  }
  void start(rows::OutputFormat format) {
    if (std::exchange(begun_, true)) return;
    call_->exchange->begin_answer(
        {.content_type = rows_type(format),
         .fields = fmt::format(
             "X-Brim-Model: {}@{}\r\nX-Brim-Reason: {}\r\n{}X-Request-Id: {}\r\n", call_->served->name,
             call_->served->revision, call_->reason,
             call_->instead_of.empty() ? "" : fmt::format("X-Brim-Instead-Of: {}\r\n", call_->instead_of), call_->id)},
        std::nullopt);
  }
  void finish() {
    start(rows::OutputFormat::jsonl);  // of no rows
    call_->done = true;
    call_->exchange->end_answer();
  }
  void fail_with(const Refusal& refusal) {
    if (!begun_) return service_.refuse(*call_, refusal);
    service_.abort_response(*call_, refusal);  // a stream without its end says that something was wrong
  }

  Service& service_;
  RequestOptions options_;
  const JobRequest request_;
  const std::string source_;
  const std::shared_ptr<RowPipe> pipe_ = std::make_shared<RowPipe>();
  bool begun_ = false;
};

void Service::begin_score(Call& call) {
  {
    std::lock_guard lock(rows_mutex_);
    if (row_streams_ >= kMostRowStreams)
      throw Refusal{429, "Overloaded", fmt::format("{} streams of rows are being scored already", kMostRowStreams),
                    "Retry-After: 1\r\n"};
  }
  const std::string_view query = call.exchange->query();
  JobRequest request = job_request(call);
  if (!request.format_given) request.format = "jsonl";
  RequestOptions w;
  w.bulk = true;
  std::string asked_by = query_value(query, "source");
  try {
    choose_model(w, request.model, asked_by, {ModelKind::classifier, ModelKind::rules});
  } catch (const ModelBeingReplaced& coming) {  // its thread waits for it
    w.model = coming.model;
  }
  const auto stream = std::make_shared<RowStream>(*this, call, w, std::move(request), std::move(asked_by));
  call.stream = stream;
  stream->begin();
}

// Before the service goes: streams whose connection has ended see it and end.
void Service::end_row_streams() {
  std::unique_lock lock(rows_mutex_);
  rows_ended_.wait(lock, [this] { return row_streams_ == 0; });
}

}  // namespace brim::serve
