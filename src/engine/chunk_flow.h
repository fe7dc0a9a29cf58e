// SPDX-License-Identifier: Apache-2.0
// Where the chunks of a pipeline are: read, tokenized, computed, written. Every stage hands on and takes here, under
// one lock, so that the device's stage can know the one thing it cannot see by itself: that no chunk will come until it
// computes what it holds, because a pipe pauses or because every chunk that may be on its way is held.
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

// `Chunk` has a `number`: 0, 1, 2 … in the order they were read.
template <class Chunk>
class ChunkFlow {
 public:
  using Ptr = std::unique_ptr<Chunk>;
  // At most `room` chunks are between reader and writer. `stop` may be null.
  ChunkFlow(int room, const std::atomic<bool>* stop) : room_(room), stop_(stop) {}

  // --- the reader ---

  // Waits until a chunk may be read; false: read no more.
  bool take_room() {
    std::unique_lock lock(mutex_);
    reader_ = Reader::awaits_room;
    compute_.notify_one();
    reader_wakes_.wait(lock, [&] { return cancelled_ || closed_ || room_ > 0; });
    reader_ = Reader::works;
    if (cancelled_ || closed_) return false;
    --room_;
    return true;
  }
  // The chunk being read waits for a pipe.
  void await_input() {
    std::lock_guard lock(mutex_);
    reader_ = Reader::awaits_input;
    compute_.notify_one();
  }
  // A chunk was read and is on its way to the tokenizers.
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

  // --- the tokenizers ---

  void was_tokenized(Ptr chunk) {
    std::lock_guard lock(mutex_);
    tokenized_[chunk->number] = std::move(chunk);
    compute_.notify_one();
  }

  // --- the device ---

  enum class Next { chunk, stalled, stopped, end, cancelled };
  // The next chunk in order. `stalled`, to one that `holds` chunks: none comes before some of those are computed.
  Next next(Ptr& chunk, bool holds) {
    std::unique_lock lock(mutex_);
    const auto something = [&] { return cancelled_ || to_compute_ == end_ || has_next() || (holds && stalled()); };
    while (!something()) {
      if (stop_ != nullptr && stop_->load()) return Next::stopped;
      compute_.wait_for(lock, std::chrono::milliseconds(100));  // a signal wakes nobody
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
  // The run ends early: nothing is read or begun any more, and the writer gets what was computed, up to the first chunk
  // that was not, or up to chunk `number`.
  void close(uint64_t number = UINT64_MAX) {
    std::lock_guard lock(mutex_);
    closed_ = true;
    end_ = std::min(end_, number);
    wake_all();
  }

  // --- the writer ---

  // Null when all is written, or the run was closed or cancelled.
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
    ++room_;
    reader_wakes_.notify_one();
  }

  // --- an error anywhere ---

  void cancel() {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
    wake_all();
  }

 private:
  enum class Reader { works, awaits_room, awaits_input };
  bool has_next() const { return tokenized_.count(to_compute_) > 0; }
  bool can_write() const { return to_write_ < end_ && computed_.count(to_write_) > 0; }
  // All that was read is with the device, and the reader waits for a pipe, or for room that only the device can make.
  bool stalled() const {
    if (to_compute_ != read_) return false;
    if (reader_ == Reader::awaits_input) return true;
    return reader_ == Reader::awaits_room && room_ == 0 && writer_waits_ && !can_write();
  }
  void wake_all() {
    reader_wakes_.notify_all();
    compute_.notify_all();
    writer_wakes_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable reader_wakes_, compute_, writer_wakes_;
  int room_;
  const std::atomic<bool>* stop_;
  std::map<uint64_t, Ptr> tokenized_, computed_;
  uint64_t read_ = 0, to_compute_ = 0, to_write_ = 0, end_ = UINT64_MAX;
  Reader reader_ = Reader::works;
  bool writer_waits_ = false, closed_ = false, cancelled_ = false;
};

}  // namespace brim::engine
