// SPDX-License-Identifier: Apache-2.0
// Help of commands: groups of flags, --help, --help-all and the flag reference. Everything is generated from the flags;
// help_groups.cc lists the common flags of each command. Manual pages are in man.h.
#pragma once
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace brim::cli {

// Groups that only --help-all shows.
inline constexpr const char* kAdvancedGroup = "Advanced";
inline constexpr const char* kAliasGroup = "Aliases";
inline constexpr const char* kIgnoredGroup = "Accepted and ignored";

// The help text of aliases in settings tables begins with this.
inline constexpr const char* kSameAs = "same as ";

struct FlagGroup {
  std::string title;
  std::vector<const CLI::Option*> flags;
  bool common = true;  // shown by --help
};

// Assigns help groups to the flags of a command and its subcommands, and renders settings in their descriptions as
// flags.
void prepare_help(CLI::App& command);

// Groups in the order of help; the first one contains the positional arguments, if any.
std::vector<FlagGroup> flag_groups(const CLI::App& command);

// Default of a flag for help. CLI11's own default text would become the value of a flag that is given without one.
void show_default(CLI::Option& option, const std::string& text);
std::string shown_default(const CLI::Option& option);

std::string usage_line(const CLI::App& command);       // "brim score [flags] [input...]"
std::string value_name(const CLI::Option& option);     // "FILE"; empty for a switch
bool lacks_number(const CLI::Option& option);          // given with an empty value, which CLI11 reads as 0
std::string flag_names(const CLI::Option& option);     // "-o, --output"; without spellings with underscores
std::string sentence(const std::string& description);  // with a capital letter and a full stop

// `all`: also uncommon flags and environment variables. `width`: columns.
std::string help_text(const CLI::App& command, bool all, int width);

// docs/reference/flags.md
std::string flag_reference(const CLI::App& program);

}  // namespace brim::cli
