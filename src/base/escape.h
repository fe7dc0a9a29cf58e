// SPDX-License-Identifier: Apache-2.0
// Escapes text from files and clients for display in a terminal.
#pragma once
#include <string>
#include <string_view>

namespace brim {

// Control characters except newline and tab (including ESC, CR, DEL and C1), bidirectional overrides and ill-formed
// UTF-8 become \x1b, \u009b, \u202e, \xff.
std::string escape_controls(std::string_view text);

}  // namespace brim
