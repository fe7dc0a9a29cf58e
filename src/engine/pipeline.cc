// SPDX-License-Identifier: Apache-2.0
#include "engine/pipeline.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/thread_pool.h"
#include "base/timeline.h"
#include "engine/batch_runner.h"
#include "engine/chunk_flow.h"
#include "engine/entities.h"
#include "text/vader.h"

namespace brim {
namespace {

// Bytes of rows the packer may hold before it closes a batch early; bounds memory when texts are long and cut short.
constexpr size_t kMostHeldBytes = size_t{4} << 20, kMostHeldChunks = 64;
// A chunk is what progress is told by and what an interrupted run finishes, so on slow devices it is about half a
// second's work; a token is four bytes of text, more or less.
constexpr double kChunkSeconds = 0.5, kBytesPerToken = 4;
constexpr int64_t kLeastChunkBytes = 16 << 10;

// A chunk on its way through the stages.
struct Job {
  uint64_t number = 0;
  ScoredChunk out;
  TokenizedTexts tokens;
  std::vector<size_t> row_of_text;   // texts that were tokenized, by row
  std::vector<Encoding> encodings;   // token models only
  std::vector<float> window_scores;  // sequence outputs: [windows,width]; token outputs: [ids,width]
  size_t windows_left = 0;
  int64_t truncated = 0;
};

using Flow = ChunkFlow<Job>;

class Run {
 public:
  Run(Engine* engine, RowReader& reader, const std::function<void(ScoredChunk&)>& sink,
      const std::function<void(const PipelineStats&)>& progress, const PipelineOptions& options)
      : engine_(engine),
        reader_(reader),
        sink_(sink),
        progress_(progress),
        options_(options),
        tokenizers_(tokenizer_threads()),
        most_held_(held_chunks()),
        flow_(static_cast<int>(most_held_) + 2 * tokenizers_ + 4, options.stop),
        to_tokenize_(static_cast<size_t>(tokenizers_) + 2) {}

  PipelineStats go() {
    const int64_t started = now_ns();
    const double process_cpu = CpuClock::process_seconds(), machine_cpu = CpuClock::machine_seconds();
    const int64_t faults = CpuClock::major_faults();
    const auto delays = CpuClock::task_run_delays();  // this thread and the pool of the device
    std::vector<std::thread> threads;
    threads.emplace_back([&] { guarded("reader", read_cpu_, [&] { read(); }); });
    for (int i = 0; i < tokenizers_; ++i)
      threads.emplace_back([&, i] { guarded("tokenizer " + std::to_string(i), tokenize_cpu_, [&] { tokenize(); }); });
    threads.emplace_back([&] { guarded("writer", sink_cpu_, [&] { write(); }); });
    guarded("compute", compute_cpu_, [&] { compute(); });
    for (auto& t : threads) t.join();
    reader_.wait_by({});
    if (error_) std::rethrow_exception(error_);
    stats_.seconds = seconds_since(started);
    stats_.tokenizers = tokenizers_;
    stats_.tokenize_seconds = tokenize_seconds_;
    stats_.read_cpu_seconds = read_cpu_;
    stats_.tokenize_cpu_seconds = tokenize_cpu_;

    stats_.sink_cpu_seconds = sink_cpu_;
    stats_.cpu_seconds = CpuClock::process_seconds() - process_cpu;
    if (machine_cpu >= 0)
      stats_.other_cpu_seconds = std::max(0.0, CpuClock::machine_seconds() - machine_cpu - stats_.cpu_seconds);
    stats_.major_faults = CpuClock::major_faults() - faults;
    if (!delays.empty()) {
      stats_.run_delay_seconds = run_delay_;
      for (const auto& [task, delay] : CpuClock::task_run_delays())
        if (const auto before = delays.find(task); before != delays.end())
          stats_.run_delay_seconds += delay - before->second;
    }
    return stats_;
  }

 private:
  int tokenizer_threads() const {
    if (options_.tokenizer_threads > 0) return options_.tokenizer_threads;
    const int cores = hardware_threads();
    if (engine_ == nullptr) return cores;
    // Beside a GPU the cores are free for text; on the CPU they compute, and one tokenizer keeps ahead of several
    // cores.
    return engine_->device().kind() == DeviceKind::cpu ? std::max(1, cores / 8) : std::max(1, cores - 2);
  }

