// SPDX-License-Identifier: Apache-2.0
// Common flags of each command by help group, in the order of help. All other flags are advanced.
#pragma once
#include <span>
#include <string_view>

namespace brim::cli {

struct HelpGroup {
  const char* title = nullptr;
  const char* flags = nullptr;  // names separated by spaces; those that some builds lack end with ?
};

// Groups of a command such as "score" or "forecast train"; empty if all of its flags are in one group.
std::span<const HelpGroup> help_groups(std::string_view command);

}  // namespace brim::cli
