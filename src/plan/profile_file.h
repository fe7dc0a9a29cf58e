// SPDX-License-Identifier: Apache-2.0
// The cached file of a measured device profile. Does not include the JSON library.
#pragma once
#include <optional>
#include <string>

#include "plan/device_profile.h"

namespace brim::plan {

std::string profile_file_text(const DeviceProfile& profile);
// nullopt for a newer format; throws bad_data for anything that is not a profile.
std::optional<DeviceProfile> read_profile_file(const std::string& text);

}  // namespace brim::plan