  // How many chunks the packer may hold; on the CPU they are made shorter first.
  size_t held_chunks() const {
    if (engine_ != nullptr && engine_->device().kind() == DeviceKind::cpu)
      reader_.limit_chunks(static_cast<size_t>(std::max<int64_t>(
          kLeastChunkBytes, std::llround(kChunkSeconds * kBytesPerToken * engine_->plan().tokens_per_second))));
    return std::clamp<size_t>(kMostHeldBytes / reader_.chunk_bytes(), 1, kMostHeldChunks);
  }

  // Runs a stage on its thread, adding the CPU time it took to `cpu`.
  template <class Fn>
  void guarded(const std::string& name, double& cpu, Fn&& fn) {
    if (Timeline::enabled()) Timeline::name_thread(name);
    const double cpu_before = CpuClock::thread_seconds(), delay_before = CpuClock::thread_run_delay();
    const bool own_thread = name != "compute";  // the caller's thread is counted with those that were there before
    try {
      fn();
      std::lock_guard lock(counters_mutex_);
      cpu += CpuClock::thread_seconds() - cpu_before;
      if (own_thread) run_delay_ += CpuClock::thread_run_delay() - delay_before;
    } catch (...) {
      {
        std::lock_guard lock(error_mutex_);
        if (!error_) error_ = std::current_exception();
      }
      flow_.cancel();
      to_tokenize_.cancel();
    }
  }

  bool stopped() const { return options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed); }

  void read() {
    uint64_t number = 0;
    reader_.wait_by({options_.stop, [&] { flow_.await_input(); }});
    const auto room = [&] {
      ScopedZone zone(Zone::wait_room);
      const int64_t since = now_ns();
      const bool taken = flow_.take_room();
      stats_.room_seconds += seconds_since(since);
      return taken;
    };
    while (!stopped() && room()) {
      auto job = std::make_unique<Job>();
      {
        ScopedZone zone(Zone::read);
        const int64_t since = now_ns();
        const bool more = next_chunk(job->out.rows);
        stats_.read_seconds += seconds_since(since);
        so_far([&](PipelineStats& now) { now.read_seconds = stats_.read_seconds; });
        if (!more) break;
        zone.set_detail(static_cast<int64_t>(job->out.rows.size()));
      }
      job->number = number++;
      flow_.was_read();
      ScopedZone zone(Zone::wait_output);
      if (!to_tokenize_.push(std::move(job))) break;
    }
    to_tokenize_.close();
    flow_.all_read();
  }

  // False at the end, which is also where a stop ended the wait for a pipe.
  bool next_chunk(RowChunk& rows) {
    try {
      return reader_.next_chunk(rows);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::interrupted && stopped()) return false;
      throw;
    }
  }

  void tokenize() {
    double seconds = 0;
    for (;;) {
      auto job = [&] {
        ScopedZone zone(Zone::wait_input);
        return to_tokenize_.pop();
      }();
      if (!job) break;
      ScopedZone zone(Zone::tokenize, static_cast<int64_t>((*job)->out.rows.size()));
      const int64_t since = now_ns();
      if (engine_ == nullptr)
        score_vader(**job);
      else
        tokenize_rows(**job);
      const double took = seconds_since(since);
      seconds += took;
      so_far([&](PipelineStats& now) { now.tokenize_seconds += took; });
      flow_.was_tokenized(std::move(*job));
    }
    std::lock_guard lock(counters_mutex_);
    tokenize_seconds_ += seconds;
  }

  static void score_vader(Job& job) {
    ScoredChunk& out = job.out;
    out.width = 4;
    out.scores.assign(out.rows.size() * 4, 0.0f);
    out.errors = std::move(out.rows.errors);
    for (size_t r = 0; r < out.rows.size(); ++r) {
      if (out.error(r) != nullptr) continue;
      const VaderScores v = vader_scores(out.rows.texts[r]);
      float* s = &out.scores[r * 4];
      s[0] = static_cast<float>(v.neg);
      s[1] = static_cast<float>(v.neu);
      s[2] = static_cast<float>(v.pos);

      s[3] = static_cast<float>(v.compound);
    }
  }

