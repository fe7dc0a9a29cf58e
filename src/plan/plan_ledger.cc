// SPDX-License-Identifier: Apache-2.0
// Converts plans to ledger reservations and plans several models under one limit.
#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/units.h"
#include "plan/plan.h"

namespace brim::plan {
namespace {

constexpr std::array kShared = {kForwardPass, kBatchesInFlight, kLoading};

std::vector<memory::LedgerEntry> parts_of(const Plan& plan, std::string_view owner) {
  std::vector<memory::LedgerEntry> parts;
  for (const memory::LedgerEntry& part : plan.parts)
    if (part.owner == owner) parts.push_back(part);
  return parts;
}

bool is_base(const memory::LedgerEntry& part) { return part.owner.starts_with(kBaseWeights); }

// The weights of all base models, each once.
std::vector<memory::LedgerEntry> base_parts_of(const std::vector<const Plan*>& plans) {
  std::vector<memory::LedgerEntry> all;
  for (const Plan* plan : plans)
    for (const memory::LedgerEntry& part : plan->base_parts())
      if (std::find(all.begin(), all.end(), part) == all.end()) all.push_back(part);
  return all;
}

}  // namespace

using memory::LedgerEntry;

LedgerEntry context_entry(const DeviceProfile& device) {
  return {memory::Tag::context, device.kind == device::DeviceKind::cpu ? "program" : "driver and libraries",
          device.context_bytes};
}

void Plan::add(memory::Tag tag, const std::string& owner, int64_t more) {
  if (more == 0) return;
  const auto part =
      std::find_if(parts.begin(), parts.end(), [&](const auto& p) { return p.tag == tag && p.owner == owner; });
  if (part != parts.end())
    part->bytes += more;
  else
    parts.push_back({tag, owner, more});
  bytes[tag] += more;
  peak_bytes += more;
}

void Plan::add(const memory::TagBytes& more, const std::string& owner) {
  for (int t = 0; t < memory::kTagCount; ++t)
    add(static_cast<memory::Tag>(t), owner, more[static_cast<memory::Tag>(t)]);
}

std::vector<memory::LedgerEntry> Plan::own_parts() const {
  std::vector<memory::LedgerEntry> own;
  for (const memory::LedgerEntry& part : parts)
    if (std::find(kShared.begin(), kShared.end(), part.owner) == kShared.end() && !is_base(part)) own.push_back(part);
  return own;
}

std::vector<memory::LedgerEntry> Plan::base_parts() const {
  std::vector<memory::LedgerEntry> base;
  std::copy_if(parts.begin(), parts.end(), std::back_inserter(base), is_base);
  return base;
}

std::vector<memory::LedgerEntry> Plan::ledger() const {
  std::vector<memory::LedgerEntry> all = parts;
  if (device.context_bytes > 0) all.push_back(context_entry(device));
  return all;
}

void hold_context(memory::Ledger& ledger, const DeviceProfile& device) {
  ledger.hold_context(context_entry(device).owner, device.context_bytes, device.rounding_bytes());
}

memory::PlannedMemory reserve(memory::Ledger& ledger, const Plan& plan, const std::string& name) {
  hold_context(ledger, plan.device);
  return ledger.reserve(name, plan.parts);
}

std::vector<LedgerEntry> ledger_of(const std::vector<const Plan*>& plans, const std::vector<std::string>& names) {
  std::vector<LedgerEntry> all;
  LedgerEntry context;
  for (size_t i = 0; i < plans.size(); ++i) {
    if (plans[i]->device.context_bytes > context.bytes) context = context_entry(plans[i]->device);
    for (memory::LedgerEntry part : plans[i]->own_parts()) {
      if (!names[i].empty()) part.owner = names[i] + ": " + part.owner;
      all.push_back(std::move(part));
    }
  }
  for (memory::LedgerEntry& part : base_parts_of(plans)) all.push_back(std::move(part));
  for (const char* owner : kShared) {
    const auto most = std::max_element(plans.begin(), plans.end(), [&](const Plan* a, const Plan* b) {
      return total_bytes(parts_of(*a, owner)) < total_bytes(parts_of(*b, owner));
    });
    if (most == plans.end()) continue;
    for (memory::LedgerEntry& part : parts_of(**most, owner)) all.push_back(std::move(part));
  }
  if (context.bytes > 0) all.push_back(context);
  return all;
}

namespace {

// Each model may use the memory left by the own bytes of the models resident with it.
std::vector<Plan> solve_together(const std::vector<PlanRequest>& requests, int64_t limit_bytes, Residency residency) {
  std::vector<PlanRequest> all = requests;
  int64_t context = 0;
  for (const PlanRequest& r : all) context = std::max(context, r.device.context_bytes);
  // The context includes rounding for the blocks of one model only.
  std::set<std::string> bases_in_use;
  for (const PlanRequest& r : all)
    if (!r.base.empty()) bases_in_use.insert(r.base);
  const auto more_blocks = static_cast<int64_t>(all.size() - 1 + bases_in_use.size());
  const int64_t limit = limit_bytes - more_blocks * all[0].device.rounding_bytes();
  std::vector<int64_t> own;
  std::vector<Plan> each;
  // The largest staging and the largest arena may belong to different models, and a model may load while the arena
  // exists.
  int64_t apart = 0;
  for (PlanRequest& r : all) {
    r.device.context_bytes = context;
    r.limit_bytes = limit;
    const Plan& alone = each.emplace_back(solve(r));
    own.push_back(total_bytes(alone.own_parts()));
    apart = std::max(apart, total_bytes(parts_of(alone, kBatchesInFlight)) + r.load_bytes);
  }
  const int64_t resident = residency == Residency::all ? std::accumulate(own.begin(), own.end(), int64_t{0})
                                                       : *std::max_element(own.begin(), own.end());
  std::vector<const Plan*> alone;
  for (const Plan& plan : each) alone.push_back(&plan);
  const int64_t bases = residency == Residency::all ? total_bytes(base_parts_of(alone)) : 0;
  std::vector<Plan> plans;
  for (size_t i = 0; i < all.size(); ++i) {
    // Its own part of the base models is in its own plan.
    const int64_t others = bases - (residency == Residency::all ? total_bytes(each[i].base_parts()) : 0);
    all[i].limit_bytes = limit - (resident - own[i]) - others - apart;
    plans.push_back(solve(all[i]));
    plans.back().limit_bytes = limit_bytes;
  }
  return plans;
}

bool fit(const std::vector<PlanRequest>& requests, int64_t limit_bytes) {
  try {
    solve_together(requests, limit_bytes, Residency::all);
    return true;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::does_not_fit) throw;
    return false;
  }
}

int64_t least_together(const std::vector<PlanRequest>& requests, int64_t too_little) {
  int64_t enough = too_little;
  do enough *= 2;
  while (!fit(requests, enough));
  while (enough - too_little > int64_t{1} << 20) {
    const int64_t middle = too_little + (enough - too_little) / 2;
    (fit(requests, middle) ? enough : too_little) = middle;
  }
  return enough;
}

}  // namespace

