// SPDX-License-Identifier: Apache-2.0
// A plan as a list of reservations.
#include <algorithm>

#include "plan/plan.h"

namespace brim::plan {

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

std::vector<LedgerEntry> Plan::ledger() const { return ledger_of({this}, {""}); }

void hold_context(memory::Ledger& ledger, const DeviceProfile& device) {
  ledger.hold_context(context_entry(device).owner, device.context_bytes, device.rounding_bytes());
}

int64_t limit_for(size_t models, int64_t limit_bytes, const DeviceProfile& device) {
  return limit_bytes - (static_cast<int64_t>(std::max<size_t>(1, models)) - 1) * device.rounding_bytes();
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
    for (LedgerEntry part : plans[i]->parts) {
      if (!names[i].empty()) part.owner = names[i] + ": " + part.owner;
      all.push_back(std::move(part));
    }
  }
  if (context.bytes > 0) all.push_back(context);
  return all;
}

int64_t planned_bytes(const std::vector<const Plan*>& plans) {
  return total_bytes(ledger_of(plans, std::vector<std::string>(plans.size())));
}

}  // namespace brim::plan
