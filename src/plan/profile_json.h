// SPDX-License-Identifier: Apache-2.0
// A device profile as a JSON value, shared by device_profile.cc and plan_json.cc; included by .cc files only.
#pragma once
#include <nlohmann/json.hpp>

#include "plan/device_profile.h"

namespace brim {

nlohmann::ordered_json profile_to_json(const DeviceProfile& profile);
DeviceProfile profile_of_json(const nlohmann::ordered_json& json);

}  // namespace brim
