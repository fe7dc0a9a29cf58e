// SPDX-License-Identifier: Apache-2.0
// A YAML file of a verb's own flags, for those who would rather keep a run in a file than in a shell's history:
//   model: [mood=models/default, people=runs/7/ner]
//   memory_limit: 6GiB
#pragma once
#include <string>

namespace CLI {
class App;
}

namespace brim::cli {

// Sets the flags and arguments of `verb` that neither the command line nor the environment gave. Keys are their names,
// with - or _. Throws usage, with file and line, for keys there are none of and values they do not take.
void apply_config(CLI::App& verb, const std::string& path);

}  // namespace brim::cli
