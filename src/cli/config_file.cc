// SPDX-License-Identifier: Apache-2.0
#include "cli/config_file.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/settings.h"
#include "base/units.h"
#include "cli/help.h"
#include "io/yaml_file.h"

namespace brim::cli {
namespace {

// "memory-limit: 98%" for memory_fraction: 0.98, else the key with the nearest name; empty if none is close.
std::string key_suggestion(const std::string& key, const YAML::Node& value, const std::vector<std::string>& known) {
  const SettingHint hint = hint_for(key, value.IsScalar() ? value.Scalar() : "");
  if (std::find(known.begin(), known.end(), dashed(hint.key)) != known.end()) return hint_text(hint, "file");
  return nearest_name(dashed(key), known);
}

CLI::Option* option_of(CLI::App& verb, const std::string& key, const YAML::Node& value, const std::string& where) {
  const std::string name = dashed(key);
  std::vector<std::string> known;
  for (CLI::Option* option : verb.get_options()) {
    const std::string own = option->nonpositional() ? option->get_lnames()[0] : option->get_name(true);
    if (own == "help" || own == "help-all" || own == "config") continue;
    if (own == name) return option;
    known.push_back(own);
  }
  const std::string near = key_suggestion(key, value, known);
  fail(ErrorCode::usage, "{}: unknown key {}{}; the keys of brim {} are its flags (`brim help {}`)", where, key,
       near.empty() ? why_not_needed(key) : fmt::format(" (did you mean {}?)", near), verb.get_name(), verb.get_name());
}

std::vector<std::string> values_of(const YAML::Node& value, const std::string& key, const std::string& where) {
  std::vector<std::string> values;
  if (value.IsMap()) fail(ErrorCode::usage, "{}: {} is a mapping; put its keys at the top level", where, key);
  if (value.IsScalar()) values.push_back(value.as<std::string>());
  for (size_t i = 0; value.IsSequence() && i < value.size(); ++i) {
    if (!value[i].IsScalar()) fail(ErrorCode::usage, "{}: {}: list items must be plain values", where, key);
    values.push_back(value[i].as<std::string>());
  }
  return values;
}

}  // namespace

std::string why_not_needed(std::string_view name) {
  const std::string typed = dashed(name);
  if (typed.ends_with("batch-size")) return ": batch sizes are planned within --memory-limit; `brim plan` shows them";
  if (typed.ends_with("num-workers") || typed == "workers")
    return ": reading and tokenizing use all cores; limit them with --threads";
  return "";
}

void apply_config(CLI::App& verb, const std::string& path) {
  std::set<CLI::Option*> seen;
  for (const auto& item : io::load_yaml(path)) {
    const std::string where = fmt::format("{}:{}", path, item.first.Mark().line + 1);
    const std::string key = item.first.IsScalar() ? item.first.as<std::string>() : "(not a plain key)";
    CLI::Option* option = option_of(verb, key, item.second, where);
    if (!seen.insert(option).second) fail(ErrorCode::usage, "{}: duplicate key {}", where, key);
    const std::vector<std::string> values = values_of(item.second, key, where);
    if (values.size() > 1 && option->get_items_expected_max() <= 1)
      fail(ErrorCode::usage, "{}: {} takes one value, not a list", where, key);
    if (option->count() > 0 || values.empty()) continue;
    for (const std::string& value : values) option->add_result(value);
    if (lacks_number(*option)) fail(ErrorCode::usage, "{}: {}: missing value", where, key);
    try {
      option->run_callback();
    } catch (const CLI::Error&) {
      fail(ErrorCode::usage, "{}: {}: {}: invalid value (expected a number in range, or true or false for a switch)",
           where, key, fmt::join(values, ", "));
    } catch (const Error& e) {  // the error names a flag; prefix file and line
      const std::string flag = fmt::format("`{}={}`: ", underscored(key), values.back()), what = e.what();
      fail(e.code(), "{}: {}: {}: {}", where, key, values.back(),
           what.starts_with(flag) ? what.substr(flag.size()) : what);
    }
  }
}

}  // namespace brim::cli
