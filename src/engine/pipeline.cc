// SPDX-License-Identifier: Apache-2.0
#include "engine/pipeline.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/thread_pool.h"
#include "base/timeline.h"
#include "engine/chunk_flow.h"
#include "engine/chunk_stages.h"
#include "engine/label.h"
#include "engine/repeated_rows.h"
#include "engine/window_queue.h"

namespace brim::engine {
namespace {

// Limit for the bytes of rows the packer holds before it closes a batch early; bounds memory if texts are long and
// truncated.
constexpr size_t kMostHeldBytes = size_t{4} << 20, kMostHeldChunks = 64;
// Progress is reported per chunk and an interrupted run completes started chunks, so on slow devices a chunk takes
// about half a second. A token is about four bytes of text.
constexpr double kChunkSeconds = 0.5, kBytesPerToken = 4;
constexpr int64_t kLeastChunkBytes = 16 << 10;

// A model's windows waiting for its device.
struct ModelQueue {
  ModelQueue(Engine& engine, size_t place, std::function<void(const WindowResults&)> collect)
      : model(place), windows(engine, std::move(collect)) {}
  size_t model;  // index among all models
  WindowQueue windows;
  uint64_t last_chunk = 0;  // last chunk pushed
  int64_t truncated_rows = 0;

  // Number of chunks with unpacked windows.
  uint64_t chunks() const { return windows.empty() ? 0 : last_chunk - (windows.next_ticket() >> 32) + 1; }
};

using Job = ChunkJob;
using Flow = ChunkFlow<Job>;

class PipelineRun {
 public:
  PipelineRun(const std::vector<Engine*>& models, rows::RowSource& reader, const RowSink& sink,
              const RowProgress& progress, const PipelineOptions& options)
      : models_(models),
        stages_(models, options),
        encoders_(stages_.encoders()),
        reader_(reader),
        sink_(sink),
        progress_(progress),
        options_(options),
        tokenizers_(tokenizer_threads()),
        most_held_(held_chunks()),
        flow_(static_cast<int>(most_held_) + 2 * tokenizers_ + 4, options.stop),
        to_tokenize_(static_cast<size_t>(tokenizers_) + 2) {
    for (const ModelEngine& encoder : encoders_)
      queues_.emplace_back(*encoder.engine, encoder.model,
                           [this, encoder](const WindowResults& results) { collect(encoder, results); });
    find_repeats();
  }

  RowReport run() {
    const int64_t started = now_ns();
    const double process_cpu = CpuClock::process_seconds(), machine_cpu = CpuClock::machine_seconds();
    const int64_t faults = CpuClock::major_faults();
    const auto delays = CpuClock::task_run_delays();  // existing threads: this one and the device's
    const double starved = starved_seconds();
    std::vector<std::thread> threads;
    guarded("packer", pack_cpu_, [&] {  // if a thread cannot be created, the others must end too
      threads.emplace_back([&] { guarded("reader", read_cpu_, [&] { read(); }); });
      for (int i = 0; i < tokenizers_; ++i)
        threads.emplace_back([&, i] { guarded("tokenizer " + std::to_string(i), tokenize_cpu_, [&] { tokenize(); }); });
      threads.emplace_back([&] { guarded("writer", sink_cpu_, [&] { write(); }); });
      pack();
    });
    for (auto& t : threads) t.join();
    reader_.wait_by({});
    if (error_) std::rethrow_exception(error_);
    stats_.seconds = seconds_since(started);
    for (const ModelQueue& queue : queues_) add_counts(queue, stats_);
    if (finder_) count_repeats(stats_);
    stats_.wait_input_seconds = starved_seconds() - starved;
    stats_.host_seconds = host_seconds();
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
          *stats_.run_delay_seconds += delay - before->second;
    }
    return report();
  }

