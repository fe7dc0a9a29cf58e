// SPDX-License-Identifier: Apache-2.0
// One model on a device: weights, forward passes and graphs of small batches. Name and plan are constant; the weights
// are present only while the model is resident. Loaded and unloaded by the scheduler's thread; does not decide when.
#pragma once
#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "brim/brim.h"
#include "device/device.h"
#include "engine/base_weights.h"
#include "engine/small_batches.h"
#include "engine/word_head.h"
#include "hub/model_files.h"
#include "memory/ledger.h"
#include "model/forward_runner.h"
#include "model/weights.h"
#include "plan/plan.h"

namespace brim::engine {

class DeviceQueue;

// Fingerprint of the files of a model and, if set, of the tagger that provides its second head.
std::string facts_of(const hub::ModelFiles& files, const std::filesystem::path& tagger);

class ModelHost {
 public:
  // Loads nothing yet. `facts` is the fingerprint of the files (hub::model_facts) from which `shape` was read; `plan`
  // is the model's plan among the models that share `queue`. `forwards`: its passes, usually one. `tagger`: directory
  // that provides the second head, or empty. `one_batch`: if positive, the model will compute a single batch of about
  // this many tokens and warms up for that alone.
  ModelHost(hub::ModelFiles files, std::filesystem::path tagger, std::string facts, const model::ModelShape& shape,
            const plan::Plan& plan, std::vector<model::ForwardPlan> forwards, DeviceQueue& queue, int64_t one_batch = 0,
            AdapterOfBase adapter = {});
  ~ModelHost();

  const std::filesystem::path& dir() const { return files_.dir; }
  const model::ModelShape& shape() const { return shape_; }
  const plan::Plan& plan() const { return plan_; }
  int64_t width() const { return output_width(shape_, plan_.output); }
  int64_t own_bytes() const;     // bytes reserved by loading, excluding memory shared by the queue's models
  int64_t needed_bytes() const;  // the same, and the weights of its base if they are not loaded
  const BaseWeights* base() const { return adapter_.base.get(); }  // null if its weights are its own
  // Whether a batch may have texts of both: they are adapters of one base, and have equal heads except for the values.
  bool shares_batches_with(const ModelHost& other) const;

  Residence residence() const { return residence_.load(std::memory_order_relaxed); }  // any thread
  bool resident() const { return residence() == Residence::resident; }
  int64_t loads() const { return loads_.load(std::memory_order_relaxed); }
  double load_seconds() const { return static_cast<double>(load_ns_.load(std::memory_order_relaxed)) * 1e-9; }
  // Throws if the files are invalid, have changed, or do not fit (does_not_fit); nothing is held after an error.
  // `between` is called repeatedly during the load by the loading thread.
  void load(const std::function<void()>& between = {});
  // Requires that none of its batches is in flight. park() keeps the weights in host memory if that succeeds.
  void unload();
  void park();
  int64_t weight_bytes() const { return weight_bytes_; }  // size of parked weights; known after the first load
  // Eviction priority: expected reload cost per byte, from load time and recent requests (decaying over ten minutes).
  // The model with the lowest value is evicted first.
  double eviction_cost(int64_t now_ns) const;
  void note_texts(int64_t texts, int64_t now_ns);
  std::atomic<bool> kept{false};  // never evicted to free memory
  // A head that scores words after each pass; before the first load.
  void set_word_head(const WordHeadSpec& spec) { word_head_spec_ = spec; }
  // Captures graphs of small batches with each load from now on. No effect without CUDA, and with a head for words:
  // its ops depend on the texts.
  void want_small_batches();
  bool wants_small_batches() const { return wants_small_; }

  // Only while resident:
  model::ForwardRunner& forward(size_t pass) { return *runners_[pass]; }
  const model::Params& params() const { return model_->weights(); }
  WordHead* word_head() { return word_head_.get(); }  // null if it has none
  SmallBatches* small(size_t pass) { return pass < small_.size() ? small_[pass].get() : nullptr; }
  // Smaller batches do not identify the failing op: the overhead would exceed their run time.
  int64_t named_from() const { return named_from_; }
  uint64_t used = 0;  // scheduler's counter at the start of its last batch
  // Statistics of its batches; protected by the scheduler's lock, except for graphs.
  struct Work {
    Work();
    int64_t batches = 0, tokens = 0;
    int64_t shared_batches = 0;  // with texts of other adapters
    double sum_squares = 0, busy_seconds = 0;
    ValueCounts batch_tokens, batch_sequences, batch_fill, prediction_error;
    void count_batch(const batch::PackedBatch& batch, int64_t most_tokens, double busy);
    // Sequences [begin,end) of a batch, with their share of its time.
    void count_part(const batch::PackedBatch& batch, int64_t begin, int64_t end, int64_t most_tokens, double busy);
    void count_prediction(double predicted, double measured);  // seconds per batch
  } work;
  std::atomic<int64_t> graph_batches{0}, padding_tokens{0};
  std::atomic<int64_t> not_finite_texts{0};  // see Engine::check_finite

 private:
  void load_adapter(const std::function<void()>& between);
  void require_same_files() const;
  void make_runners(const model::Model& model);
  void capture(const std::function<void()>& between);
  void warm_up(const std::function<void()>& between);

  const hub::ModelFiles files_;
  const std::filesystem::path tagger_;
  const std::string facts_;
  const model::ModelShape shape_;
  const plan::Plan plan_;
  const std::vector<model::ForwardPlan> forward_plans_;
  DeviceQueue& queue_;
  const int64_t named_from_;
  const int64_t one_batch_;
  const AdapterOfBase adapter_;
  std::optional<WordHeadSpec> word_head_spec_;
  bool uses_base_ = false;  // holds its weights
  bool wants_small_ = false;
  // Used by eviction_cost(); protected by the scheduler's lock, like the above.
  double recent_texts_ = 0;
  int64_t recent_ns_ = 0;
  std::atomic<int64_t> loads_{0}, load_ns_{0}, weight_bytes_{0};
  std::atomic<Residence> residence_{Residence::disk};
  memory::PlannedMemory memory_;                                // declared before its users
  std::unique_ptr<model::Model> model_;                         // null if not loaded
  std::vector<std::unique_ptr<model::ForwardRunner>> runners_;  // one per pass
  std::unique_ptr<WordHead> word_head_;
  std::vector<std::unique_ptr<SmallBatches>> small_;
};

}  // namespace brim::engine
