// SPDX-License-Identifier: Apache-2.0
#include "cli/setting_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

namespace brim::cli {

void add_kept_flag(CLI::App& app, const SettingInfo& setting, FlagValues& values, Spelling spelling,
                   std::string_view letter) {
  std::string names = (letter.empty() ? "" : fmt::format("-{},", letter)) + "--" + dashed(setting.name);
  if (spelling == Spelling::both && setting.name.find('_') != std::string::npos) names += ",--" + setting.name;
  const auto keep = [&values, setting](const std::vector<std::string>& typed) {
    const bool bare = typed.empty() || typed == std::vector<std::string>{""};
    values[setting.name] = bare && setting.is_switch ? std::vector<std::string>{"true"} : typed;
  };
  const std::string help = setting.ignored ? "accepted; " + setting.help
                           : setting.default_value.empty()
                               ? setting.help
                               : fmt::format("{} (default {})", setting.help, setting.default_value);
  CLI::Option* option = app.add_option_function<std::vector<std::string>>(names, keep, help);
  option->expected(0, 1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->type_name(spelling == Spelling::both || setting.is_switch ? "" : setting.type);
  option->allow_extra_args(setting.is_list);
  if (setting.ignored) option->group("Accepted, not needed");
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
  if (!setting.default_value.empty()) option->default_str(setting.default_value);
}

}  // namespace brim::cli
