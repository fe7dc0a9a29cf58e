// SPDX-License-Identifier: Apache-2.0
// Manual pages generated from commands and flags: brim(1) and one per command, like brim-score(1). Contains no page
// text of its own.
#pragma once
#include <string>

namespace CLI {
class App;
}

namespace brim::cli {

// `verb`: null for the main page.
std::string man_page(const CLI::App& program, const CLI::App* verb);

}  // namespace brim::cli
