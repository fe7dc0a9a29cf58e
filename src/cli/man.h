// SPDX-License-Identifier: Apache-2.0
// Manual pages, read off the verbs and flags themselves: brim(1) and one per verb, brim-score(1).
#pragma once
#include <string>

namespace CLI {
class App;
}

namespace brim::cli {

// `verb`: null for the program's own page.
std::string man_page(const CLI::App& program, const CLI::App* verb);

}  // namespace brim::cli
