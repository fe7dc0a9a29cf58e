// SPDX-License-Identifier: Apache-2.0
// Schedules batches on a device. One thread per device owns the batches of all models and serves two classes of work.
// Bulk work arrives packed (files, lists of texts) and is computed as packed, so that the same texts give the same
// bytes under any other load. Interactive texts arrive singly from any thread and are packed late, when the device
// has a free slot, up to a separate token budget; they usually go first (turn_rule.h). Does not tokenize and does not
// decide on plans.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "batch/packed_batch.h"
#include "brim/brim.h"
#include "engine/device_queue.h"
#include "engine/fair_queue.h"
#include "engine/model_host.h"
#include "engine/tokenized_texts.h"
#include "engine/turn_rule.h"
#include "engine/window_results.h"

namespace brim::engine {

class Scheduler;

Error error_of(const std::exception_ptr& failure);

// Packed batches of one caller for one model.
class BulkQueue {
 public:
  using Collect = std::function<void(const batch::PackedBatch&, const float* result)>;
  // `collect` is called on the scheduler's thread for each batch in order. `most_tokens`: tokens of a full batch.
  BulkQueue(Scheduler& scheduler, ModelHost& model, int64_t most_tokens, Collect collect);
  ~BulkQueue();  // drops batches that are not started and waits for the rest
  BulkQueue(const BulkQueue&) = delete;
  BulkQueue& operator=(const BulkQueue&) = delete;

  // Waits until submit() has capacity: one batch may wait in addition to those in flight. False if `stop` was set
  // first. Rethrows errors of the device or of `collect`.
  bool wait_room(const std::atomic<bool>* stop = nullptr);
  // Takes the batch's contents and returns the storage of a used one. Requires capacity.
  void submit(batch::PackedBatch& batch, Launch launch = Launch::ops);
  bool wait_one();                              // waits until one more batch is collected; false if none is in flight
  void finish();                                // waits until all are collected
  std::vector<batch::PackedBatch> take_back();  // batches the device has not started
  double busy_seconds() const;                  // device time of collected batches

 private:
  friend class Scheduler;
  struct Item {
    batch::PackedBatch batch;
    Launch launch;
  };
  bool has_work() const { return !waiting_.empty(); }
  void throw_failure() const;

  Scheduler& scheduler_;
  ModelHost& model_;
  const int64_t most_tokens_;
  const Collect collect_;
  std::deque<Item> waiting_;  // this and the following are protected by the scheduler's lock
  std::vector<batch::PackedBatch> spare_;
  size_t started_ = 0;  // started, not yet collected
  uint64_t collected_ = 0;
  double busy_seconds_ = 0;
  std::exception_ptr failure_;
};

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

// Single texts for one model.
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

class Scheduler {
 public:
  // Starts its thread with the first work; from then on only that thread uses the queue.
  explicit Scheduler(std::unique_ptr<DeviceQueue> queue);
  ~Scheduler();

  DeviceQueue& queue() { return *queue_; }
  // Registers models of the queue; they must outlive their BulkQueue and InteractiveQueue. A model that is not resident
  // is loaded when its turn comes; if the ledger has too little space, others are evicted: those without work first,
  // then by lowest worth(), never a kept one. A failed load fails only that model's work.
  void add(ModelHost& model);
  void remove(ModelHost& model);

  // Unloads or loads a model between two batches. Parked weights stay in host memory up to the parked limit in total;
  // other models are read from their files again.
  void park(ModelHost& model);
  // Throws on failure. `stays` is not evicted for it.
  void load(ModelHost& model, const ModelHost* stays = nullptr);
  void set_parked_limit(int64_t bytes) { parked_limit_ = bytes; }
  // Releases the device with all parked weights if no model is on it and there is no work; otherwise returns false. The
  // next work reopens it with the same plan and limit, or fails with does_not_fit.
  bool close_device();
  void open_device();

