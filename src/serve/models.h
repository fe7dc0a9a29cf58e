// SPDX-License-Identifier: Apache-2.0
// The models of a server: which one answers a request, and loading, parking, replacing and unloading them. Knows no
// requests or connections.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "serve/gate_queue.h"
#include "serve/server_options.h"
#include "serve/workers.h"

namespace brim::serve {

using ModelKinds = std::initializer_list<ModelKind>;

struct ModelQuery {
  std::string model;  // name of a model or ladder; empty: the first ladder, or the first model of the kinds
  std::string source = {};
  double timeout_ms = 0;  // 0: none
  bool bulk = false;
  bool may_wait = false;  // block while the model is being replaced; not for I/O threads
};

struct ModelChoice {
  int model = 0;
  Served served;  // the model when it was chosen
  const char* reason = "default";
  std::string instead_of;  // the rung selected by the rules, if it cannot answer
};

struct ModelStatus {
  Served served;  // null: not loaded
  ModelKind kind = ModelKind::classifier;
  bool opened = false;  // at least once; until then `kind` is the configured one
  std::string state, fault;
  double keep_alive_left = -1;  // seconds until it is parked if it stays idle; negative: never
  size_t running_texts = 0;     // in bulk calls: scored, but not counted before the call ends
};

class ModelRegistry {
 public:
  ModelRegistry(const ServerOptions& options, std::vector<ServedModel> models);
  ~ModelRegistry();

  size_t size() const { return size_; }
  size_t capacity() const { return slots_.size(); }  // includes adapters that can be added later
  const std::string& name(size_t model) const { return slots_[model]->configured.name; }
  const std::string& base(size_t model) const { return slots_[model]->configured.base; }  // empty: not an adapter
  ModelKind kind(size_t model) const { return slots_[model]->kind; }
  const LabelCost& label_cost(int model) const { return slots_[static_cast<size_t>(model)]->configured.label_cost; }
  const std::vector<std::shared_ptr<Ladder>>& ladders() const { return options_.ladders; }
  int64_t unix_now() const;  // clock of the ladders' schedules

  int find(const std::string& name) const;                                 // by name, else by id; throws Refusal (404)
  int index_of(std::string_view name) const;                               // -1: none
  int first_of(ModelKinds kinds, bool loaded = false) const;               // -1: none
  void require_kind(int model, ModelKinds kinds, const char* what) const;  // throws Refusal
  // Throws 503 if the model is not loaded and ModelBeingReplaced during a replacement. With `may_wait`, which is not
  // for I/O threads, blocks until the replacement is done.
  Served get(int model, bool may_wait = false) const;
  ModelChoice choose(const ModelQuery& query, ModelKinds kinds) const;  // throws Refusal
  // Throws does_not_fit if the model, or every rung, is unavailable for now, and bad_model if it is unknown.
  ModelChoice choose_for_bulk(const std::string& model, const std::string& source) const;

  std::vector<Served> loaded() const;  // models that can answer now
  MemoryPlan planned() const;          // all loaded models together, shared memory counted once
  ModelStatus status(size_t model) const;
  double wait_seconds(int model) const;  // predicted queue time; 0 if not loaded
  bool device_lost() const;
  std::atomic<size_t>& running_texts(int model) { return slots_[static_cast<size_t>(model)]->running_texts; }

  // Calls `resume` once the model is not being replaced, which may be before this returns.
  void after_replacement(int model, std::function<void()> resume);
  // Reports an error that was caused by loading the model, not by the text; returns whether it was.
  bool note_if_not_loaded(const ServedModel& model, const Error& error);

  // Loading and unloading; call on thread().
  Workers& thread() { return thread_; }
  bool can_open() const { return options_.reopen != nullptr; }
  // Adds an adapter below the adapters' root directory, which open() can then load; returns its index, also if the
  // adapter is known by this name. A name added before that serves nothing now may get another directory. Throws
  // Refusal for an invalid or used name and an unknown directory.
  size_t add_adapter(const std::string& name, const std::string& path);
  std::string open(size_t model);  // returns an error message; empty: success
  void close(size_t model);
  int reopen_changed(std::vector<std::string>& problems);  // and failed ones; returns the number of opened models

  // Parks idle models, loads those that a schedule needs soon, retries failed loads, closes unused devices and, if the
  // server is idle, trims the heap. Call every second, from one thread.
  void maintain(bool idle);
  GateQueue& gates() { return gates_; }
  const GateQueue& gates() const { return gates_; }
  void stop() { thread_.stop(); }
  void close_all();  // after stop(); also models that were replaced or unloaded but are still in use

 private:
  struct Slot {
    ServedModel configured;    // without its scorer; `id` is the first one
    bool added = false;        // by add_adapter()
    mutable std::mutex mutex;  // guards the members below, except atomics
    std::string id;            // the current one: a new adapter may take the slot of an unloaded one
    Served served;             // null: not loaded
    std::atomic<ModelKind> kind{ModelKind::classifier};
    bool opened = false;
    std::string state = "resident", fault;
    // Batch count and time of the last observed use, for keep_alive; `moving`: loading or leaving the device.
    int64_t batches = 0, used_ns = 0;
    std::atomic<size_t> running_texts{0};
    bool moving = false;
    int64_t failed_ns = 0;  // above 0: time of the last failed load, for retries
    // The old model has left the device and its successor is not loaded yet.
    bool replacing = false;
    mutable std::condition_variable replaced;
    std::vector<std::function<void()>> held;  // continue the waiting requests
    std::string state_now() const;
  };

  Slot& add_slot(const ServedModel& model, const char* state);
  void move_adapter(Slot& slot, const std::string& dir);
  std::string id_of(size_t model) const;
  void report_fault(const std::string& model, const std::string& fault);
  void note_loaded(size_t index);
  void note_not_loaded(size_t index, const std::string& why);
  Served reopen(size_t index, const Scorer* peer, bool peer_stays);
  std::string replace(size_t index);  // if memory does not suffice for both versions
  void drain_and_park(size_t index, const Served& old) const;
  Served open_successor(size_t index, Served& old);
  // The scorer that shares its device queue with a loading model; null: none. `held` keeps it alive.
  const Scorer* queue_owner(size_t index, Served& held) const;
  void retire(Served old);
  void free_retired();
  void load_in_background(Slot& slot, size_t index);
  void park_if_idle(Slot& slot, size_t index);
  void close_idle_device();
  void trim_heap(bool idle);

  const ServerOptions& options_;
  std::vector<std::unique_ptr<Slot>> slots_;  // never resized; null from size_ on
  std::atomic<size_t> size_{0};
  GateQueue gates_;
  std::mutex retired_mutex_;
  std::vector<Served> retired_;  // replaced or unloaded models that requests still use
  // For the maintenance thread only. Time since when no encoder is on the device; negative: the device was closed.
  int64_t unused_since_ns_ = 0;
  bool idle_ = false;                                         // result of the last check
  int64_t least_held_ = std::numeric_limits<int64_t>::max();  // resident bytes since the heap was last trimmed
  Workers thread_{1};  // declared last, so that its tasks end before the members they use
};

}  // namespace brim::serve
