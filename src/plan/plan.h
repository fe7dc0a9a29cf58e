// SPDX-License-Identifier: Apache-2.0
// A plan: what will run, in what pieces, in how many bytes, computed before the first kernel. A pure function of the
// request; a small value that is printed, stored in checkpoints and compared.
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

// Where a limit was written, for messages: by the caller, or in a file of settings.
struct LimitOrigin {
  std::string where;                                // "run.yaml:7"; empty: the caller's
  std::string key;                                  // "max_memory_gb" or "memory_limit"
  std::string value;                                // as written there
  std::string name(const std::string& text) const;  // "`memory_limit=6GiB`", "run.yaml:7: max_memory_gb: 12"
  std::string setting(int64_t bytes) const;         // what to write for at least that much: "`memory_limit=1477MiB`"
};

// How many bytes the process may hold on the device, everything included.
struct MemoryLimit {
  std::string text = "auto";  // as written
  int64_t bytes = 0;
  double percent = 0;            // both 0: auto
  std::string leave_free_text;   // as written
  int64_t leave_free_bytes = 0;  // of what is free at the start, auto leaves this much to others; a limit does not ask

  // "6GiB", "90%", "auto". Percent is of the device's total; auto leaves what others use, and a reserve, alone. A
  // number without a unit is a BadValue.
  static MemoryLimit read(std::string_view text);
  // The two halves, in any order: neither changes what the other said.
  void set_limit(std::string_view text);
  void set_leave_free(std::string_view text);  // "8GiB"; 0: nothing
  // More than `device` has is a usage error; does_not_fit where auto has to leave all that is free.
  int64_t on(device::MemoryInfo memory, const std::string& device = "the device", const LimitOrigin& origin = {}) const;
};

enum class Task : uint8_t { score, train };
const char* task_name(Task task);

// One of distillation's: it computes beside the model, under the same limit.
struct PlanTeacher {
  model::ModelShape shape;
  model::TableTypes tables;
};

struct PlanRequest {
  model::ModelShape shape;
  Task task = Task::score;
  DeviceProfile device;
  int64_t limit_bytes = 0;
  LimitOrigin limit_origin;
  int64_t max_length = 0;      // longest sequence, special tokens included
  int64_t typical_length = 0;  // for predicting speed; 0: max_length, at most 128
  model::Output output = model::Output::sequence_scores;
  ops::Precision precision = ops::Precision::fp32;
  model::TableTypes tables;
  // On the CPU the limit is for the whole process (add_host_memory):
  int64_t tokenizer_bytes = 0;  // and, in training, the token sets
  int64_t load_bytes = 0;       // held while the model is loaded, before there is an arena
  bool fill = false;            // take all the limit allows, not only what speed needs
  int64_t most_tokens = 0;      // above 0: the whole input has no more, so a larger batch is never filled
  // Training only:
  model::Optimizer optimizer = model::Optimizer::adamw;
  bool keep_optimizer = false;                // asked for by name: never exchanged for the 8-bit one
  std::optional<model::Recompute> recompute;  // empty: the planner chooses
  std::optional<model::Moments> moments;      // likewise
  std::vector<PlanTeacher> teachers;
  int64_t global_batch_tokens = 0;  // tokens one optimizer step sees; 0: as many as are useful
  int64_t token_budget = 0;         // above 0: this micro-batch and no other (a resumed run)
};

memory::LedgerEntry context_entry(const DeviceProfile& device);

// Owners of what models that take turns on a device share: the most that one of them needs is held once.
inline constexpr const char* kForwardPass = "forward pass";
inline constexpr const char* kBatchesInFlight = "batches in flight";
inline constexpr const char* kLoading = "loading";

