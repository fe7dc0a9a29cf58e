// SPDX-License-Identifier: Apache-2.0
// The only place that reads the environment.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

namespace brim {

std::optional<std::string> env(const char* name);  // unset and empty are the same
bool env_flag(const char* name);                   // set to anything but 0, false, no, off
std::filesystem::path cache_dir();                 // $BRIM_CACHE, else $XDG_CACHE_HOME/brim, else ~/.cache/brim
std::filesystem::path runtime_dir();               // $XDG_RUNTIME_DIR/brim, else /tmp/brim-<uid>
std::filesystem::path home_dir();

}  // namespace brim