  void tokenize_rows(Job& job) {
    ScoredChunk& out = job.out;
    const bool per_token = is_per_token(engine_->output());
    out.width = engine_->width();
    size_t known = 0;  // reader's errors, by row
    for (size_t r = 0; r < out.rows.size(); ++r) {
      if (known < out.rows.errors.size() && out.rows.errors[known].row == r) {
        out.errors.push_back(out.rows.errors[known++]);
        continue;
      }
      if (auto error = engine_->tokenize(out.rows.texts[r], job.tokens)) {
        out.errors.push_back({r, *error});
        continue;
      }
      job.truncated += job.tokens.texts.back().truncated;
      job.row_of_text.push_back(r);
      if (per_token) job.encodings.push_back(engine_->tokenizer().encode(out.rows.texts[r]));
    }
    job.windows_left = job.tokens.windows.size();
    const size_t results = per_token ? job.tokens.ids.size() : job.tokens.windows.size();
    job.window_scores.resize(results * static_cast<size_t>(out.width));
  }

  void compute() {
    if (engine_ == nullptr) {  // VADER was scored by the tokenizer threads
      std::unique_ptr<Job> job;
      Flow::Next next = Flow::Next::chunk;
      while ((next = flow_.next(job, false)) == Flow::Next::chunk) flow_.was_computed(std::move(job));
      if (next == Flow::Next::stopped) stop_before(UINT64_MAX);
      return;
    }
    const Plan& plan = engine_->plan();
    Packer packer({plan.token_budget, plan.max_sequences}, engine_->shape().position_offset);
    BatchRunner& runner = engine_->batches();
    runner.reset_busy();
    PackedBatch batch;
    const auto take = [&](const PackedBatch& b, const float* r) { collect(b, r); };
    bool more = true;
    while (more && !stopped()) {
      std::unique_ptr<Job> job;
      switch (next_job(job)) {
        case Flow::Next::chunk:
          hold(std::move(job), packer);
          while (!packer.empty() && !stopped() && (packer.ready() || held_.size() >= most_held_))
            submit(runner, packer, batch);
          break;
        case Flow::Next::stalled:
          // What is in flight comes first: while the device works, more may arrive for a fuller batch.
          if (!runner.collect_one(take)) submit(runner, packer, batch);
          break;
        case Flow::Next::stopped:
        case Flow::Next::end:
          more = false;
          break;
        case Flow::Next::cancelled:
          runner.finish(take);
          return;
      }
    }
    while (!packer.empty() && !stopped()) submit(runner, packer, batch);
    runner.finish(take);
    stats_.compute_seconds = runner.busy_seconds();
    if (stopped()) cut_short(packer);
  }

  Flow::Next next_job(std::unique_ptr<Job>& job) {
    ScopedZone zone(Zone::wait_input);
    const int64_t since = now_ns();
    const Flow::Next next = flow_.next(job, !held_.empty());
    stats_.wait_input_seconds += seconds_since(since);
    return next;
  }

  void hold(std::unique_ptr<Job> job, Packer& packer) {
    Job& kept = *job;
    stats_.truncated_rows += kept.truncated;
    held_[kept.number] = std::move(job);
    {
      ScopedZone zone(Zone::pack);
      for (size_t w = 0; w < kept.tokens.windows.size(); ++w)
        packer.push({kept.tokens.ids.data() + kept.tokens.windows[w].begin, kept.tokens.windows[w].length,
                     kept.number << 32 | w});
    }
    if (kept.windows_left == 0) release(kept.number);
  }

