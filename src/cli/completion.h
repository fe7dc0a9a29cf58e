// SPDX-License-Identifier: Apache-2.0
// Completion scripts for bash, zsh and fish: commands, subcommands, flags with their help, and the values of enumerated
// settings. All are generated from the flags and the settings tables; nothing is listed by hand.
#pragma once
#include <string>

namespace CLI {
class App;
}

namespace brim::cli {

// `shell`: bash, zsh or fish; anything else is a usage error.
std::string completion_script(const CLI::App& program, const std::string& shell);

}  // namespace brim::cli
