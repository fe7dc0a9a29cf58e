// SPDX-License-Identifier: Apache-2.0
// Who computes next. One thread per device owns every model's batches on it and takes work of two classes. Bulk comes
// packed (files, lists of texts): its batches are computed as they were packed, so that the same texts give the same
// bytes beside any other work. Interactive texts come one by one from any thread and are packed late, when the device
// has room, up to a token budget of their own; they go first, but not always.
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

// One caller's packed batches for one model.
class Bulk {
 public:
  using Collect = std::function<void(const batch::PackedBatch&, const float* result)>;
  // `collect` is called on the scheduler's thread, batch by batch in their order. `most_tokens`: of a full batch.
  Bulk(Scheduler& scheduler, ModelHost& model, int64_t most_tokens, Collect collect);
  ~Bulk();  // what was not begun is dropped, the rest waited for
  Bulk(const Bulk&) = delete;
  Bulk& operator=(const Bulk&) = delete;

  // Waits until submit() finds room: a batch may wait beside those in flight. False: `stop` was set first. Throws what
  // failed, the device or `collect`.
  bool wait_room(const std::atomic<bool>* stop = nullptr);
  // Takes the batch's contents and hands back storage of a used one. Call with room.
  void submit(batch::PackedBatch& batch, Launch launch = Launch::ops);
  bool wait_one();                              // until one more batch was collected; false: none is under way
  void finish();                                // until all were
  std::vector<batch::PackedBatch> take_back();  // those the device has not begun
  double busy_seconds() const;                  // of the device, for what was collected

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
  std::deque<Item> waiting_;  // this and what follows under the scheduler's lock
  std::vector<batch::PackedBatch> spare_;
  size_t begun_ = 0;  // by the device, not yet collected
  uint64_t collected_ = 0;
  double busy_seconds_ = 0;
  std::exception_ptr failure_;
};

using Deadline = std::optional<std::chrono::steady_clock::time_point>;

// A text that waits for its turn and then holds its scores.
struct PendingText {
  TokenizedTexts tokens;      // of this one text
  std::vector<float> scores;  // sequence outputs: [windows,width]; token outputs: [ids,width]
  std::optional<Error> error;
  Deadline deadline;
  std::stop_token stop;
  bool bulk = false;       // goes after those that are not
  uint64_t client = 0;     // whose it is: clients take turns
  int64_t more_bytes = 0;  // that whoever made it holds for it
  int64_t submitted_ns = 0, begun_ns = 0, done_ns = 0;
  size_t next_window = 0, windows_left = 0;  // for the scheduler
  virtual ~PendingText() = default;
  int64_t bytes() const;  // that it holds, more or less
};
using PendingTexts = std::vector<std::unique_ptr<PendingText>>;

// Texts of one model that come one by one.
class Interactive {
 public:
  struct Limits {
    batch::PackLimits pack;  // of one batch
    int64_t position_offset = 0;
    int64_t width = 0;  // floats per row of a result
    size_t pass = 0;    // of the model's
    bool per_token = false;
    bool average_tokens = false;   // see WindowResults
    double tokens_per_second = 0;  // planned; what is measured takes its place
    double most_seconds = 0;       // a text that would wait longer is refused as busy
    int64_t most_bytes = 0;        // and one that would make all that wait hold more
  };
  // `answer` gets each text exactly once, those of one batch together, on the scheduler's thread or on the one that
  // submits or closes. It must not throw, nor wait.
  using Answer = std::function<void(PendingTexts&)>;
  Interactive(Scheduler& scheduler, ModelHost& model, const Limits& limits, Answer answer);
  ~Interactive() { close(); }
  Interactive(const Interactive&) = delete;
  Interactive& operator=(const Interactive&) = delete;

  // Any thread. Those of one call are there together when the device looks for work.
  void submit(PendingTexts texts);
  ScorerLoad load() const;
  ClientWait wait_of(uint64_t client, int64_t tokens, bool bulk, Deadline deadline = {}) const;
  void close();  // what has not begun is answered as cancelled, the rest waited for; later texts are cancelled

 private:
  friend class Scheduler;
  using Queue = FairQueue<std::unique_ptr<PendingText>>;
  static constexpr int64_t kTurnTokens = 512;
  static constexpr int kBatchesBeforeBulk = 9;              // then those that may wait have the first places of one
  static int64_t due(bool bulk, const Deadline& deadline);  // what may wait keeps the order it came in
  // One caller's texts while submit() looks at them.
  struct Caller {
    uint64_t client;
    bool bulk;
    double most_seconds;
    bool first = true, refused = false;
  };
  Caller caller(const PendingText& text) const;
  std::optional<Error> why_not(Caller& caller, const PendingText& text) const;
  bool has_work() const { return !waiting_.empty() || !bulk_.empty(); }
  // What has not begun, with this error. Of what has, the rest of its windows; it is answered with those that run.
  void take_all(PendingTexts& out, const Error& error);
  void drop(Queue& queue, const Error& error, PendingTexts& out);  // the queue's front
  int64_t waiting_tokens() const { return waiting_.cost() + bulk_.cost(); }
  double seconds_until(uint64_t client, int64_t tokens, bool bulk, int64_t due_ns) const;
  double own_seconds() const;   // for all that waits here
  double wait_seconds() const;  // for all that waits here, others' turns between included
  double with_others(double seconds) const;
  void measure(int64_t tokens, int64_t begun_ns, int64_t done_ns);