  // Interrupted: rows up to the first one that is not computed are handed out, the rest is dropped.
  void cut_short(const Packer& packer) {
    if (packer.empty()) return stop_before(UINT64_MAX);
    const uint64_t number = packer.next_ticket() >> 32;
    const size_t window = packer.next_ticket() & 0xFFFFFFFF;
    Job& job = *held_.at(number);
    size_t text = 0;
    while (job.tokens.texts[text].first_window + job.tokens.texts[text].windows <= window) ++text;
    const size_t rows = job.row_of_text[text];
    stop_before(number + (rows > 0 ? 1 : 0));
    if (rows == 0) return;
    job.row_of_text.resize(text);
    job.out.rows.keep_first(rows);
    while (!job.out.errors.empty() && job.out.errors.back().row >= rows) job.out.errors.pop_back();
    release(number);
  }

  // The stages before this one are woken to end, and the one behind ends with the last chunk that is whole.
  void stop_before(uint64_t number) {
    to_tokenize_.cancel();
    flow_.close(number);
  }

  void submit(BatchRunner& runner, Packer& packer, PackedBatch& batch) {
    {
      ScopedZone zone(Zone::pack);
      const int64_t since = now_ns();
      packer.pop(batch);
      stats_.host_seconds += seconds_since(since);
    }
    stats_.batches += 1;
    stats_.tokens += batch.tokens();
    stats_.sum_squares += batch.sum_squares;
    runner.submit(batch, [&](const PackedBatch& b, const float* r) { collect(b, r); });
    so_far([&](PipelineStats& now) {
      now.batches = stats_.batches;
      now.tokens = stats_.tokens;
      now.sum_squares = stats_.sum_squares;
      now.wait_input_seconds = stats_.wait_input_seconds;
      now.host_seconds = stats_.host_seconds;
      now.compute_seconds = runner.busy_seconds();
    });
  }

  // Each stage says now and then where it stands, for whoever watches; stats_ itself is whole only at the end.
  template <class Fn>
  void so_far(const Fn& say) {
    std::lock_guard lock(so_far_mutex_);
    say(so_far_);
  }

  // Results of one batch go back to the jobs their sequences came from.
  void collect(const PackedBatch& batch, const float* result) {
    ScopedZone zone(Zone::collect, batch.tokens());
    const int64_t since = now_ns();
    const auto K = static_cast<size_t>(engine_->width());
    const bool per_token = is_per_token(engine_->output());
    for (size_t b = 0; b < batch.tickets.size(); ++b) {
      const uint64_t number = batch.tickets[b] >> 32;
      const size_t window = batch.tickets[b] & 0xFFFFFFFF;
      Job& job = *held_.at(number);
      if (per_token) {
        const auto& w = job.tokens.windows[window];
        std::copy_n(result + static_cast<size_t>(batch.starts[b]) * K, static_cast<size_t>(w.length) * K,
                    job.window_scores.begin() + static_cast<std::ptrdiff_t>(w.begin * K));
      } else {
        std::copy_n(result + b * K, K, job.window_scores.begin() + static_cast<std::ptrdiff_t>(window * K));
      }
      if (--job.windows_left == 0) release(number);
    }
    stats_.host_seconds += seconds_since(since);
  }

  void release(uint64_t number) {
    auto node = held_.extract(number);
    flow_.was_computed(std::move(node.mapped()));
  }

  void write() {
    for (;;) {
      auto job = [&] {
        ScopedZone zone(Zone::wait_input);
        return flow_.next_computed();
      }();
      if (!job) break;
      {
        ScopedZone zone(Zone::write, static_cast<int64_t>(job->out.rows.size()));
        const int64_t since = now_ns();
        if (engine_ != nullptr) merge(*job);
        sink_(job->out);
        sink_seconds_ += seconds_since(since);
      }
      rows_ += static_cast<int64_t>(job->out.rows.size());
      bad_ += static_cast<int64_t>(job->out.errors.size());
      file_bytes_ = job->out.rows.file_bytes();
      if (progress_) {
        PipelineStats now;
        so_far([&](const PipelineStats& said) { now = said; });
        now.rows = rows_;
        now.bad_rows = bad_;
        now.file_bytes = file_bytes_;
        now.sink_seconds = sink_seconds_;

        now.tokenizers = tokenizers_;
        progress_(now);
      }
      job.reset();
      flow_.was_written();
    }
    stats_.rows = rows_;
    stats_.bad_rows = bad_;
    stats_.file_bytes = file_bytes_;
    stats_.sink_seconds = sink_seconds_;
  }

