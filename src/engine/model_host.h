// SPDX-License-Identifier: Apache-2.0
// One model on a device: its weights, forward passes and graphs of small batches. It comes and goes: what it is called
// and planned to be stays, its bytes are there only while it is resident. The scheduler's thread loads and unloads it.
#pragma once
#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "brim/brim.h"
#include "device/device.h"
#include "engine/small_batches.h"
#include "memory/ledger.h"
#include "model/forward_runner.h"
#include "model/weights.h"
#include "plan/plan.h"

namespace brim::engine {

class DeviceQueue;

// What names the files of a model and of the tagger whose head it has, if any.
std::string facts_of(const std::filesystem::path& dir, const std::filesystem::path& tagger);

class ModelHost {
 public:
  // Nothing is loaded yet. `facts` are those of its files (hub::model_facts) when they were read for `shape` and
  // `plan`, its plan among the models that share `queue`.
  // `forwards`: its passes, most models have one. `tagger`: whose head is its second, else empty. `one_batch`: above 0,
  // all it will compute is one batch of about so many tokens, and it is prepared for that alone.
  ModelHost(std::filesystem::path dir, std::filesystem::path tagger, std::string facts, const model::ModelShape& shape,
            const plan::Plan& plan, std::vector<model::ForwardPlan> forwards, DeviceQueue& queue,
            int64_t one_batch = 0);
  ~ModelHost();

  const std::filesystem::path& dir() const { return dir_; }
  const model::ModelShape& shape() const { return shape_; }
  const plan::Plan& plan() const { return plan_; }
  int64_t width() const { return output_width(shape_, plan_.output); }
  int64_t own_bytes() const;  // what loading reserves: all but what the queue's models share

  Residence residence() const { return residence_.load(std::memory_order_relaxed); }  // any thread
  bool resident() const { return residence() == Residence::resident; }
  int64_t loads() const { return loads_.load(std::memory_order_relaxed); }
  double load_seconds() const { return static_cast<double>(load_ns_.load(std::memory_order_relaxed)) * 1e-9; }
  // Throws what was wrong with its files, that they are others than they were, or does_not_fit; nothing is held then.
  // `between`: called again and again while it comes, by the thread that loads.
  void load(const std::function<void()>& between = {});
  // With nothing of it in flight: to its files alone, or with its weights kept in host memory where that has room.
  void unload();
  void park();
  int64_t weight_bytes() const { return weight_bytes_; }  // that park() holds; known once it was loaded
  // What it costs that it is not there, for each byte it takes: seconds of loading, as often as it was asked for in the
  // last ten minutes, which counts less the longer it is ago. Who is least worth leaves first.
  double worth(int64_t now_ns) const;
  void note_texts(int64_t texts, int64_t now_ns);
  std::atomic<bool> kept{false};  // never put away for want of room
  // Graphs of small batches from now on, captured with each load. CUDA; elsewhere it does nothing.
  void want_small_batches();
  bool wants_small_batches() const { return wants_small_; }

  // While it is resident:
  model::ForwardRunner& forward(size_t pass) { return *runners_[pass]; }
  SmallBatches* small(size_t pass) { return pass < small_.size() ? small_[pass].get() : nullptr; }
  // Ops of batches with fewer tokens are not named one by one when they fail: it would cost them more than they take.
  int64_t named_from() const { return named_from_; }
  uint64_t used = 0;  // the scheduler's count when a batch of it began last
  // What its batches were so far; under the scheduler's lock, but for graphs.
  struct Work {
    Work();
    int64_t batches = 0, tokens = 0;
    double sum_squares = 0, busy_seconds = 0;
    ValueCounts batch_tokens, batch_sequences, batch_fill, prediction_error;
    void count_batch(const batch::PackedBatch& batch, int64_t most_tokens, double busy);
    void count_prediction(double predicted, double measured);  // seconds of a batch
  } work;
  std::atomic<int64_t> graph_batches{0}, padding_tokens{0};
  std::atomic<int64_t> not_finite_texts{0};  // see Engine::check_finite

 private:
  void make_runners(const model::Model& model);
  void capture(const std::function<void()>& between);
  void warm_up(const std::function<void()>& between);

  const std::filesystem::path dir_, tagger_;
  const std::string facts_;
  const model::ModelShape shape_;
  const plan::Plan plan_;
  const std::vector<model::ForwardPlan> forward_plans_;
  DeviceQueue& queue_;
  const int64_t named_from_;
  const int64_t one_batch_;
  bool wants_small_ = false;
  // For worth(): under the scheduler's lock, as those are.
  double recent_texts_ = 0;
  int64_t recent_ns_ = 0;
  std::atomic<int64_t> loads_{0}, load_ns_{0}, weight_bytes_{0};
  std::atomic<Residence> residence_{Residence::disk};
  memory::PlannedMemory memory_;                                // before what draws from it
  std::unique_ptr<model::Model> model_;                         // null: on disk
  std::vector<std::unique_ptr<model::ForwardRunner>> runners_;  // of each pass
  std::vector<std::unique_ptr<SmallBatches>> small_;
};

}  // namespace brim::engine
