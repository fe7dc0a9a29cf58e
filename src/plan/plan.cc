// SPDX-License-Identifier: Apache-2.0
#include "plan/plan.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/units.h"
#include "model/weights.h"

namespace brim {

double DeviceProfile::rate(Precision precision) const {
  switch (precision) {
    case Precision::fp32: return tflops_fp32 * 1e12;
    case Precision::tf32: return tflops_tf32 * 1e12;
    case Precision::bf16: case Precision::fp16: return tflops_half * 1e12;
    case Precision::fp8: return tflops_fp8 * 1e12;
    case Precision::int8: return tops_int8 * 1e12;
  }
  return 0;
}

namespace {

constexpr int kTrainStagingSlots = 3;

Plan start(const PlanRequest& r) {
  Plan plan;
  plan.task = r.task, plan.device = r.device, plan.precision = r.precision, plan.output = r.output;
  plan.limit_bytes = r.limit_bytes, plan.max_length = r.max_length, plan.optimizer = r.optimizer;
  return plan;
}

[[noreturn]] void does_not_fit(const PlanRequest& r, const Plan& smallest) {
  std::string table;
  Tag largest = Tag::weights;
  for (int t = 0; t < kTagCount; ++t) {
    const auto tag = static_cast<Tag>(t);
    if (smallest.bytes[tag] == 0) continue;
    table += fmt::format("\n  {:<12} {:>12}", tag_name(tag), format_bytes(smallest.bytes[tag]));
    if (smallest.bytes[tag] > smallest.bytes[largest]) largest = tag;
  }
  fail(ErrorCode::does_not_fit, "no plan under {}: the smallest, one sequence of {} tokens at a time, needs{}\n  {:<12} {:>12}\nmost of it is {}; --memory-limit {} would do{}",
       format_bytes(r.limit_bytes), r.max_length, table, "in all", format_bytes(smallest.peak_bytes), tag_name(largest),
       format_bytes(smallest.peak_bytes + (int64_t{1} << 20)), r.max_length > 64 ? ", or a smaller --max-length" : "");
}

Plan solve_scoring(const PlanRequest& r) {
  Plan plan = start(r);
  const int64_t weights = layout_weights(r.shape, r.precision, r.device.kind, r.device.isa, r.tables_in_slab, nullptr).bytes;
  const bool cpu = r.device.kind == DeviceKind::cpu;
  plan.staging_depth = cpu ? 1 : 3;
  auto try_budget = [&](int64_t tokens) {
    plan.token_budget = tokens;
    plan.max_sequences = std::max<int64_t>(1, tokens / 4);
    const ForwardPlan f = plan_forward(r.shape, r.precision, r.device.kind, r.device.isa, r.device.threads, plan.limits(), r.output);
    plan.bytes = f.arena_tags();
    plan.bytes[Tag::weights] += weights;
    plan.bytes[Tag::context] += r.device.context_bytes;
    if (!cpu) plan.bytes[Tag::staging] += plan.staging_depth * align_up((4 * tokens + 1024) * 4);
    plan.peak_bytes = plan.bytes.total();
    return plan.peak_bytes <= r.limit_bytes;
  };
  const int64_t most = cpu ? 4096 * r.device.threads : 65536;
  int64_t tokens = std::max(most, r.max_length);
  while (tokens > r.max_length && !try_budget(tokens)) tokens = std::max(r.max_length, tokens / 2);
  if (!try_budget(tokens)) does_not_fit(r, plan);
  return plan;
}

// Micro-batches of useful size first with everything kept, then with more and more recomputed; 8-bit moments are the
// user's choice, never ours.
Plan solve_training(const PlanRequest& r) {
  const bool cpu = r.device.kind == DeviceKind::cpu;
  const TagBytes state = train_state_bytes(r.shape, r.precision, r.optimizer, r.device.kind, r.device.isa);
  const int64_t useful = cpu ? 2048 * r.device.threads : 65536, enough = cpu ? 512 : 16384;
  const int64_t wanted = std::max(r.max_length, r.global_batch_tokens > 0 && !r.fill ? std::min(useful, r.global_batch_tokens) : useful);
  auto make = [&](Recompute level, int64_t tokens) {
    Plan plan = start(r);
    plan.recompute = level;
    plan.token_budget = tokens;
    plan.max_sequences = std::max<int64_t>(1, tokens / 4);
    plan.staging_depth = kTrainStagingSlots;
    const TrainPassPlan pass = plan_train_pass(r.shape, r.precision, level, r.device.kind, r.device.isa, r.device.threads, plan.limits());
    plan.bytes = pass.placement.at_peak;
    for (int t = 0; t < kTagCount; ++t) plan.bytes.bytes[static_cast<size_t>(t)] += state.bytes[static_cast<size_t>(t)];
    plan.bytes[Tag::context] += r.device.context_bytes;
    if (!cpu) plan.bytes[Tag::staging] += plan.staging_depth * align_up((8 * tokens + 4096) * 4);
    plan.peak_bytes = plan.bytes.total();
    if (r.global_batch_tokens > 0) plan.accumulation_steps = std::max<int64_t>(1, (r.global_batch_tokens + tokens - 1) / tokens);
    return plan;
  };
  Plan best, last;
  for (const Recompute level : {Recompute::none, Recompute::selective, Recompute::full}) {
    if (r.recompute && *r.recompute != level) continue;
    if (r.token_budget > 0) {
      last = make(level, r.token_budget);
      if (last.peak_bytes <= r.limit_bytes) return last;
      continue;
    }
    int64_t tokens = wanted;
    last = make(level, tokens);
    while (tokens > r.max_length && last.peak_bytes > r.limit_bytes) {
      tokens = std::max(r.max_length, tokens * 3 / 4);
      last = make(level, tokens);
    }
    if (last.peak_bytes > r.limit_bytes) continue;
    if (tokens >= std::min(wanted, enough)) return last;
    if (best.token_budget < tokens) best = last;
  }
  if (best.token_budget > 0) return best;
  does_not_fit(r, last);
}

}  // namespace

Plan solve(const PlanRequest& r) { return r.task == Task::train ? solve_training(r) : solve_scoring(r); }

int64_t MemoryLimit::resolve(const std::string& text, MemoryInfo memory) {
  if (text == "auto") return memory.free_bytes - memory.free_bytes / 20;
  if (!text.empty() && text.back() == '%') {
    char* end = nullptr;
    const double percent = std::strtod(text.c_str(), &end);
    if (end != text.c_str() + text.size() - 1 || !(percent > 0) || percent > 100)
      fail(ErrorCode::usage, "--memory-limit {}: a percentage is above 0 and at most 100", text);
    return static_cast<int64_t>(static_cast<double>(memory.total_bytes) * percent / 100);
  }
  const auto bytes = parse_bytes(text);
  if (!bytes) fail(ErrorCode::usage, "--memory-limit {}: give bytes (6GiB, 512MiB), a percentage (90%) or auto", text);
  if (*bytes <= 0) fail(ErrorCode::usage, "--memory-limit {}: must be above zero", text);
  return *bytes;
}

}  // namespace brim
