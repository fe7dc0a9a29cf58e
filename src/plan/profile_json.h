// SPDX-License-Identifier: Apache-2.0
// JSON conversion of parts of a plan, shared by several writers. Included by .cc files only.
#pragma once
#include <nlohmann/json.hpp>

#include "memory/ledger.h"
#include "plan/device_profile.h"

namespace brim::plan {

nlohmann::ordered_json profile_to_json(const DeviceProfile& profile);
DeviceProfile profile_of_json(const nlohmann::ordered_json& json);
nlohmann::ordered_json ledger_json(const std::vector<memory::LedgerEntry>& entries);

}  // namespace brim::plan
