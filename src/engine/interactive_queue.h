// SPDX-License-Identifier: Apache-2.0
// Waiting texts of one model: texts arrive singly from any thread and are packed late, when the device has a free slot,
// up to a separate token budget. Admission, predicted waits and completion; scheduler.h selects whose turn it is.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "batch/packed_batch.h"
#include "brim/brim.h"
#include "engine/fair_queue.h"
#include "engine/model_host.h"
#include "engine/tokenized_texts.h"
#include "engine/window_results.h"

namespace brim::engine {

class Scheduler;

using Deadline = std::optional<std::chrono::steady_clock::time_point>;

// A text that waits for its turn and then holds its scores.
struct PendingText {
  TokenizedTexts tokens;      // this text only
  std::vector<float> scores;  // sequence outputs: [windows,width]; token outputs: [ids,width]
  std::optional<Error> error;
  Deadline deadline;
  std::stop_token stop;
  bool bulk = false;       // low priority
  uint64_t client = 0;     // clients take turns
  int64_t more_bytes = 0;  // additional bytes held by the creator for this text
  int64_t submitted_ns = 0, started_ns = 0, done_ns = 0;
  size_t next_window = 0, windows_left = 0;  // used by the scheduler
  virtual ~PendingText() = default;
  int64_t bytes() const;  // approximate size
};
using PendingTexts = std::vector<std::unique_ptr<PendingText>>;

class InteractiveQueue {
 public:
  struct Limits {
    batch::PackLimits pack;  // per batch
    int64_t position_offset = 0;
    int64_t width = 0;  // floats per result row
    size_t pass = 0;    // index of the model's forward pass
    bool per_token = false;
    bool average_tokens = false;   // see WindowResults
    double tokens_per_second = 0;  // planned; replaced by measurements
    double most_seconds = 0;       // texts that would wait longer are rejected as busy
    int64_t most_bytes = 0;        // limit for the total size of waiting texts
  };
  // `answer` gets each text exactly once, together with others of its batch, on the scheduler's thread or on the thread
  // that submits or closes. It must not throw or block.
  using Answer = std::function<void(PendingTexts&)>;
  InteractiveQueue(Scheduler& scheduler, ModelHost& model, const Limits& limits, Answer answer);
  ~InteractiveQueue() { close(); }
  InteractiveQueue(const InteractiveQueue&) = delete;
  InteractiveQueue& operator=(const InteractiveQueue&) = delete;

  // Thread-safe. Texts of one call become visible to the device together.
  void submit(PendingTexts texts);
  ScorerLoad load() const;
  ClientWait wait_of(uint64_t client, int64_t tokens, bool bulk, Deadline deadline = {}) const;
  void close();  // cancels texts that are not started and later ones, waits for the rest

 private:
  friend class Scheduler;
  // Windows of texts in one batch, in the order of its sequences.
  struct Piece {
    PendingText* text;
    size_t window;
  };
  using Queue = FairQueue<std::unique_ptr<PendingText>>;
  static constexpr int64_t kTurnTokens = 512;
  static constexpr int kBatchesBeforeBulk = 9;              // after these, bulk texts go first in one batch
  static int64_t due(bool bulk, const Deadline& deadline);  // bulk texts keep their arrival order
  // Admission state of one caller during submit().
  struct Caller {
    uint64_t client;
    bool bulk;
    double most_seconds;
    bool first = true, refused = false;
  };
  Caller caller(const PendingText& text) const;
  std::optional<Error> reason_to_reject(Caller& caller, const PendingText& text) const;
  bool has_work() const { return !waiting_.empty() || !bulk_.empty(); }
  // Adds the next texts to a batch; `refused` receives texts that were cancelled or are late. `limits` are those of the
  // batch so far, and are lowered to those of this queue and of its texts' deadlines.
  void pack(batch::PackedBatch& batch, batch::PackLimits& limits, std::vector<Piece>& pieces, PendingTexts& refused);
  // Whether texts of both queues may be in one batch.
  bool shares_batches_with(const InteractiveQueue& other) const;
  // Removes all texts that are not started, and the remaining windows of started ones, with this error; started texts
  // are completed with their running windows.
  void take_all(PendingTexts& out, const Error& error);
  void drop(Queue& queue, const Error& error, PendingTexts& out);  // drops the queue's front
  int64_t waiting_tokens() const { return waiting_.cost() + bulk_.cost(); }
  double seconds_until(uint64_t client, int64_t tokens, bool bulk, int64_t due_ns) const;
  double own_seconds() const;   // time for all texts waiting here
  double wait_seconds() const;  // same, including other models' turns
  double with_others(double seconds) const;
  void measure(int64_t tokens, int64_t started_ns, int64_t done_ns);

  Scheduler& scheduler_;
  ModelHost& model_;
  const Limits limits_;
  const Answer answer_;
  Queue waiting_{kTurnTokens}, bulk_{kTurnTokens};  // this and the following are protected by the scheduler's lock
  int64_t waiting_bytes_ = 0, running_tokens_ = 0;
  int batches_before_bulk_ = 0;
  double tokens_per_second_;
  int64_t last_done_ns_ = 0;
  std::unordered_map<PendingText*, std::unique_ptr<PendingText>> started_texts_;  // texts without waiting windows
  size_t started_ = 0;                                                            // batches not yet collected
  size_t answering_ = 0;  // calls of answer_ that close() must wait for
  bool closed_ = false;
};

}  // namespace brim::engine
