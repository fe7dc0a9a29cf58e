// SPDX-License-Identifier: Apache-2.0
#include "cli/setting_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "cli/help.h"

namespace brim::cli {

void add_kept_flag(CLI::App& app, const SettingInfo& setting, FlagValues& values, Spelling spelling,
                   std::string_view letter) {
  std::string names = (letter.empty() ? "" : fmt::format("-{},", letter)) + "--" + dashed(setting.name);
  if (spelling == Spelling::both && setting.name.find('_') != std::string::npos) names += ",--" + setting.name;
  const auto keep = [&values, setting](const std::vector<std::string>& typed) {
    const bool bare = typed.empty() || typed == std::vector<std::string>{""};
    values[setting.name] = bare && setting.is_switch ? std::vector<std::string>{"true"} : typed;
  };
  CLI::Option* option = app.add_option_function<std::vector<std::string>>(names, keep, setting.help);
  option->expected(0, 1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->type_name(setting.is_switch ? "" : setting.type);
  option->allow_extra_args(setting.is_list);
  if (!setting.is_switch || setting.default_value == "true") show_default(*option, setting.default_value);
  if (setting.ignored) option->group(kIgnoredGroup);
  if (setting.help.starts_with(kSameAs)) option->group(kAliasGroup);
}

void add_flag(CLI::App& app, const SettingInfo& setting, const char* short_name,
              const std::function<void(const std::string&)>& apply) {
  const std::string letter = short_name,
                    names = (letter.empty() ? "" : "-" + letter + ",") + "--" + dashed(setting.name);
  if (setting.is_switch) {
    app.add_flag_callback(
        names, [apply] { apply("true"); }, setting.help);
    return;
  }
  CLI::Option* option = app.add_option_function<std::string>(names, apply, setting.help)->type_name(setting.type);
  show_default(*option, setting.default_value);
}

}  // namespace brim::cli
