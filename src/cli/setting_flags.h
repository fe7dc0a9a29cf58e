// SPDX-License-Identifier: Apache-2.0
// Creates flags from settings tables (base/settings.h). Environment variables, config files and completion are derived
// from the flags elsewhere.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/settings.h"

namespace CLI {
class App;
}

namespace brim::cli {

// Given values by setting, for commands with flags that override a file read later.
using FlagValues = std::map<std::string, std::vector<std::string>>;

// Switches may be given without a value. `both`: also --learning_rate, as in Hugging Face's scripts.
enum class Spelling : uint8_t { dashes, both };
void add_kept_flag(CLI::App& app, const SettingInfo& setting, FlagValues& values, Spelling spelling,
                   std::string_view letter = "");

// Calls `apply` with the value from the command line, the environment or a config file, if any.
void add_flag(CLI::App& app, const SettingInfo& setting, const char* short_name,
              const std::function<void(const std::string&)>& apply);

// Adds the named rows as flags that set `into`. Short names are given as "q,quiet".
template <class S>
void add_flags(CLI::App& app, const SettingsTable<S>& table, S& into, const std::vector<const char*>& names) {
  const std::vector<SettingInfo> infos = table.infos();
  for (const std::string_view given : names) {
    const bool is_short = given.size() > 2 && given[1] == ',';
    const std::string name(given.substr(is_short ? 2 : 0)), letter(given.substr(0, is_short ? 1 : 0));
    const auto info = std::find_if(infos.begin(), infos.end(), [&](const SettingInfo& i) { return i.name == name; });
    BRIM_CHECK(info != infos.end(), "no setting {}", name);
    add_flag(app, *info, letter.c_str(),
             [&table, &into, name](const std::string& value) { table.apply(into, name, value, ""); });
  }
}

}  // namespace brim::cli
