// SPDX-License-Identifier: Apache-2.0
// Tracks the chunks of a pipeline through its stages: read, tokenized, computed, written. All stages hand over chunks
// here under one lock, so that the device stage can detect a stall: no chunk will arrive until it computes the ones it
// holds, because a pipe pauses or because it holds every chunk the pipeline may have in flight. Does not read, tokenize
// or compute anything itself.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace brim::engine {

// Requires `Chunk::number`: 0, 1, 2 … in reading order.
template <class Chunk>
class ChunkFlow {
 public:
  using Ptr = std::unique_ptr<Chunk>;
  // Allows at most `slots` chunks between reader and writer. `stop` may be null.
  ChunkFlow(int slots, const std::atomic<bool>* stop) : free_slots_(slots), stop_(stop) {}

  // --- reader ---

  // Waits until a chunk may be read; false if reading must end.
  bool acquire_slot() {
    std::unique_lock lock(mutex_);
    reader_ = Reader::awaits_slot;
    compute_.notify_one();
    reader_wakes_.wait(lock, [&] { return cancelled_ || closed_ || free_slots_ > 0; });
    reader_ = Reader::works;
    if (cancelled_ || closed_) return false;
    --free_slots_;
    return true;
  }
  // The reader is waiting for input from a pipe.
  void await_input() {
    std::lock_guard lock(mutex_);
    reader_ = Reader::awaits_input;
    compute_.notify_one();
  }
  // A chunk was read and goes to the tokenizers.
  void was_read() {
    std::lock_guard lock(mutex_);
    reader_ = Reader::works;
    ++read_;
  }
  void all_read() {
    std::lock_guard lock(mutex_);
    end_ = std::min(end_, read_);
    wake_all();
  }

  // --- tokenizers ---

  void was_tokenized(Ptr chunk) {
    std::lock_guard lock(mutex_);
    tokenized_[chunk->number] = std::move(chunk);
    compute_.notify_one();
  }

  // --- device ---

  enum class Next { chunk, stalled, stopped, end, cancelled };
  // Returns the next chunk in order. Returns `stalled` to a caller that `holds` chunks if no chunk can arrive before
  // some of them are computed.
  Next next(Ptr& chunk, bool holds) {
    std::unique_lock lock(mutex_);
    const auto something = [&] { return cancelled_ || to_compute_ == end_ || has_next() || (holds && stalled()); };
    while (!something()) {
      if (stop_ != nullptr && stop_->load()) return Next::stopped;
      compute_.wait_for(lock, std::chrono::milliseconds(100));  // a signal handler cannot notify
    }
    if (cancelled_) return Next::cancelled;
    if (to_compute_ == end_) return Next::end;
    if (!has_next()) return Next::stalled;
    chunk = std::move(tokenized_.extract(to_compute_++).mapped());
    return Next::chunk;
  }
  void was_computed(Ptr chunk) {
    std::lock_guard lock(mutex_);
    computed_[chunk->number] = std::move(chunk);
    writer_wakes_.notify_one();
  }
  // Ends the run early: no further reads or batches. The writer gets the computed chunks up to the first one that is
  // not computed, or up to chunk `number`.
  void close(uint64_t number = UINT64_MAX) {
    std::lock_guard lock(mutex_);
    closed_ = true;
    end_ = std::min(end_, number);
    wake_all();
  }

  // --- writer ---

  // Null once everything is written, or after the run was closed or cancelled.
  Ptr next_computed() {
    std::unique_lock lock(mutex_);
    while (!cancelled_ && !closed_ && to_write_ != end_ && !can_write()) {
      writer_waits_ = true;
      compute_.notify_one();
      writer_wakes_.wait(lock);
    }
    writer_waits_ = false;
    if (cancelled_ || !can_write()) return nullptr;
    return std::move(computed_.extract(to_write_++).mapped());
  }
  void was_written() {
    std::lock_guard lock(mutex_);
    ++free_slots_;
    reader_wakes_.notify_one();
  }

  // --- errors from any stage ---

  void cancel() {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
    wake_all();
  }

 private:
  enum class Reader { works, awaits_slot, awaits_input };
  bool has_next() const { return tokenized_.count(to_compute_) > 0; }
  bool can_write() const { return to_write_ < end_ && computed_.count(to_write_) > 0; }
  // The device holds every chunk that was read, and the reader waits for a pipe or for capacity that only the device
  // can free.
  bool stalled() const {
    if (to_compute_ != read_) return false;
    if (reader_ == Reader::awaits_input) return true;
    return reader_ == Reader::awaits_slot && free_slots_ == 0 && writer_waits_ && !can_write();
  }
  void wake_all() {
    reader_wakes_.notify_all();
    compute_.notify_all();
    writer_wakes_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable reader_wakes_, compute_, writer_wakes_;
  int free_slots_;
  const std::atomic<bool>* stop_;
  std::map<uint64_t, Ptr> tokenized_, computed_;
  uint64_t read_ = 0, to_compute_ = 0, to_write_ = 0, end_ = UINT64_MAX;
  Reader reader_ = Reader::works;
  bool writer_waits_ = false, closed_ = false, cancelled_ = false;
};

}  // namespace brim::engine