TurnPlans solve_turns(const std::vector<PlanRequest>& requests, Residency residency) {
  if (requests.size() == 1) return {{solve(requests[0])}, true};
  const int64_t limit = requests[0].limit_bytes;
  try {
    return {solve_together(requests, limit, Residency::all), true};
  } catch (const Error& e) {
    if (e.code() != ErrorCode::does_not_fit) throw;
    if (residency == Residency::in_turn) return {solve_together(requests, limit, Residency::in_turn), false};
  }
  const int64_t least = least_together(requests, limit);
  fail(ErrorCode::does_not_fit, "{} models do not fit in {} on {}: they need at least {}; set {} or load fewer models",
       requests.size(), format_bytes(limit), requests[0].device.name, format_bytes(least),
       requests[0].limit_origin.setting(least));
}

int64_t planned_bytes(const std::vector<const Plan*>& plans) {
  return total_bytes(ledger_of(plans, std::vector<std::string>(plans.size())));
}

std::vector<ResidentSet> resident_sets(const std::vector<Plan>& plans, int64_t limit_bytes) {
  std::vector<const Plan*> all;
  std::vector<int64_t> own;
  for (const Plan& plan : plans) {
    all.push_back(&plan);
    own.push_back(total_bytes(plan.own_parts()));
  }
  // Batches are sized for the largest model regardless of which are resident, and the blocks of each further model are
  // rounded up.
  int64_t shared = planned_bytes(all) - std::accumulate(own.begin(), own.end(), int64_t{0});
  if (!plans.empty()) {
    const int64_t rounding = plans[0].device.rounding_bytes();
    shared -= rounding;
    for (int64_t& bytes : own) bytes += rounding;
  }
  std::vector<ResidentSet> sets;
  if (plans.size() > kListedResidents) {  // smallest first
    std::vector<size_t> places(plans.size());
    std::iota(places.begin(), places.end(), size_t{0});
    std::stable_sort(places.begin(), places.end(), [&](size_t a, size_t b) { return own[a] < own[b]; });
    ResidentSet most{{}, shared};
    for (const size_t m : places) {
      if (most.bytes + own[m] > limit_bytes) break;
      most.models.push_back(m);
      most.bytes += own[m];
    }
    std::sort(most.models.begin(), most.models.end());
    return {most};
  }
  for (uint32_t members = (1U << plans.size()) - 1; members > 0; --members) {
    ResidentSet set{{}, shared};
    int64_t smallest = std::numeric_limits<int64_t>::max();  // among models not in the set
    for (size_t m = 0; m < plans.size(); ++m)
      if ((members >> m & 1U) != 0) {
        set.models.push_back(m);
        set.bytes += own[m];
      } else {
        smallest = std::min(smallest, own[m]);
      }
    if (set.bytes <= limit_bytes && smallest > limit_bytes - set.bytes) sets.push_back(std::move(set));
  }
  std::sort(sets.begin(), sets.end(), [](const ResidentSet& a, const ResidentSet& b) { return a.models < b.models; });
  return sets;
}

}  // namespace brim::plan
