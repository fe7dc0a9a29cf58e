// SPDX-License-Identifier: Apache-2.0
// A plan: work, batch sizes and bytes, computed before the first kernel. It is a pure function of the request, and a
// small value that is printed, stored in checkpoints and compared. Nothing is allocated here.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "memory/ledger.h"
#include "memory/tag.h"
#include "model/forward_runner.h"
#include "model/shape.h"
#include "model/train_runner.h"
#include "model/weights.h"
#include "ops/gemm_tuner.h"
#include "plan/device_profile.h"

namespace brim::plan {

// Origin of a memory limit, for messages: the caller or a settings file.
struct LimitOrigin {
  std::string where;                                // "run.yaml:7"; empty if given by the caller
  std::string key;                                  // "max_memory_gb" or "memory_limit"
  std::string value;                                // as written
  std::string name(const std::string& text) const;  // "`memory_limit=6GiB`", "run.yaml:7: max_memory_gb: 12"
  std::string setting(int64_t bytes) const;         // how to set at least that much: "`memory_limit=1477MiB`"
};

// Bytes the process may hold on the device, everything included.
struct MemoryLimit {
  std::string text = "auto";  // as written
  int64_t bytes = 0;
  double percent = 0;            // both 0 for auto
  std::string leave_free_text;   // as written
  int64_t leave_free_bytes = 0;  // auto only: memory free at the start to leave to other processes

