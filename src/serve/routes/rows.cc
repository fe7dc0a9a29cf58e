// SPDX-License-Identifier: Apache-2.0
// POST /score: scores rows as a stream, as `brim score` does with a file. A separate thread reads rows from the body as
// it arrives, scores them as bulk work and sends them back, with backpressure in both directions.
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
#include "serve/routes/routes.h"
#include "serve/row_scorer.h"
#include "serve/server_parts.h"

namespace brim::serve {
namespace {

constexpr size_t kMaxBufferedBytes = 1 << 20;  // rows waiting to be scored, or to be read by the client

// Sends rows in pieces of about one second of work, so that a client sees progress even if the device is slow or busy.
// Adapts to the time of each piece. Pieces below kMin would cost 10 % more.
class PieceSize {
 public:
  // Number of rows from `begin` in the next piece.
  size_t rows(const rows::RowChunk& chunk, size_t begin) {
    taken_ = 0;
    size_t end = begin;
    for (; end < chunk.size() && taken_ < bytes_; ++end)
      taken_ += chunk.texts[end].size() + chunk.pair(end).value_or("").size() + 1;
    return end - begin;
  }
  void record_time(double seconds) {
    const double target = static_cast<double>(taken_) * std::min(kMaxGrowth, kTargetSeconds / std::max(seconds, 1e-6));
    bytes_ = std::clamp(static_cast<size_t>(target), kMin, kMax);
  }

 private:
  static constexpr double kTargetSeconds = 1, kMaxGrowth = 8;
  static constexpr size_t kInitial = 8 << 10, kMin = 32 << 10, kMax = 512 << 10;
  size_t bytes_ = kInitial, taken_ = 0;
};

const char* rows_type(rows::OutputFormat format) {
  return format == rows::OutputFormat::csv   ? "text/csv; charset=utf-8"
         : format == rows::OutputFormat::tsv ? "text/tab-separated-values; charset=utf-8"
                                             : "application/x-ndjson";
}

// Shared by the I/O thread and the scoring thread of a stream.
struct RowPipe {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::string> body;  // received, not yet read
  size_t body_bytes = 0;
  bool body_ended = false, gone = false, paused = false;
  size_t unsent = 0;  // bytes of rows the client has not read
  std::stop_source stop;

