// SPDX-License-Identifier: Apache-2.0
// Completion scripts for bash, zsh and fish: verbs, their own verbs, flags with their help, and the values of settings
// that take one of a few; all read off the flags themselves and the tables of settings.
#pragma once
#include <string>

namespace CLI {
class App;
}

namespace brim::cli {

// `shell`: bash, zsh or fish; anything else is a usage error.
std::string completion_script(const CLI::App& program, const std::string& shell);

}  // namespace brim::cli
