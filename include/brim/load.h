// SPDX-License-Identifier: Apache-2.0
// Memory, load and work of an open model, for planning, admission and metrics. Uses standard types only.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "brim/error.h"

namespace brim {

// Planned memory of a scorer, known before its first batch. Bytes by purpose sum to `peak_bytes`.
struct MemoryPlan {
  int64_t limit_bytes = 0, peak_bytes = 0;
  int64_t shared_bytes = 0;  // part of the peak that models on one device share
  std::vector<std::pair<std::string, int64_t>> bytes;
  int64_t tokens_per_batch = 0, tokens_per_interactive_batch = 0;
  double tokens_per_second = 0;  // predicted
};

// Current load of submitted texts. The rate is planned at first, and measured once batches have been computed.
struct ScorerLoad {
  int64_t texts = 0, tokens = 0;
  int64_t bulk_tokens = 0;       // part of `tokens` in bulk texts
  double tokens_per_second = 0;  // 0 if texts never wait
  double wait_seconds = 0;       // predicted time until all waiting texts are done
  bool lost = false;             // the device failed: nothing is computed any more
  int64_t not_finite_texts = 0;  // failures since open() because of NaN or infinite outputs
  // Elapsed and predicted time of the batch the device is computing, for any model, submitted or from score(). 0 if
  // none.
  double batch_seconds = 0, batch_predicted_seconds = 0;
};

// Predicted wait of one client's texts if submitted now: for running batches, its own waiting texts, and the texts of
// other clients that precede them by turns.
struct ClientWait {
  int64_t own_tokens = 0;  // its tokens already waiting
  double begin_seconds = 0, end_seconds = 0;
};

// Histogram.
struct ValueCounts {
  std::span<const double> bounds;  // ascending; static lifetime
  // Values up to each bound and above the previous one; the last counts values above all bounds.
  std::vector<int64_t> counts;
  double sum = 0;  // sum of the values
};

// Work of a model since it was opened. Models on one device take turns, so their busy seconds add up to the device's.
struct ScorerWork {
  int64_t batches = 0, graph_batches = 0;  // on a GPU, small batches run as graphs
  int64_t tokens = 0;
  int64_t padding_tokens = 0;   // computed in addition, if graphs are larger than their batches
  double busy_seconds = 0;      // device time
  double flops = 0;             // model FLOPs for those tokens
  double flops_per_second = 0;  // matrix throughput of the device; 0 if unknown
  // Per batch: its size, and its tokens as a fraction of its capacity.
  ValueCounts batch_tokens, batch_sequences, batch_fill;
  // |predicted − measured| ÷ measured time, for batches of submitted texts.
  ValueCounts prediction_error;
  int64_t cache_hits = 0, cache_misses = 0;  // texts by whether ScorerOptions::cache_bytes had their result
  int64_t loads = 0;                         // number of loads to the device, and their total time
  double load_seconds = 0;
  // Idle time of the device by cause: no work, packing texts, delivering results, loading and unloading models. One
  // value for all models of a queue.
  struct Idle {
    double no_work = 0, pack = 0, collect = 0, switching = 0;
  } idle;
  uint64_t queue = 0;  // id of that queue
};

// Location of a model's weights: on its device, in host memory ready for use, or only in files.
enum class Residence : uint8_t { resident, parked, disk };

// An open model on a device that it may share with others (brim/pool.h). Thread-safe.
class BRIM_API PooledModel {
 public:
  virtual ~PooledModel();
  virtual MemoryPlan plan() const = 0;
  virtual ScorerLoad load() const = 0;
  // Predicted wait for `tokens` more of Request::client; `bulk` and `deadline` as in Request.
  virtual ClientWait wait_of(uint64_t client, int64_t tokens, bool bulk = false,
                             std::optional<std::chrono::steady_clock::time_point> deadline = {}) const;
  virtual ScorerWork work() const;  // empty for rules

  // park() releases the model's device memory between two batches; the next text or load_weights() loads it again.
  virtual Residence residence() const;  // resident for rules
  virtual void park();
  virtual void load_weights();  // throws if the files are invalid, or does_not_fit
  // When memory is short, models without work are unloaded first, then those with the lowest reload cost and request
  // rate per byte. With `keep` this model is never unloaded.
  virtual void keep_loaded(bool keep);
  // Releases the device if none of its models is resident or has work: GPU context, CPU threads and parked weights. The
  // next text reopens it, and fails with does_not_fit if other processes hold the memory by then.
  virtual bool close_device();  // whether it is closed now; false for rules
};

}  // namespace brim