  void abandon() {
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
  BodySource(std::shared_ptr<RowPipe> pipe, std::function<void()> on_space)
      : ByteSource("the body"), pipe_(std::move(pipe)), on_space_(std::move(on_space)) {}

  size_t read(char* into, size_t capacity) override {
    std::unique_lock lock(pipe_->mutex);
    pipe_->changed.wait(lock, [&] { return !pipe_->body.empty() || pipe_->body_ended || pipe_->gone; });
    if (pipe_->gone) fail(ErrorCode::interrupted, "the client disconnected");
    if (pipe_->body.empty()) return 0;
    std::string& piece = pipe_->body.front();
    const size_t n = std::min(capacity, piece.size() - offset_);
    std::memcpy(into, piece.data() + offset_, n);
    offset_ += n;
    position_ += static_cast<int64_t>(n);
    pipe_->body_bytes -= n;
    if (offset_ == piece.size()) {
      pipe_->body.pop_front();
      offset_ = 0;
    }
    const bool has_space = pipe_->paused && pipe_->body_bytes <= kMaxBufferedBytes / 2;
    if (has_space) pipe_->paused = false;
    lock.unlock();
    if (has_space) on_space_();
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
  const std::function<void()> on_space_;
  size_t offset_ = 0;  // in the first piece
  int64_t position_ = 0;
};

// The I/O thread's side. The scoring thread shares the pipe and reaches this object through a weak pointer.
class RowStream final : public Stream, public std::enable_shared_from_this<RowStream> {
 public:
  RowStream(ServerParts& server, Call& call, const ModelChoice& choice, JobRequest request, std::string source)
      : Stream(call), server_(server), request_(std::move(request)), source_(std::move(source)) {
    call.bulk = true;
    choose(choice);
  }
  ~RowStream() override { pipe_->abandon(); }

  void begin() {
    server_.row_streams.begin();
    try {
      std::thread([pipe = pipe_, self = weak_from_this(), &server = server_, thread = call_->thread, choice = choice_,
                   request = request_, source = source_]() mutable {
        ScoringThread{pipe, self, server, thread, std::move(choice), request, source}.run();  // releases the model
        server.row_streams.end();
      }).detach();
    } catch (...) {  // no thread was started that would end it
      server_.row_streams.end();
      throw;
    }
  }

  void take(std::string_view bytes) override {
    bool full;
    {
      std::lock_guard lock(pipe_->mutex);
      pipe_->body.emplace_back(bytes);
      pipe_->body_bytes += bytes.size();
      full = pipe_->body_bytes > kMaxBufferedBytes;
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
  // Runs on the scoring thread.
  struct ScoringThread {
    std::shared_ptr<RowPipe> pipe;
    std::weak_ptr<RowStream> stream;
    ServerParts& server;
    int thread;
    ModelChoice choice;
    JobRequest request;
    std::string source;
    size_t pairs_per_text = 0;

    void post(std::function<void(RowStream&)> work) {
      server.dispatcher.post(thread, [weak = stream, work = std::move(work)] {
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
          post([refusal = server.dispatcher.refusal_of_error(error)](RowStream& s) { s.fail_with(refusal); });
      } catch (const std::exception& error) {
        log_warning("/score: {}", error.what());
        post([](RowStream& s) { s.fail_with({500, "Backend", "internal error"}); });
      }
    }
    void score_all() {
      if (choice.served == nullptr) {  // the model was being replaced
        choice = server.models.choose_for_bulk(request.model, source);
        post([chosen = choice](RowStream& s) { s.choose(chosen); });
      }
      rows::RowReaderOptions reading;
      reading.format = rows::parse_row_format(request.format);
      reading.text_column = request.text_column;
      reading.pair_column = request.pair_column;
      reading.max_record_bytes = kLongestRow;
      auto body = std::make_unique<BodySource>(pipe, [this] { post([](RowStream& s) { s.resume(); }); });
      rows::RowReader reader(io::decompressed(std::move(body)), reading);
      const rows::OutputFormat format = request.output_format == "auto"
                                            ? rows::output_format_of("", reading.format)
                                            : rows::parse_output_format(request.output_format);
      const ServedModel& model = *choice.served;
      require_labels(*model.scorer, model.name);
      const auto labels = BulkScoring::labels_for(choice, request.zero_shot);
      pairs_per_text = server.bulk.pairs_per_text(choice, labels.get());
      jobs::ScoredRows scored({jobs::ScoredModel{model.scorer.get(), "", labels}}, reader.schema(), format,
                              request.all_scores);
      RowScorer score(server.bulk.scorer(choice, labels), scored);
      std::string bytes;
      scored.header(bytes);
      rows::RowChunk chunk;
      std::vector<RowRef> refs;
      PieceSize piece;
      for (bool first = true; reader.next_chunk(chunk); first = false) {
        if (first && !request.format_given && chunk.size() > 0 && chunk.error(0) != nullptr)
          fail(ErrorCode::bad_data, "the first row is not JSON; set `format` (csv, tsv, txt, jsonl) or Content-Type");
        for (size_t begin = 0; begin < chunk.size(); begin += refs.size()) {
          refs.clear();
          for (size_t n = piece.rows(chunk, begin), row = begin; row < begin + n; ++row) refs.push_back({&chunk, row});
          const int64_t since = now_ns();
          const std::optional<RowScorer::Done> done = score(refs, bytes, pipe->stop.get_token());
          if (!done) fail(ErrorCode::interrupted, "stopped");
          piece.record_time(seconds_since(since));
          send(bytes, *done, format);
        }
      }
      if (!bytes.empty()) send(bytes, {}, format);
    }
    void send(std::string& bytes, const RowScorer::Done& done, rows::OutputFormat format) {
      const size_t pairs = static_cast<size_t>(done.good) * pairs_per_text;
      {
        std::unique_lock lock(pipe->mutex);
        pipe->changed.wait(lock, [&] { return pipe->unsent < kMaxBufferedBytes || pipe->gone; });
        if (pipe->gone) fail(ErrorCode::interrupted, "the client disconnected");
        pipe->unsent += bytes.size();
      }
      post([piece = std::exchange(bytes, {}), done, pairs, format](RowStream& s) {
        s.call_->pairs += pairs;
        s.send(piece, done, format);
      });
    }
  };

  void choose(const ModelChoice& choice) {
    choice_ = choice;
    call_->model = choice.model;
    call_->served = choice.served;
    call_->reason = choice.reason;
    call_->instead_of = choice.instead_of;
  }
  void resume() { call_->exchange->resume(); }
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
         .fields =
             fmt::format("X-Brim-Model: {}@{}\r\nX-Brim-Reason: {}\r\n{}{}X-Request-Id: {}\r\n", call_->served->name,
                         call_->served->revision, call_->reason,
                         call_->instead_of.empty() ? "" : fmt::format("X-Brim-Instead-Of: {}\r\n", call_->instead_of),
                         ignored_field(call_->ignored), call_->id)},
        std::nullopt);
  }
  void finish() {
    start(rows::OutputFormat::jsonl);  // if there were no rows
    call_->done = true;
    call_->exchange->end_answer();
  }
  void fail_with(const Refusal& refusal) {
    if (!begun_) return server_.dispatcher.refuse(*call_, refusal);
    Dispatcher::abort_response(*call_, refusal);  // the missing end of the stream signals the error
  }

  ServerParts& server_;
  ModelChoice choice_;
  const JobRequest request_;
  const std::string source_;
  const std::shared_ptr<RowPipe> pipe_ = std::make_shared<RowPipe>();
  bool begun_ = false;
};

std::shared_ptr<Stream> begin_score(RequestContext& context) {
  Call& call = context.call;
  ServerParts& server = context.server;
  if (server.row_streams.full())
    throw Refusal{429, "Overloaded",
                  fmt::format("too many concurrent row streams (at most {})", RowStreams::kMaxStreams),
                  "Retry-After: 1\r\n"};
  JobRequest request = job_request(*call.exchange);
  call.ignored = unknown_job_keys(call.exchange->query(), "source");
  if (!request.format_given) request.format = "jsonl";
  ModelChoice choice;
  std::string source = query_value(call.exchange->query(), "source");
  try {
    choice = server.models.choose({.model = request.model, .source = source, .bulk = true},
                                  {ModelKind::classifier, ModelKind::rules});
  } catch (const ModelBeingReplaced& replacing) {  // the scoring thread waits for it
    choice.model = replacing.model;
  }
  auto stream = std::make_shared<RowStream>(server, call, choice, std::move(request), std::move(source));
  stream->begin();
  return stream;
}

constexpr Route kRowRoutes[] = {{"POST", "/score", Scope::score, kTei, true, nullptr, begin_score}};

}  // namespace

Routes row_routes() { return kRowRoutes; }

}  // namespace brim::serve
