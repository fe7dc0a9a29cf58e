// SPDX-License-Identifier: Apache-2.0
// Text from files and clients as a terminal may show it.
#pragma once
#include <string>
#include <string_view>

namespace brim {

// Control characters except newline and tab (so ESC, CR, DEL and C1), bidirectional overrides and ill-formed UTF-8
// become \x1b, \u009b, \u202e, \xff.
std::string escape_controls(std::string_view text);

}  // namespace brim
