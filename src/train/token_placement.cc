// SPDX-License-Identifier: Apache-2.0
#include "base/env.h"
#include "base/error.h"
#include "base/units.h"
#include "model/staging.h"
#include "monitor/host.h"
#include "train/job.h"

namespace brim::train {
namespace {

// Uses at most half of the free memory; the rest is left for the system and other processes.
bool fits_in_host_memory(int64_t bytes) {
  const auto available = monitor::HostSampler().sample().memory_available_bytes;
  return available && bytes <= *available / 2;
}

// Additional memory for a resident token set: the ids, and the row offsets in each staging slot. A CPU otherwise has no
// slots.
memory::TagBytes resident_bytes(const TrainJob& job) {
  memory::TagBytes bytes;
  const int64_t depth = job.plan.staging_depth;
  bytes[memory::Tag::token_set] = memory::align_up(static_cast<int64_t>(job.train_set.ids.size_bytes())) +
                                  depth * staged_offsets_bytes(job.plan.limits());
  if (job.device->kind() == device::DeviceKind::cpu)
    bytes[memory::Tag::staging] = depth * staged_micro_batch_bytes(job.shape, job.plan.limits(), !job.teachers.empty());
  return bytes;
}

}  // namespace

const char* token_placement_name(TokenPlacement placement) {
  constexpr const char* names[] = {"resident", "staged", "streamed"};
  return names[static_cast<int>(placement)];
}

std::string token_placement_text(const TrainJob& job) {
  const std::string bytes = format_bytes(job.train_set.bytes()),
                    ids = format_bytes(static_cast<int64_t>(job.train_set.ids.size_bytes()));
  const bool cpu = job.device->kind() == device::DeviceKind::cpu;
  if (job.token_placement == TokenPlacement::resident) return fmt::format("tokens resident on the device ({})", ids);
  if (job.token_placement == TokenPlacement::streamed)
    return fmt::format("tokens streamed from the cache in {} ({})", (cache_dir() / "tokens").string(), bytes);
  return cpu ? fmt::format("tokens in host memory ({})", bytes)
             : fmt::format("tokens in host memory ({}), staged ahead", bytes);
}

void place_token_set(TrainJob& job) {
  const std::optional<TokenPlacement> requested = job.settings.token_set;
  const bool cpu = job.device->kind() == device::DeviceKind::cpu, free = !requested;
  plan::Plan& plan = job.plan;
  const memory::TagBytes more = resident_bytes(job);
  const int64_t available = plan.limit_bytes - plan.peak_bytes;
  if (requested == TokenPlacement::resident && more.total() > available)
    fail(ErrorCode::does_not_fit, Remedy{"set `token_set=staged`, which needs no device memory"},
         "`token_set=resident`: the tokens need {}, the plan leaves {} of {}", format_bytes(more.total()),
         format_bytes(available), format_bytes(plan.limit_bytes));
  if (requested == TokenPlacement::streamed && !job.train_set.mapped)
    fail(ErrorCode::cannot_write, "`token_set=streamed`: the tokens could not be cached, see the warning above");
  if (requested == TokenPlacement::resident || (free && !cpu && more.total() <= available)) {
    job.token_placement = TokenPlacement::resident;
    plan.add(more, "training tokens");
    job.memory.change(plan.parts);
    plan.why.push_back(
        fmt::format("the token set is resident: {} in addition to the plan", format_bytes(more.total())));
  } else if (requested == TokenPlacement::staged || !job.train_set.mapped ||
             (free && !cpu && fits_in_host_memory(job.train_set.bytes()))) {
    job.token_placement = TokenPlacement::staged;
    job.train_set = job.train_set.in_memory();
  } else {
    job.token_placement = TokenPlacement::streamed;
    job.train_set.mapped->expect_scattered_reads();
  }
}

}  // namespace brim::train