  // Parses "6GiB", "90%" or "auto". Percent is relative to the device's total; auto excludes memory in use and a
  // reserve. A number without a unit is a BadValue.
  static MemoryLimit read(std::string_view text);
  // Set the two parts independently, in any order.
  void set_limit(std::string_view text);
  void set_leave_free(std::string_view text);  // "8GiB"; 0 for none
  // Throws usage for more than `device` has, and does_not_fit if auto would have to leave all free memory.
  int64_t on(device::MemoryInfo memory, const std::string& device = "the device", const LimitOrigin& origin = {}) const;
};

enum class Task : uint8_t { score, train };
const char* task_name(Task task);

struct PlanRequest {
  model::ModelShape shape;
  Task task = Task::score;
  DeviceProfile device;
  int64_t limit_bytes = 0;
  LimitOrigin limit_origin;
  int64_t max_length = 0;      // longest sequence, including special tokens
  int64_t typical_length = 0;  // for speed prediction; 0: max_length, at most 128
  model::Output output = model::Output::sequence_scores;
  ops::Precision precision = ops::Precision::fp32;
  model::TableTypes tables;
  // Scoring: name of a base model whose encoder weights this model uses together with others (kBaseWeights); empty: the
  // weights are its own. The adapter's products have these ranks.
  std::string base;
  model::AdapterRanks adapter_ranks;
  int64_t head_bytes = 0;         // a head that scores words, with its scores
  int64_t head_weight_bytes = 0;  // its weights, unless it runs on the host
  // CPU only, because the limit covers the whole process (add_host_memory):
  int64_t tokenizer_bytes = 0;  // in training, includes the token sets
  int64_t load_bytes = 0;       // needed while loading the model, before the arena exists
  bool fill = false;            // use the whole limit, not only what speed needs
  int64_t most_tokens = 0;      // above 0: total tokens of the input, an upper bound for a batch
  // Training only:
  model::Optimizer optimizer = model::Optimizer::adamw;
  bool keep_optimizer = false;                // explicitly requested: never replaced by the 8-bit one
  std::optional<model::Recompute> recompute;  // empty: chosen by the planner
  std::optional<model::Moments> moments;      // empty: chosen by the planner
  bool soft_labels = false;                   // distillation: a batch has a soft label per class
  int64_t global_batch_tokens = 0;            // tokens per optimizer step; 0: chosen by the planner
  int64_t token_budget = 0;                   // above 0: use exactly this micro-batch (a resumed run)
};

memory::LedgerEntry context_entry(const DeviceProfile& device);

// Owners of memory shared by models that alternate on a device: the largest requirement is reserved once.
inline constexpr const char* kForwardPass = "forward pass";
inline constexpr const char* kBatchesInFlight = "batches in flight";
inline constexpr const char* kLoading = "loading";
inline constexpr const char* kWordHead = "word head";  // a model's own
// Followed by the name of the base model: weights and tokenizer that several adapters use, reserved once.
inline constexpr const char* kBaseWeights = "encoder of ";

struct Plan {
  Task task = Task::score;
  DeviceProfile device;
  ops::Precision precision = ops::Precision::fp32;
  model::Output output = model::Output::sequence_scores;
  int64_t limit_bytes = 0, peak_bytes = 0;
  std::vector<memory::LedgerEntry> parts;  // its own reservations; the context is reserved once per device
  memory::TagBytes bytes;                  // parts and context by tag; sums to peak_bytes
  int64_t token_budget = 0, max_sequences = 0, max_length = 0;
  int staging_depth = 0;  // batches in flight
  model::Recompute recompute = model::Recompute::none;
  model::Optimizer optimizer = model::Optimizer::adamw;
  bool moments_on_host = false;               // AdamW moments cross the bus every step
  int64_t accumulation_steps = 1;             // micro-batches per optimizer step
  double tokens_per_second = 0;               // predicted, like step_seconds
  double step_seconds = 0;                    // per scored batch or optimizer step
  std::vector<ops::GemmChoice> gemm_choices;  // algorithms measured on this device; empty: library defaults
  std::vector<std::string> notes;             // for the user: results change, GPU not runnable
  std::vector<std::string> why;               // the reason for each choice
  model::BatchLimits limits() const { return {token_budget, max_sequences, max_length}; }
  // Adds to parts, bytes and peak_bytes. An existing part with that tag and owner grows, or shrinks if negative.
  void add(memory::Tag tag, const std::string& owner, int64_t bytes);
  void add(const memory::TagBytes& bytes, const std::string& owner);
  int64_t own_bytes() const { return peak_bytes - device.context_bytes; }  // sum of its parts
  std::vector<memory::LedgerEntry> own_parts() const;   // parts not shared with models that alternate with it
  std::vector<memory::LedgerEntry> base_parts() const;  // shared by the adapters of one base model
  std::vector<memory::LedgerEntry> ledger() const;      // context and parts; sums to peak_bytes
  bool operator==(const Plan& other) const;
};

// Returns the fastest predicted plan under the limit that does not change results, with the least memory that reaches
// 99 % of that speed. Throws does_not_fit with a table by tag, the smallest sufficient limit and the nearest settings
// that fit. A larger limit never gives a slower plan.
Plan solve(const PlanRequest& request);

// Reserves the memory of driver and libraries (on a CPU, of the program) once for all models on the device.
void hold_context(memory::Ledger& ledger, const DeviceProfile& device);
// Reserves the context and all parts of the plan, or nothing; `name` is the owner.
memory::PlannedMemory reserve(memory::Ledger& ledger, const Plan& plan, const std::string& name);
// Joint reservations of models that alternate on one device: context and shared parts once, own parts per model (one
// name per plan).
std::vector<memory::LedgerEntry> ledger_of(const std::vector<const Plan*>& plans,
                                           const std::vector<std::string>& names);

int64_t planned_bytes(const std::vector<const Plan*>& plans);  // sum of ledger_of()

// Whether all models that alternate on a device must fit at once, or at least each alone with others evicted on demand.
enum class Residency : uint8_t { all, in_turn };
struct TurnPlans {
  std::vector<Plan> plans;
  bool all_resident = true;
};
// Plans for models that alternate under one limit (that of the first request): all resident at once if that fits.
TurnPlans solve_turns(const std::vector<PlanRequest>& requests, Residency residency);

// Maximal sets of models that may be resident together, as indices into `plans`. With more than kListedResidents
// models, only the largest set.
constexpr size_t kListedResidents = 8;
struct ResidentSet {
  std::vector<size_t> models;
  int64_t bytes = 0;  // including shared parts, context and rounding of blocks
};
std::vector<ResidentSet> resident_sets(const std::vector<Plan>& plans, int64_t limit_bytes);

// Adds the host memory of the model's files to a CPU request. Does nothing for other devices.
void add_host_memory(PlanRequest& request, const hub::ModelFiles& files);

// Minimum bytes of any plan with these settings: one sequence of max_length tokens at a time, with full recomputation.
int64_t smallest_limit(const PlanRequest& request);
// Like smallest_limit, if solve() may also replace the optimizer. Below it, solve() throws.
int64_t least_limit(const PlanRequest& request);

// Batch size in tokens from which ops are so long (50 us each) that naming each on its stream (Stream::name_ops) costs
// little.
int64_t named_from_tokens(const Plan& plan, int64_t layers);

std::string to_json(const Plan& plan);
Plan plan_from_json(std::string_view json);  // throws bad_data

}  // namespace brim::plan
