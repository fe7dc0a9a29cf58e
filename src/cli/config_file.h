// SPDX-License-Identifier: Apache-2.0
// YAML file with a command's own flags. Training settings and serve.yaml are read elsewhere. Example:
//   model: [mood=models/default, people=runs/7/ner]
//   memory_limit: 6GiB
#pragma once
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace brim::cli {

// Sets the flags and arguments of `verb` that are set neither on the command line nor in the environment. Keys are
// their names, with - or _. Throws usage with file and line for unknown keys and invalid values.
void apply_config(CLI::App& verb, const std::string& path);

// Explains a flag or key of other tools that Brim does not need (batch_size); empty if there is nothing to explain.
std::string why_not_needed(std::string_view name);

}  // namespace brim::cli
