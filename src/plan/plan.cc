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

Plan solve(const PlanRequest& r) {
  Plan plan;
  plan.task = r.task, plan.device = r.device, plan.precision = r.precision, plan.output = r.output;
  plan.limit_bytes = r.limit_bytes, plan.max_length = r.max_length;
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
    if (!cpu) plan.bytes[Tag::staging] += plan.staging_depth * align_up((4 * tokens + 16) * 4);
    plan.peak_bytes = plan.bytes.total();
    return plan.peak_bytes <= r.limit_bytes;
  };
  const int64_t most = cpu ? 4096 * r.device.threads : 65536;
  int64_t tokens = std::max(most, r.max_length);
  while (tokens > r.max_length && !try_budget(tokens)) tokens = std::max(r.max_length, tokens / 2);
  if (!try_budget(tokens))
    fail(ErrorCode::does_not_fit, "no plan under {}: one sequence of {} tokens needs {}", format_bytes(r.limit_bytes), r.max_length,
         format_bytes(plan.peak_bytes));
  return plan;
}

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
