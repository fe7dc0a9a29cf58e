// SPDX-License-Identifier: Apache-2.0
// --env-file: settings kept in a .env file, as the news bots that Brim replaces keep them. Any BRIM_ variable may stand
// in it; the keys of those bots mean what they meant, and those that Brim makes unnecessary are accepted and explained.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "base/env.h"

namespace brim {

enum class EnvKeyKind : uint8_t { text, number, flag };
enum class EnvKeyStatus : uint8_t { in_force, unnecessary, later };

struct EnvKey {
  const char* name;
  EnvKeyKind kind;
  EnvKeyStatus status;
  const char* help;  // what it does, or why nothing needs to
};
std::span<const EnvKey> env_keys();

// The file named by --env-file in the arguments before a bare --, or by BRIM_ENV_FILE; empty if there is none.
std::string env_file_of(int argc, const char* const* argv);

// Reads the file and sets its variables in this process, except those set already: the environment wins. A line or a
// value that cannot be right is a usage error naming file, line and value. Returns what the file holds.
std::vector<EnvEntry> load_env_file(const std::string& path);

// BRIM_ variables that are no flag of a verb.
std::span<const char* const> program_variables();
// A BRIM_ variable of the file that is neither among these nor in `flags` but close to one of them is a usage error
// with the right name. Returns a sentence for each that is close to none; variables of other programs are none of ours.
std::vector<std::string> check_env_names(const std::string& path, const std::vector<EnvEntry>& entries,
                                         const std::vector<std::string>& flags);

// A sentence for each BRIM_ variable of the environment that is neither a flag's nor the program's but close to one of
// them.
std::vector<std::string> misspelt_environment(const std::vector<std::string>& flags);

// A value of a known key that its kind does not allow is a usage error; `where` begins the message.
void check_env_value(const std::string& where, const std::string& name, const std::string& value);

// A sentence for each key that is set and changes nothing.
std::vector<std::string> env_notes();

// A number among the known keys: the environment's, else `otherwise`.
double env_number(const char* name, double otherwise);

}  // namespace brim
