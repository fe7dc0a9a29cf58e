// SPDX-License-Identifier: Apache-2.0
// The only place that reads the environment.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace brim {

std::optional<std::string> env(const char* name);  // unset and empty are the same
bool env_flag(const char* name);                   // set to anything but 0, false, no, off
std::filesystem::path cache_dir();                 // $BRIM_CACHE, else $XDG_CACHE_HOME/brim, else ~/.cache/brim
std::filesystem::path runtime_dir();               // $XDG_RUNTIME_DIR/brim, else /tmp/brim-<uid>
std::filesystem::path home_dir();

// One KEY=value line of an environment file.
struct EnvEntry {
  std::string name, value;
  int line = 0;
};
// The .env dialect shells and container tools share: comments, `export`, 'single' and "double" quotes, \n \t \"
// \\ within double ones, a comment after a space. Nothing is expanded or run. Anything else is a usage error naming
// `where`, line and text.
std::vector<EnvEntry> parse_env_text(std::string_view text, const std::string& where);
// Sets a variable of this process unless it is set already; before any thread is started.
void set_env_default(const std::string& name, const std::string& value);

}  // namespace brim
