// SPDX-License-Identifier: Apache-2.0
// Access to environment variables. No other file reads the environment.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace brim {

std::optional<std::string> env(const char* name);  // nullopt if unset or empty
bool env_flag(const char* name);                   // set to anything other than 0, false, no, off
std::filesystem::path cache_dir();                 // $BRIM_CACHE, else $XDG_CACHE_HOME/brim, else ~/.cache/brim
std::filesystem::path runtime_dir();               // $XDG_RUNTIME_DIR/brim, else /tmp/brim-<uid>
std::filesystem::path home_dir();

// One KEY=value line of an environment file.
struct EnvEntry {
  std::string name, value;
  int line = 0;
};
// Parses the common .env syntax of shells and container tools: comments, `export`, 'single' and "double" quotes, \n \t
// \" \\ inside double quotes, a comment after a space. Nothing is expanded or executed. Anything else is a usage error
// naming `where`, line and text.
std::vector<EnvEntry> parse_env_text(std::string_view text, const std::string& where);
// Sets a variable of this process unless it is already set. Call before starting any thread.
void set_env_default(const std::string& name, const std::string& value);

}  // namespace brim
