// SPDX-License-Identifier: Apache-2.0
// A plan: what will run, in what pieces, in how many bytes, computed before the first kernel. A pure function of the
// request; a small value that is printed, stored in checkpoints and compared.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "memory/tag.h"
#include "model/forward_runner.h"
#include "model/shape.h"
#include "model/train_runner.h"

namespace brim {

// What the planner must know of a device; measured once and cached, or taken from the table of cards.
struct DeviceProfile {
  std::string name;                 // "h200", "cpu"
  DeviceKind kind = DeviceKind::cpu;
  Isa isa = Isa::generic;           // cpu
  int threads = 1;                  // cpu
  int compute_capability = 0;       // cuda: 90 for sm_90
  int64_t total_bytes = 0;
  double tflops_fp32 = 0, tflops_tf32 = 0, tflops_half = 0, tflops_fp8 = 0, tops_int8 = 0;  // attained by a large product; 0: not there
  double bandwidth = 0;             // bytes/s, copy, read plus written
  int64_t context_bytes = 0;        // what the process holds on the device before the first allocation of ours
  bool measured = false;
  double rate(Precision precision) const;  // flop/s
};

// How many bytes the process may hold on the device, everything included.
struct MemoryLimit {
  // "6GiB", "90%", "auto". Percent is of the device's total; auto leaves what others use, and a reserve, alone.
  static int64_t resolve(const std::string& text, MemoryInfo memory);
};

enum class Task : uint8_t { score, train };

struct PlanRequest {
  ModelShape shape;
  Task task = Task::score;
  DeviceProfile device;
  int64_t limit_bytes = 0;
  int64_t max_length = 0;          // longest sequence, special tokens included
  Output output = Output::sequence_scores;
  Precision precision = Precision::fp32;
  bool tables_in_slab = true;      // whether embedding tables count (on the CPU they stay mapped)
  bool fill = false;               // take all the limit allows, not only what speed needs
  // Training only:
  Optimizer optimizer = Optimizer::adamw;
  std::optional<Recompute> recompute;       // empty: the planner chooses
  int64_t global_batch_tokens = 0;          // tokens one optimizer step sees; 0: as many as are useful
  int64_t token_budget = 0;                 // above 0: this micro-batch and no other (a resumed run)
};

struct Plan {
  Task task = Task::score;
  DeviceProfile device;
  Precision precision = Precision::fp32;
  Output output = Output::sequence_scores;
  int64_t limit_bytes = 0, peak_bytes = 0;
  TagBytes bytes;                  // sums to peak_bytes
  int64_t token_budget = 0, max_sequences = 0, max_length = 0;
  int staging_depth = 0;           // batches in flight
  Recompute recompute = Recompute::none;
  Optimizer optimizer = Optimizer::adamw;
  int64_t accumulation_steps = 1;  // micro-batches an optimizer step is made of
  double tokens_per_second = 0;    // predicted
  BatchLimits limits() const { return {token_budget, max_sequences, max_length}; }
};

// Throws does_not_fit with the table by tag and the smallest limit that would do.
Plan solve(const PlanRequest& request);

}  // namespace brim
