// SPDX-License-Identifier: Apache-2.0
// Tables of typed settings. Each row defines the name and type of a setting and how a run records it; flags, YAML keys,
// BRIM_ variables, checks, help, completion, a run's fingerprint and its card are derived from the rows:
//   {"learning_rate", "peak learning rate", number(&Settings::learning_rate, above_zero), Keep::same}
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/setting_value.h"
#include "base/units.h"

namespace brim {

// How a run records a setting.
enum class Keep : uint8_t {
  nothing,
  report,       // shown in the report
  same,         // also in the card; must be equal when a run is continued
  same_if_set,  // like same, but not recorded if empty: for settings that older runs do not have
};
struct KeptSetting {
  std::string name, value;
  Keep keep;
};

template <class S>
struct Setting {
  const char* name;
  const char* help;  // for an ignored setting: why it can be ignored
  SettingValue<S> value;
  Keep keep = Keep::nothing;
  std::vector<const char*> also;                        // aliases
  const char* kept_as = nullptr;                        // alias to use in a run's files
  std::function<std::string(const S&)> text_to_record;  // text to record instead of the value
  bool ignored() const { return !value.set; }
};

// Public description of a row; aliases are separate rows.
struct SettingInfo {
  std::string name, help;
  std::string default_value;  // empty: none, or not worth showing
  std::vector<std::string> choices;
  bool ignored = false, is_switch = false, is_list = false;
  std::string type;
};

// Parts independent of the type.
[[noreturn]] void refuse_value(std::string_view key, std::string_view value, std::string_view where,
                               std::string_view what);
[[noreturn]] void refuse_key(std::string_view key, std::string_view where, std::string_view near);
// The setting that has the meaning of another tool's, which may be set in another unit: memory_fraction=0.98 is
// memory_limit=98%. The key is empty if unknown, the value if it has no equivalent.
struct SettingHint {
  std::string key, value;
};
SettingHint hint_for(std::string_view key, std::string_view value);
std::string hint_text(const SettingHint& hint, std::string_view where);  // as in a call, or in a file
// An ignored switch must still have a truth value; other ignored settings accept anything.
void check_ignored(std::string_view key, std::string_view value, std::string_view where, bool is_switch);
std::string ignored_note(std::string_view key, std::string_view where, std::string_view why);

// Parses a text argument: read_setting("device", "cuda:1", read_device).
template <class Read>
auto read_setting(std::string_view key, std::string_view text, Read read) {
  try {
    return read(text);
  } catch (const BadValue& bad) {
    refuse_value(key, text, "", bad.what);
  }
}

template <class S>
class SettingsTable {
 public:
  // `suggestions` maps names from other tools to the setting with that meaning; they are suggested, not accepted.
  explicit SettingsTable(std::vector<Setting<S>> rows, std::map<std::string, std::string, std::less<>> suggestions = {})
      : rows_(std::move(rows)), suggestions_(std::move(suggestions)) {
    for (const Setting<S>& row : rows_) {
      by_name_.emplace(row.name, &row);
      for (const char* name : row.also) by_name_.emplace(name, &row);
    }
  }
  SettingsTable(const SettingsTable&) = delete;

  const std::vector<Setting<S>>& rows() const { return rows_; }
  const Setting<S>* find(std::string_view key) const {
    const auto found = by_name_.find(underscored(key));
    return found == by_name_.end() ? nullptr : found->second;
  }

  std::vector<SettingInfo> infos() const {
    std::vector<SettingInfo> all;
    for (const Setting<S>& row : rows_) {
      const SettingValue<S>& v = row.value;
      all.push_back({row.name, row.help, v.get ? v.get(S{}) : "", v.choices, row.ignored(),
                     row.ignored() || v.is_switch, v.is_list, v.type});
      const SettingInfo own = all.back();
      for (const char* name : row.also) {
        all.push_back(own);
        all.back().name = name;
        all.back().help = fmt::format("same as `{}`", row.name);
      }
    }
    return all;
  }

  // The most likely intended name; empty if none is close.
  std::string nearest(std::string_view typed) const {
    const std::string key = underscored(typed);
    if (const auto it = suggestions_.find(key); it != suggestions_.end()) return it->second;
    std::vector<std::string> names;
    for (const auto& [name, row] : by_name_) names.push_back(name);
    return nearest_name(key, names);
  }

  // Sets one setting (with - or _). Returns a note for the user if the setting is ignored, else an empty string. An
  // unknown key or invalid value is a usage error; `where` is its location ("run.yaml:7"; empty: given by the caller).
  std::string apply(S& settings, std::string_view key, std::string_view value, std::string_view where) const {
    const Setting<S>* row = find(key);
    if (row == nullptr) {
      const SettingHint hint = hint_for(key, value);
      refuse_key(key, where, find(hint.key) != nullptr ? hint_text(hint, where) : nearest(key));
    }
    if (row->ignored()) {
      check_ignored(underscored(key), value, where, row->value.is_switch);
      return ignored_note(underscored(key), where, row->help);
    }
    try {
      row->value.set(settings, value);
    } catch (const BadValue& bad) {
      refuse_value(underscored(key), value, where, bad.what);
    }
    if (row->value.fault)
      if (const std::string what = row->value.fault(settings); !what.empty())
        refuse_value(underscored(key), value, where, what);
    return {};
  }

  // Throws a usage error for an invalid value, regardless of its source.
  void check(const S& settings) const {
    for (const Setting<S>& row : rows_)
      if (row.value.fault)
        if (const std::string what = row.value.fault(settings); !what.empty())
          refuse_value(row.name, row.value.get(settings), "", what);
  }

  std::vector<KeptSetting> kept(const S& settings) const {
    std::vector<KeptSetting> all;
    for (const Setting<S>& row : rows_) {
      if (row.keep == Keep::nothing) continue;
      std::string text = row.text_to_record ? row.text_to_record(settings) : row.value.get(settings);
      const bool if_set = row.keep == Keep::same_if_set;
      if (if_set && text.empty()) continue;
      all.push_back({row.kept_as != nullptr ? row.kept_as : row.name, std::move(text), if_set ? Keep::same : row.keep});
    }
    return all;
  }

 private:
  std::vector<Setting<S>> rows_;
  std::map<std::string, const Setting<S>*, std::less<>> by_name_;
  std::map<std::string, std::string, std::less<>> suggestions_;
};

}  // namespace brim