 private:
  RowReport report() const {
    RowReport report{stats_, std::vector<PipelineStats>(models_.size(), stats_)};
    for (const ModelQueue& queue : queues_) {
      PipelineStats& own = report.models[queue.model];
      own.tokens = own.batches = own.truncated_rows = 0;
      own.sum_squares = own.compute_seconds = 0;
      add_counts(queue, own);
      if (finder_) own.truncated_rows += repeated_->truncated_rows(queue.model);
    }
    return report;
  }

  // Rules alone are as fast as the search for equal texts, and results of taggers have no bound.
  void find_repeats() {
    const bool tags = std::any_of(encoders_.begin(), encoders_.end(), [](const ModelEngine& encoder) {
      return is_per_token(encoder.engine->output()) || encoder.engine->gliner() != nullptr;
    });
    if (options_.repeated_bytes <= 0 || encoders_.empty() || tags) return;
    std::vector<size_t> widths(models_.size(), static_cast<size_t>(kVaderWidth));
    for (const auto& [model, engine] : encoders_) {
      const LabelTask* task = stages_.zero_shot_of(*engine);
      widths[model] = task != nullptr ? task->labels().size() : static_cast<size_t>(engine->width());
    }
    device::Device& device = encoders_[0].engine->device();  // only a CPU's limit covers host memory
    finder_.emplace(options_.repeated_bytes, RepeatedResults::bytes_per_text(widths),
                    device.kind() == device::DeviceKind::cpu ? &memory::Ledger::of(device) : nullptr);
    repeated_.emplace(std::move(widths));
    counts_memory_ = device.kind() == device::DeviceKind::cpu;
  }

  void count_repeats(PipelineStats& stats) const {
    stats.repeated_rows = repeated_->rows();
    stats.repeated_bytes = counts_memory_ ? finder_->bytes() : 0;
    for (const ModelEngine& encoder : encoders_) stats.truncated_rows += repeated_->truncated_rows(encoder.model);
  }

  int tokenizer_threads() const {
    if (options_.tokenizer_threads > 0) return options_.tokenizer_threads;
    const int cores = hardware_threads();
    const auto on = [&](device::DeviceKind kind) {
      return std::any_of(encoders_.begin(), encoders_.end(),
                         [&](const ModelEngine& encoder) { return encoder.engine->device().kind() == kind; });
    };
    // With a GPU all cores tokenize; on the CPU they compute, and one tokenizer keeps several cores busy.
    if (on(device::DeviceKind::cpu)) return std::max(1, cores / 8);
    return on(device::DeviceKind::cuda) ? std::max(1, cores - 2) : cores;
  }

  // Work per text, as a multiple, of the model that needs the most.
  size_t pairs_per_text() const {
    size_t most = 1;
    for (const ModelEngine& encoder : encoders_)
      if (const LabelTask* task = stages_.zero_shot_of(*encoder.engine)) most = std::max(most, task->cost());
    return most;
  }

  // Number of chunks the packers may hold; on the CPU and with zero-shot labels, chunks are made smaller first.
  size_t held_chunks() const {
    const size_t pairs = pairs_per_text();  // a text is computed and stored once per pair
    double seconds_per_token = 0;
    bool cpu_tags = false, cpu_words = false;
    for (const auto& [model, engine] : encoders_)
      if (engine->device().kind() == device::DeviceKind::cpu) {
        seconds_per_token += 1 / engine->plan().tokens_per_second;
        cpu_tags = cpu_tags || is_per_token(engine->output());
        cpu_words = cpu_words || engine->gliner() != nullptr;
      }
    if (seconds_per_token > 0) {
      // Plans assume the least chunks for a head that reads the vectors of all tokens.
      const int64_t in_time = cpu_words ? 0 : std::llround(kChunkSeconds * kBytesPerToken / seconds_per_token);
      limit_chunks(std::max(kLeastChunkBytes, in_time), pairs);
    } else if (pairs > 1) {
      limit_chunks(static_cast<int64_t>(reader_.chunk_bytes()), pairs);
    }
    // Tokens with their texts and tag scores take ten times the bytes of the rows.
    const size_t most = (cpu_tags ? kMostHeldBytes / 8 : kMostHeldBytes) / pairs;
    return std::clamp<size_t>(most / reader_.chunk_bytes(), 1, kMostHeldChunks);
  }