  // Windows of one text become its result.
  void merge(Job& job) {
    ScoredChunk& out = job.out;
    const auto K = static_cast<size_t>(out.width);
    if (is_per_token(engine_->output())) {
      out.entities.resize(out.rows.size());
      std::vector<float> tokens;
      for (size_t t = 0; t < job.row_of_text.size(); ++t) {
        const size_t row = job.row_of_text[t];
        engine_->token_scores(job.tokens, t, job.encodings[t], job.window_scores, tokens);
        if (options_.word_tags) {
          out.tags.resize(out.rows.size());
          word_tags(job, t, tokens, out.tags[row]);
        } else {
          out.entities[row] = group_entities(out.rows.texts[row], job.encodings[t], tokens.data(), engine_->labels());
        }
      }
      return;
    }
    out.scores.assign(out.rows.size() * K, 0.0f);
    for (size_t t = 0; t < job.row_of_text.size(); ++t) {
      const TokenizedText& text = job.tokens.texts[t];
      engine_->merge_windows(job.window_scores.data() + text.first_window * K, text.windows,
                             &out.scores[job.row_of_text[t] * K]);
    }
  }

  // The class of each space-separated word: that of its first token.
  static void word_tags(const Job& job, size_t t, const std::vector<float>& scores, std::vector<int32_t>& tags) {
    const std::string_view text = job.out.rows.texts[job.row_of_text[t]];
    const auto K = static_cast<size_t>(job.out.width);
    const Encoding& e = job.encodings[t];
    const auto at = code_point_starts(text);
    size_t token = 0;
    for (size_t i = 0; i + 1 < at.size();) {
      while (i + 1 < at.size() && text[at[i]] == ' ') ++i;
      if (i + 1 >= at.size()) break;
      const size_t begin = i;
      while (i + 1 < at.size() && text[at[i]] != ' ') ++i;
      while (token < e.offsets.size() &&
             (e.offsets[token].second == 0 || static_cast<size_t>(e.offsets[token].second) <= begin))
        ++token;
      if (token < e.offsets.size() && static_cast<size_t>(e.offsets[token].first) < i) {
        const float* row = scores.data() + token * K;
        tags.push_back(static_cast<int32_t>(std::max_element(row, row + K) - row));
      } else {
        tags.push_back(-1);
      }
    }
  }

  Engine* engine_;
  RowReader& reader_;
  const std::function<void(ScoredChunk&)>& sink_;
  const std::function<void(const PipelineStats&)>& progress_;
  const PipelineOptions& options_;
  const int tokenizers_;
  const size_t most_held_;
  Flow flow_;
  BoundedQueue<std::unique_ptr<Job>> to_tokenize_;
  std::map<uint64_t, std::unique_ptr<Job>> held_;  // compute thread only
  PipelineStats stats_;
  int64_t rows_ = 0, bad_ = 0, file_bytes_ = 0;
  double sink_seconds_ = 0;
  std::mutex counters_mutex_;
  double tokenize_seconds_ = 0, run_delay_ = 0, read_cpu_ = 0, tokenize_cpu_ = 0, sink_cpu_ = 0, compute_cpu_ = 0;
  std::mutex so_far_mutex_;
  PipelineStats so_far_;
  std::mutex error_mutex_;
  std::exception_ptr error_;
};

}  // namespace

const Error* ScoredChunk::error(size_t row) const {
  const auto it =
      std::lower_bound(errors.begin(), errors.end(), row, [](const RowError& e, size_t r) { return e.row < r; });
  return it != errors.end() && it->row == row ? &it->error : nullptr;
}

PipelineStats run_pipeline(Engine* engine, RowReader& reader, const std::function<void(ScoredChunk&)>& sink,
                           const std::function<void(const PipelineStats&)>& progress, const PipelineOptions& options) {
  const PipelineStats stats = Run(engine, reader, sink, progress, options).go();
  if (engine != nullptr) engine->set_counted(stats);
  return stats;
}

}  // namespace brim