  // A configuration the queue was sized for, so that an equal model can be added later.
  struct CapacityProfile {
    model::ModelShape shape;
    plan::Plan plan;
    std::vector<model::ForwardPlan> forwards;  // one per pass
  };
  void add_capacity(CapacityProfile profile);
  // Finds one with `first` as output of the first pass and the requested output of the last.
  std::optional<CapacityProfile> find_capacity(const plan::PlanRequest& request, model::Output first) const;

  // Runs `work` on the scheduler's thread with nothing in flight and waits for it. Rethrows its exceptions.
  void call(const std::function<void()>& work);

  ModelHost::Work work_of(const ModelHost& model) const;  // statistics of its batches
  ScorerWork::Idle idle() const;                          // device idle time, all models together

  // starved_seconds(): time the device was idle while bulk work was open, waiting for its texts.
  bool lost() const;  // the device failed: nothing is started any more
  double starved_seconds() const;

 private:
  friend class BulkQueue;
  friend class InteractiveQueue;
  // Windows of interactive texts in one batch, in the order of its sequences.
  struct Piece {
    PendingText* text;
    size_t window;
  };
  struct Call {
    const std::function<void()>* work;
    ModelHost* model = nullptr;        // if set: load this model instead
    const ModelHost* stays = nullptr;  // without evicting this one
    std::exception_ptr error = nullptr;
    bool done = false;
  };
  using Lock = std::unique_lock<std::mutex>;

  void start();  // requires the lock
  void require_process() const;
  void loop();
  bool step(Lock& lock);  // false if there is nothing to do
  void run_calls(Lock& lock);
  void run(Lock& lock, BulkQueue& bulk);
  void run(Lock& lock, InteractiveQueue& texts);
  bool collect_oldest(Lock& lock);
  // Null if the model is resident afterwards. `stays` is not evicted for it.
  std::exception_ptr make_resident(Lock& lock, ModelHost& model, const ModelHost* stays = nullptr);
  void park_or_unload(ModelHost& model);  // without the lock
  void serve_during_load();               // without the lock: serves texts of resident models during a load
  bool has_work_for(const ModelHost& model) const;
  void wait_for(Call& call);
  void pack(InteractiveQueue& texts, batch::PackedBatch& batch, std::vector<Piece>& pieces, PendingTexts& refused);
  void collect(InteractiveQueue& texts, const std::vector<Piece>& pieces, const WindowResults& results,
               int64_t started_ns);
  bool has_work() const;  // work that is not in flight
  void wait(Lock& lock);
  void fail_all(Lock& lock, std::exception_ptr failure);
  template <class Client>
  static Client* first_with_work(const std::vector<Client*>& clients);
  template <class Fn>
  bool guarded(Lock& lock, Fn&& fn);  // runs on the device without the lock; false if it failed

  const std::unique_ptr<DeviceQueue> queue_;
  const int process_;
  mutable std::mutex mutex_;
  std::condition_variable work_, progress_;  // for the scheduler's thread; for threads waiting for it
  std::atomic<uint64_t> arrivals_{0};
  std::vector<BulkQueue*> bulk_queues_;  // the most recently served is last, likewise below
  std::vector<InteractiveQueue*> interactive_queues_;
  TurnRule turn_rule_;
  std::deque<Call*> calls_;
  std::vector<ModelHost*> models_;
  std::vector<CapacityProfile> capacities_;
  std::atomic<int64_t> parked_limit_{0};
  bool moving_ = false;  // models are being loaded or unloaded
  uint64_t turns_ = 0;
  std::exception_ptr failure_;
  double starved_seconds_ = 0;
  ScorerWork::Idle idle_;
  int64_t idle_since_ns_;  // start of the wait for work; 0 if busy
  bool ending_ = false;
  batch::PackedBatch batch_;  // for interactive texts; storage is reused
  std::thread thread_;
};

}  // namespace brim::engine
