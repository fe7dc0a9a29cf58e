// SPDX-License-Identifier: Apache-2.0
// The commands of this build and their settings tables. Commands themselves are declared in verb.h.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/settings.h"
#include "cli/verb.h"

namespace brim::cli {

std::span<const Verb> all_verbs();  // in the order of help

// Rows of the settings table of a command ("train", "forecast predict").
std::vector<SettingInfo> settings_of(const std::string& command);

// The setting most likely meant by `typed`, empty if none is close; nullopt if the command's table has no suggestions.
std::optional<std::string> nearest_setting(const std::string& command, const std::string& typed);

}  // namespace brim::cli