  void limit_chunks(int64_t bytes, size_t pairs) const {
    constexpr int64_t kLeastBytes = 1 << 10;
    reader_.limit_chunks(static_cast<size_t>(std::max(kLeastBytes, bytes / static_cast<int64_t>(pairs))));
  }

  // Runs a stage on its thread and adds its CPU time to `cpu`.
  template <class Fn>
  void guarded(const std::string& name, double& cpu, Fn&& fn) {
    if (Timeline::enabled()) Timeline::name_thread(name);
    const double cpu_before = CpuClock::thread_seconds(), delay_before = CpuClock::thread_run_delay();
    const bool own_thread = name != "packer";  // the caller's thread is counted with the existing threads
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
      failed_ = true;
      flow_.cancel();
      to_tokenize_.cancel();
    }
  }

  bool stopped() const { return options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed); }

  void read() {
    uint64_t number = 0;
    reader_.wait_by({[&] { return stopped() || failed_; }, [&] { flow_.await_input(); }});
    const auto wait_for_slot = [&] {
      ScopedZone zone(Zone::wait_room);
      const int64_t since = now_ns();
      const bool taken = flow_.acquire_slot();
      stats_.room_seconds += seconds_since(since);
      return taken;
    };
    while (!stopped() && wait_for_slot()) {
      auto job = std::make_unique<Job>();
      {
        ScopedZone zone(Zone::read);
        const int64_t since = now_ns();
        const bool more = next_chunk(job->out.rows);
        if (more && finder_) job->slots = finder_->find(job->out.rows);
        stats_.read_seconds += seconds_since(since);
        progress_stats([&](PipelineStats& now) { now.read_seconds = stats_.read_seconds; });
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

  // False at the end of the input, or if a stop or an error of another stage interrupted the wait for a pipe.
  bool next_chunk(rows::RowChunk& rows) {
    try {
      return reader_.next_chunk(rows);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::interrupted && (stopped() || failed_)) return false;
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
      stages_.tokenize(**job);
      const double took = seconds_since(since);
      seconds += took;
      progress_stats([&](PipelineStats& now) { now.tokenize_seconds += took; });
      flow_.was_tokenized(std::move(*job));
    }
    std::lock_guard lock(counters_mutex_);
    tokenize_seconds_ += seconds;
  }

  static void add_counts(const ModelQueue& queue, PipelineStats& stats) {
    stats.tokens += queue.windows.tokens();
    stats.batches += queue.windows.batches();
    stats.sum_squares += queue.windows.sum_squares();
    stats.compute_seconds += queue.windows.busy_seconds();
    stats.truncated_rows += queue.truncated_rows;
  }

  // Total idle time over all devices.
  double starved_seconds() {
    std::set<Scheduler*> devices;
    for (ModelQueue& queue : queues_) devices.insert(&queue.windows.engine().scheduler());
    double sum = 0;
    for (const Scheduler* device : devices) sum += device->starved_seconds();
    return sum;
  }

  double host_seconds() const {
    double sum = static_cast<double>(collect_ns_.load()) * 1e-9;
    for (const ModelQueue& queue : queues_) sum += queue.windows.pack_seconds();
    return sum;
  }

  void pack() {
    bool more = true;
    while (more && !stopped()) {
      std::unique_ptr<Job> job;
      switch (next_job(job)) {
        case Flow::Next::chunk:
          hold(std::move(job));
          for (ModelQueue& queue : queues_)
            while (!queue.windows.empty() && (queue.windows.ready() || queue.chunks() >= most_held_) && submit(queue)) {
            }
          break;
        case Flow::Next::stalled:
          submit_partial_batch();
          break;
        case Flow::Next::stopped:
        case Flow::Next::end:
          more = false;
          break;
        case Flow::Next::cancelled:
          for (ModelQueue& queue : queues_) {
            (void)queue.windows.take_back();
            queue.windows.finish();
          }
          return;
      }
    }
    for (ModelQueue& queue : queues_)
      while (!queue.windows.empty() && submit(queue)) {
      }
    if (stopped()) return drain_partial();
    for (ModelQueue& queue : queues_) queue.windows.finish();
  }

  // Wait for a batch in flight first: more texts may arrive for a fuller batch while the device works.
  void submit_partial_batch() {
    for (ModelQueue& queue : queues_)
      if (queue.windows.wait_one()) return;
    for (ModelQueue& queue : queues_)
      if (!queue.windows.empty()) submit(queue);
  }

  Flow::Next next_job(std::unique_ptr<Job>& job) {
    ScopedZone zone(Zone::wait_input);
    return flow_.next(job, holds());
  }

  bool holds() {
    std::lock_guard lock(held_mutex_);
    return !held_.empty();
  }

  void hold(std::unique_ptr<Job> job) {
    const uint64_t number = job->number;
    Job& kept = *job;
    if (kept.windows_left == 0) return flow_.was_computed(std::move(job));
    {
      std::lock_guard lock(held_mutex_);
      held_[number] = std::move(job);
    }
    ScopedZone zone(Zone::pack);
    for (ModelQueue& queue : queues_) {
      const ModelTexts& texts = kept.models[queue.model];
      queue.truncated_rows += texts.truncated;
      queue.last_chunk = number;
      for (size_t w = 0; w < texts.tokens.windows.size(); ++w)
        queue.windows.push(texts.tokens.sequence(w, number << 32 | w));
    }
  }

  // After an interrupt: finish the batches the device has started, return rows up to the first one that is not
  // computed, drop the rest.
  void drain_partial() {
    uint64_t number = UINT64_MAX;
    std::vector<std::pair<size_t, uint64_t>> missing;  // first window without scores, by model
    for (ModelQueue& queue : queues_)
      if (const auto ticket = queue.windows.take_back()) {
        missing.emplace_back(queue.model, *ticket);
        number = std::min(number, *ticket >> 32);
      }
    for (ModelQueue& queue : queues_) queue.windows.finish();
    if (number == UINT64_MAX) {
      std::unique_ptr<Job> job;  // VADER chunks were scored by the tokenizer threads
      while (queues_.empty() && flow_.next(job, false) == Flow::Next::chunk) flow_.was_computed(std::move(job));
      return stop_before(UINT64_MAX);
    }
    Job& job = *held_.at(number);
    size_t first_text = SIZE_MAX;
    for (const auto& [model, ticket] : missing) {
      if (ticket >> 32 != number) continue;
      const auto& texts = job.models[model].tokens.texts;
      const size_t window = ticket & 0xFFFFFFFF;
      size_t text = 0;
      while (texts[text].first_window + texts[text].windows <= window) ++text;
      first_text = std::min(first_text, text);
    }
    const size_t rows = job.row_of_text[first_text];
    stop_before(number + (rows > 0 ? 1 : 0));
    if (rows == 0) return;
    job.row_of_text.resize(first_text);
    job.out.rows.keep_first(rows);
    while (!job.out.errors.empty() && job.out.errors.back().row >= rows) job.out.errors.pop_back();
    release(number);
  }

  // Wakes the stages before this one so that they end; the writer ends with the last complete chunk.
  void stop_before(uint64_t number) {
    to_tokenize_.cancel();
    flow_.close(number);
  }

  // False if the run was stopped first.
  bool submit(ModelQueue& queue) {
    if (stopped() || !queue.windows.submit(options_.stop)) return false;
    progress_stats([&](PipelineStats& now) {
      now.batches = now.tokens = now.truncated_rows = 0;
      now.sum_squares = now.compute_seconds = 0;
      for (const ModelQueue& each : queues_) add_counts(each, now);
      now.host_seconds = host_seconds();
    });
    return true;
  }

  // Publishes the progress of each stage from time to time; stats_ itself is complete only at the end.
  template <class Fn>
  void progress_stats(const Fn& copy) {
    std::lock_guard lock(published_mutex_);
    copy(published_);
  }

  // Returns the results of one batch to the jobs of its windows. Runs on the device thread.
  void collect(const ModelEngine& encoder, const WindowResults& results) {
    const int64_t since = now_ns();
    {
      std::lock_guard lock(held_mutex_);
      for (size_t i = 0; i < results.size(); ++i) {
        const uint64_t number = results.ticket(i) >> 32;
        const size_t window = results.ticket(i) & 0xFFFFFFFF;
        Job& job = *held_.at(number);
        ModelTexts& texts = job.models[encoder.model];
        results.put(i, texts.tokens, window, texts.window_scores);
        if (--job.windows_left == 0) release(number);
      }
    }
    collect_ns_ += now_ns() - since;
  }

  // Requires held_mutex_, or that no batch is in flight.
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
        stages_.finish(*job);
        if (repeated_) repeated_->apply(job->out, job->slots);
        sink_(job->out);
        sink_seconds_ += seconds_since(since);
      }
      rows_ += static_cast<int64_t>(job->out.rows.size());
      bad_ += static_cast<int64_t>(job->out.errors.size());
      file_bytes_ = job->out.rows.file_bytes();
      if (progress_) {
        PipelineStats now;
        progress_stats([&](const PipelineStats& published) { now = published; });
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

  const std::vector<Engine*>& models_;
  const ChunkStages stages_;
  const std::vector<ModelEngine>& encoders_;
  rows::RowSource& reader_;
  const RowSink& sink_;
  const RowProgress& progress_;
  const PipelineOptions& options_;
  const int tokenizers_;
  const size_t most_held_;
  std::optional<RepeatFinder> finder_;       // used by the reader
  std::optional<RepeatedResults> repeated_;  // used by the writer
  bool counts_memory_ = false;
  Flow flow_;
  BoundedQueue<std::unique_ptr<Job>> to_tokenize_;
  std::mutex held_mutex_;
  std::map<uint64_t, std::unique_ptr<Job>> held_;  // chunks with windows that are not computed
  std::atomic<int64_t> collect_ns_{0};
  std::deque<ModelQueue> queues_;  // used by this thread; destroyed first, so that no batch is in flight afterwards
  PipelineStats stats_;
  int64_t rows_ = 0, bad_ = 0, file_bytes_ = 0;
  double sink_seconds_ = 0;
  std::mutex counters_mutex_;
  double tokenize_seconds_ = 0, run_delay_ = 0, read_cpu_ = 0, tokenize_cpu_ = 0, sink_cpu_ = 0, pack_cpu_ = 0;
  std::mutex published_mutex_;
  PipelineStats published_;
  std::mutex error_mutex_;
  std::exception_ptr error_;
  std::atomic<bool> failed_{false};  // a stage failed; the others must end too
};

}  // namespace

const Error* ScoredChunk::error(size_t row) const {
  const auto it =
      std::lower_bound(errors.begin(), errors.end(), row, [](const rows::RowError& e, size_t r) { return e.row < r; });
  return it != errors.end() && it->row == row ? &it->error : nullptr;
}

RowReport run_pipeline(const std::vector<Engine*>& models, rows::RowSource& reader, const RowSink& sink,
                       const RowProgress& progress, const PipelineOptions& options) {
  return PipelineRun(models, reader, sink, progress, options).run();
}

PipelineStats run_pipeline(Engine& model, rows::RowSource& reader, const RowSink& sink, const RowProgress& progress,
                           const PipelineOptions& options) {
  return run_pipeline(std::vector<Engine*>{&model}, reader, sink, progress, options).all;
}

}  // namespace brim::engine