  Scheduler& scheduler_;
  ModelHost& model_;
  const Limits limits_;
  const Answer answer_;
  Queue waiting_{kTurnTokens}, bulk_{kTurnTokens};  // this and what follows under the scheduler's lock
  int64_t waiting_bytes_ = 0, running_tokens_ = 0;
  int batches_before_bulk_ = 0;
  double tokens_per_second_;
  int64_t last_done_ns_ = 0;
  std::unordered_map<PendingText*, std::unique_ptr<PendingText>> begun_texts_;  // none of their windows waits
  size_t begun_ = 0;                                                            // batches that are not yet collected
  size_t answering_ = 0;  // calls of answer_ that close() must wait for
  bool closed_ = false;
};

class Scheduler {
 public:
  // Starts its thread with the first work; the queue is that thread's from then on.
  explicit Scheduler(std::unique_ptr<DeviceQueue> queue);
  ~Scheduler();

  DeviceQueue& queue() { return *queue_; }
  // Models of the queue, which outlive their Bulk and Interactive. One that is not resident is loaded when its turn
  // comes; where the ledger has no room others go: those without work before those with it, least worth first, one that
  // is kept never. What fails then is that model's work alone.
  void add(ModelHost& model);
  void remove(ModelHost& model);

  // Off the device, between two batches, and back. Weights stay in host memory while all that do have at most so many
  // bytes there; others are read from their files again.
  void park(ModelHost& model);
  // Throws what failed. `stays`: is not put away for it.
  void load(ModelHost& model, const ModelHost* stays = nullptr);
  void set_parked_limit(int64_t bytes) { parked_limit_ = bytes; }
  // With no model on it and nothing to do, the device is given up, with what is parked: false where there is. The next
  // work opens it again, under the same plan and limit, or fails with does_not_fit.
  bool close_device();
  void open_device();

  // What the queue was sized for, so that a model like it may come later.
  struct Room {
    model::ModelShape shape;
    plan::Plan plan;
    std::vector<model::ForwardPlan> forwards;  // of each pass
  };
  void add_room(Room room);
  // Whose first pass gives `first`, and its last what is requested.
  std::optional<Room> find_room(const plan::PlanRequest& request, model::Output first) const;

  // Runs `work` on the scheduler's thread with nothing in flight, and waits. What it throws is thrown here.
  void call(const std::function<void()>& work);

  ModelHost::Work work_of(const ModelHost& model) const;  // its batches so far
  ScorerWork::Idle idle() const;                          // of the device, all models together

  // Seconds the device had nothing to do while bulk work was open: it waited for its texts.
  bool lost() const;  // the device failed: nothing is begun any more
  double starved_seconds() const;

 private:
  friend class Bulk;
  friend class Interactive;
  // The windows of interactive texts in one batch, as the batch's sequences.
  struct Piece {
    PendingText* text;
    size_t window;
  };
  struct Call {
    const std::function<void()>* work;
    ModelHost* model = nullptr;        // to be made resident, instead
    const ModelHost* stays = nullptr;  // beside this one
    std::exception_ptr error = nullptr;
    bool done = false;
  };
  using Lock = std::unique_lock<std::mutex>;

  void start();  // under the lock
  void require_process() const;
  void loop();
  bool step(Lock& lock);  // false: nothing to do
  void run_calls(Lock& lock);
  void run(Lock& lock, Bulk& bulk);
  void run(Lock& lock, Interactive& texts);
  bool collect_oldest(Lock& lock);
  // Null: it is. `stays`: is not put away for it.
  std::exception_ptr make_resident(Lock& lock, ModelHost& model, const ModelHost* stays = nullptr);
  void put_away(ModelHost& model);  // without the lock
  void answer_meanwhile();          // without the lock: texts of models that are there while another comes
  bool has_work_for(const ModelHost& model) const;
  void wait_for(Call& call);
  void pack(Interactive& texts, batch::PackedBatch& batch, std::vector<Piece>& pieces, PendingTexts& refused);
  void collect(Interactive& texts, const std::vector<Piece>& pieces, const WindowResults& results, int64_t begun_ns);
  bool has_work() const;  // that is not in flight
  void wait(Lock& lock);
  void fail_all(Lock& lock, std::exception_ptr failure);
  template <class Client>
  static Client* first_with_work(const std::vector<Client*>& clients);
  template <class Fn>
  bool guarded(Lock& lock, Fn&& fn);  // on the device, without the lock; false: it failed

  const std::unique_ptr<DeviceQueue> queue_;
  const int process_;
  mutable std::mutex mutex_;
  std::condition_variable work_, progress_;  // for the scheduler's thread; for those that wait for it
  std::atomic<uint64_t> arrivals_{0};
  std::vector<Bulk*> bulks_;  // whoever was served last stands last, as here
  std::vector<Interactive*> interactives_;
  TurnRule turn_rule_;
  std::deque<Call*> calls_;
  std::vector<ModelHost*> models_;
  std::vector<Room> rooms_;
  std::atomic<int64_t> parked_limit_{0};
  bool moving_ = false;  // models come and go just now
  uint64_t turns_ = 0;
  std::exception_ptr failure_;
  double starved_seconds_ = 0;
  ScorerWork::Idle idle_;
  int64_t idle_since_ns_;  // waiting for work; 0: it does not
  bool ending_ = false;
  batch::PackedBatch batch_;  // of interactive texts; storage circulates
  std::thread thread_;
};

}  // namespace brim::engine
