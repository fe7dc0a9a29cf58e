// SPDX-License-Identifier: Apache-2.0
// Schedules batches on a device. One thread per device owns the batches of all models and selects the next one: bulk
// work (bulk_queue.h) or interactive texts (interactive_queue.h), which usually go first (turn_rule.h). Loads and
// evicts models as needed (residency.cc). Does not tokenize and does not decide on plans.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "batch/packed_batch.h"
#include "brim/brim.h"
#include "engine/bulk_queue.h"
#include "engine/device_queue.h"
#include "engine/interactive_queue.h"
#include "engine/model_host.h"
#include "engine/result_cache.h"
#include "engine/turn_rule.h"

namespace brim::engine {

Error error_of(const std::exception_ptr& failure);

class Scheduler {
 public:
  // Starts its thread with the first work; from then on only that thread uses the queue.
  explicit Scheduler(std::unique_ptr<DeviceQueue> queue);
  ~Scheduler();

  DeviceQueue& queue() { return *queue_; }
  // Registers models of the queue; they must outlive their BulkQueue and InteractiveQueue. A model that is not resident
  // is loaded when its turn comes; if the ledger has too little space, others are evicted: those without work first,
  // then by lowest eviction_cost(), never a kept one. A failed load fails only that model's work.
  void add(ModelHost& model);
  void remove(ModelHost& model);

  // Unloads or loads a model between two batches. Parked weights stay in host memory up to the parked limit in total;
  // other models are read from their files again.
  void park(ModelHost& model);
  // Throws on failure. `stays` is not evicted for it.
  void load(ModelHost& model, const ModelHost* stays = nullptr);
  void set_parked_limit(int64_t bytes) { parked_limit_ = bytes; }
  // Results of earlier texts, for all models of the queue; null: none. Set before the first text.
  void set_cache(std::shared_ptr<ResultCache> cache) { cache_ = std::move(cache); }
  const std::shared_ptr<ResultCache>& cache() const { return cache_; }
  // Part of the device's limit that the cache holds.
  int64_t cache_bytes_on_device() const {
    return cache_ != nullptr && queue_->device().kind() == device::DeviceKind::cpu ? cache_->most_bytes() : 0;
  }
  // Releases the device with all parked weights if no model is on it and there is no work; otherwise returns false. The
  // next work reopens it with the same plan and limit, or fails with does_not_fit.
  bool close_device();
  void open_device();

  // A configuration the queue was sized for, so that an equal model can be added later.
  struct CapacityProfile {
    model::ModelShape shape;
    plan::Plan plan;
    std::vector<model::ForwardPlan> forwards;  // one per pass
    std::string base;                          // see plan::PlanRequest
    model::AdapterRanks adapter_ranks;
    int64_t head_bytes = 0, head_weight_bytes = 0;
  };
  // Weights of a base model for adapters; the same object for the same files and precision.
  std::shared_ptr<BaseWeights> base_weights(const std::filesystem::path& dir, ops::Precision precision,
                                            std::vector<memory::LedgerEntry> parts);
  void add_capacity(CapacityProfile profile);
  // Finds one with `first` as output of the first pass and the requested output of the last.
  std::optional<CapacityProfile> find_capacity(const plan::PlanRequest& request, model::Output first) const;

  // Runs `work` on the scheduler's thread with nothing in flight and waits for it. Rethrows its exceptions.
  void call(const std::function<void()>& work);

  ModelHost::Work work_of(const ModelHost& model) const;  // statistics of its batches
  ScorerWork::Idle idle() const;                          // device idle time, all models together

  // The device failed: nothing is started any more.
  bool lost() const;
  double starved_seconds() const;  // time the device was idle while bulk work waited for its texts

 private:
  friend class BulkQueue;
  friend class InteractiveQueue;
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
  // Texts of a queue in a batch, and those that were refused while it was packed.
  struct Share {
    InteractiveQueue* texts;
    std::vector<InteractiveQueue::Piece> pieces;
    PendingTexts refused = {};
    int64_t first = 0;  // sequence
  };
  void add_share(InteractiveQueue& texts, batch::PackLimits& limits, std::vector<Share>& shares);
  void add_other_adapters(const InteractiveQueue& texts, batch::PackLimits& limits, std::vector<Share>& shares);
  void submit(Lock& lock, std::shared_ptr<std::vector<Share>> shares, int64_t started_ns);
  void collect(const std::vector<Share>& shares, const batch::PackedBatch& batch, const float* result,
               double busy_seconds, int64_t started_ns);
  void collect(const Share& share, const WindowResults& results, int64_t started_ns);
  bool has_work() const;  // work that is not in flight
  void wait(Lock& lock);
  void fail_all(Lock& lock, std::exception_ptr failure);
  template <class Client>
  static Client* first_with_work(const std::vector<Client*>& clients);
  template <class Client>
  static void move_to_back(std::vector<Client*>& clients, Client* served) {
    std::erase(clients, served);
    clients.push_back(served);
  }
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
  std::vector<std::weak_ptr<BaseWeights>> bases_;
  std::atomic<int64_t> parked_limit_{0};
  std::shared_ptr<ResultCache> cache_;
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
