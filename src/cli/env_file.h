// SPDX-License-Identifier: Apache-2.0
// --env-file: settings kept in a .env file, as the news bots that Brim replaces keep them. BRIM_ variables may stand
// in it; the keys of those bots mean what they meant, and those that Brim makes unnecessary are accepted and explained.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "base/env.h"

namespace brim::cli {

enum class EnvKeyKind : uint8_t { text, number, flag };
enum class EnvKeyStatus : uint8_t { in_force, unnecessary };

struct EnvKey {
  const char* name;
  EnvKeyKind kind;
  EnvKeyStatus status;
  const char* help;  // what it does, or why nothing needs to
};
std::span<const EnvKey> env_keys();

// The file named by --env-file in the arguments before a bare --, or by BRIM_ENV_FILE; empty if there is none.
std::string env_file_of(int argc, const char* const* argv);

// Reads the file and sets its known variables in this process (the BRIM_ ones of `flags` and of the program, the keys
// above, some of CUDA's and Hugging Face's), except those set already: the environment wins. Everything else in it
// stays out of the process, and so out of its children; what would load a library is refused. A line, a value or a
// BRIM_ name that cannot be right is a usage error naming file and line. Returns a sentence for each other line that
// looks misspelt.
std::vector<std::string> load_env_file(const std::string& path, const std::vector<std::string>& flags);

// BRIM_ variables that are no flag of a verb.
std::span<const char* const> program_variables();

// A sentence for each BRIM_ variable of the environment that is neither a flag's nor the program's but close to one of
// them.
std::vector<std::string> misspelt_environment(const std::vector<std::string>& flags);

// A value of a known key that its kind does not allow is a usage error; `where` begins the message.
void check_env_value(const std::string& where, const std::string& name, const std::string& value);

// A sentence for each key that is set and changes nothing.
std::vector<std::string> env_notes();

// A number among the known keys: the environment's, else `otherwise`.
double env_number(const char* name, double otherwise);

}  // namespace brim::cli