struct Plan {
  Task task = Task::score;
  DeviceProfile device;
  ops::Precision precision = ops::Precision::fp32;
  model::Output output = model::Output::sequence_scores;
  int64_t limit_bytes = 0, peak_bytes = 0;
  std::vector<memory::LedgerEntry> parts;  // what it reserves for itself; the context is the device's, once for all
  memory::TagBytes bytes;                  // parts and context by tag; sums to peak_bytes
  int64_t token_budget = 0, max_sequences = 0, max_length = 0;
  int staging_depth = 0;  // batches in flight
  model::Recompute recompute = model::Recompute::none;
  model::Optimizer optimizer = model::Optimizer::adamw;
  bool moments_on_host = false;               // AdamW's moments pass over the bus each step
  int64_t accumulation_steps = 1;             // micro-batches an optimizer step is made of
  double tokens_per_second = 0;               // predicted, like step_seconds
  double step_seconds = 0;                    // one batch scored, or one optimizer step
  std::vector<ops::GemmChoice> gemm_choices;  // algorithms measured on this device; empty: the library's own choice
  std::vector<std::string> notes;             // what the user must hear: numbers change, a card cannot be run
  std::vector<std::string> why;               // the reason for each choice
  model::BatchLimits limits() const { return {token_budget, max_sequences, max_length}; }
  // To parts, bytes and peak_bytes; a part of that tag and owner grows, or shrinks with fewer than 0.
  void add(memory::Tag tag, const std::string& owner, int64_t bytes);
  void add(const memory::TagBytes& bytes, const std::string& owner);
  int64_t own_bytes() const { return peak_bytes - device.context_bytes; }  // the sum of its parts
  std::vector<memory::LedgerEntry> own_parts() const;  // those it shares with no model that takes turns with it
  std::vector<memory::LedgerEntry> ledger() const;     // the context and the parts: sums to peak_bytes
  bool operator==(const Plan& other) const;
};

// Among settings that keep the numbers, the one predicted fastest under the limit, in the least memory that gives 99 %
// of its speed. Throws does_not_fit with the table by tag, the smallest limit that would do and the nearest settings
// that fit. More limit never gives a slower plan.
Plan solve(const PlanRequest& request);

// What driver and libraries (on a CPU the program) hold, once for all models on the device.
void hold_context(memory::Ledger& ledger, const DeviceProfile& device);
// That, and the plan's parts, all or nothing; `name` says whose they are.
memory::PlannedMemory reserve(memory::Ledger& ledger, const Plan& plan, const std::string& name);
// What models that take turns on one device reserve together: the context and what they share once, their own parts
// under their names (one for each plan).
std::vector<memory::LedgerEntry> ledger_of(const std::vector<const Plan*>& plans,
                                           const std::vector<std::string>& names);

int64_t planned_bytes(const std::vector<const Plan*>& plans);  // the sum of that

// How many of the models that take turns on a device must fit: all at once, or at least each by itself, so that some go
// when another comes.
enum class Residency : uint8_t { all, in_turn };
struct TurnPlans {
  std::vector<Plan> plans;
  bool all_resident = true;
};
// Plans for models that take turns under one limit, the first request's: all of them at once where that fits.
TurnPlans solve_turns(const std::vector<PlanRequest>& requests, Residency residency);

// Which of them may be resident together: the sets that have no room for another one, as places in `plans`, beside
// what all share. Of more than kListedResidents models only the largest set.
constexpr size_t kListedResidents = 8;
struct ResidentSet {
  std::vector<size_t> models;
  int64_t bytes = 0;  // with what all share, the context and room for rounding blocks up
};
std::vector<ResidentSet> resident_sets(const std::vector<Plan>& plans, int64_t limit_bytes);

// What a request for the CPU must know of the model's files beside its shape. Does nothing for other devices.
void add_host_memory(PlanRequest& request, const std::filesystem::path& model_dir);

// The least bytes any plan with these settings needs: one sequence of max_length tokens at a time, all recomputed.
int64_t smallest_limit(const PlanRequest& request);
// The same where solve() may exchange the optimizer too: below it, solve() throws.
int64_t least_limit(const PlanRequest& request);

// Tokens from which a batch's ops take so long (50 us each) that naming each on its stream (Stream::name_ops) costs
// little.
int64_t named_from_tokens(const Plan& plan, int64_t layers);

std::string to_json(const Plan& plan);
Plan plan_from_json(std::string_view json);  // throws bad_data

}  // namespace brim::plan
