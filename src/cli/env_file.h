// SPDX-License-Identifier: Apache-2.0
// --env-file: settings from a .env file: BRIM_ variables of flags that are safe to set from a file, and the unprefixed
// keys of news bots (SENTIMENT_*, GPU_*, FEATURE_*, MARKET_*). Keys that Brim does not need are accepted and explained.
// YAML files are read by config_file.h.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/env.h"

namespace brim::cli {

enum class EnvKeyKind : uint8_t { text, number, flag };
enum class EnvKeyStatus : uint8_t { in_force, unnecessary };

struct EnvKey {
  const char* name;
  EnvKeyKind kind;
  EnvKeyStatus status;
  const char* help;  // its effect, or why it has none
};
std::span<const EnvKey> env_keys();

// File given by --env-file in the arguments before a bare --, or by BRIM_ENV_FILE; empty if none.
std::string env_file_of(int argc, const char* const* argv);

// Reads the file and sets its known variables in this process (BRIM_ ones of `flags` and of the program, the keys
// above, some of CUDA and Hugging Face), except those that the environment sets. Other variables are ignored, so they
// do not reach child processes. A malformed line or value, a misspelt BRIM_ name, or a variable that must not come from
// a file is a usage error naming file and line. Returns a message for each other line that looks misspelt.
std::vector<std::string> load_env_file(const std::string& path, const std::vector<std::string>& flags);

// Whether a file may set the BRIM_ variable of a flag. The others, listed by variables_not_from_file(), choose output
// files, exposed data, keys or addresses to connect to.
bool taken_from_file(std::string_view variable);
std::span<const std::string_view> variables_not_from_file();

// Value of an unprefixed key set by the file; the environment is ignored.
std::optional<std::string> env_file_value(const char* name);

// Whether the unprefixed keys also apply from the environment.
bool reads_plain_keys(std::string_view verb);

// One line with the keys of the file that `verb` does not use; empty if there are none.
std::string unused_keys_note(std::string_view verb, bool uses_model_name);

// BRIM_ variables that are not flags.
std::span<const char* const> program_variables();

// One sentence for each unknown BRIM_ variable in the environment with a name close to a known one.
std::vector<std::string> misspelt_environment(const std::vector<std::string>& flags);

// Throws usage if the value does not have the kind of its key; the message begins with `where`.
void check_env_value(const std::string& where, const std::string& name, const std::string& value);

// The bounds that a numeric value of a known key violates, or null.
const char* env_number_problem(std::string_view name, double value);

// One sentence for each key that is set and has no effect.
std::vector<std::string> env_notes();

// Numeric value of a known key in the environment, or `otherwise`.
double env_number(const char* name, double otherwise);

}  // namespace brim::cli
