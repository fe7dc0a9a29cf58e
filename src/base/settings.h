// SPDX-License-Identifier: Apache-2.0
// Tables of typed settings. Each row defines the name and type of a setting and how a run records it; flags, YAML keys,
// BRIM_ variables, checks, help, completion, a run's fingerprint and its card are derived from the rows:
//   {"learning_rate", "peak learning rate", number(&Settings::learning_rate, above_zero), Keep::same}
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/units.h"

namespace brim {

// Thrown while parsing a value; the table adds the name of the setting and its location.
struct BadValue {
  std::string what;  // "must be an integer"
};

int64_t read_whole_number(std::string_view text);
double read_number(std::string_view text);
bool read_truth(std::string_view text);
std::optional<bool> truth_of(std::string_view text);              // true, True, 1, yes, on, and their opposites
std::string use_one_of(const std::vector<std::string>& choices);  // "use a, b or c"

std::string underscored(std::string_view name);  // learning-rate -> learning_rate
std::string dashed(std::string_view name);       // learning_rate -> learning-rate

// How a run records a setting.
enum class Keep : uint8_t {
  nothing,
  report,  // shown in the report
  same,    // also in the card; must be equal when a run is continued
};
struct KeptSetting {
  std::string name, value;
  Keep keep;
};

// Parsing and formatting for a setting of S.
template <class S>
struct SettingValue {
  std::function<void(S&, std::string_view)> set;  // throws BadValue; empty: accepted and ignored
  std::function<std::string(const S&)> get;       // empty: no single text, or not worth showing
  std::function<std::string(const S&)> fault;     // describes an invalid value, from any source; empty if valid
  std::vector<std::string> choices;               // all valid values; empty: any value that can be parsed
  bool is_switch = false;                         // a key without a value means true
  bool is_list = false;                           // may be given several times
  const char* type = "TEXT";                      // for help
};

// Value types, by the member that holds them.
namespace setting {

// Describes the error in a number; null if valid.
using Bound = const char* (*)(double);
const char* above_zero(double value);
const char* not_negative(double value);
const char* share(double value);  // from 0 to 1
const char* share_below_one(double value);

template <class S>
SettingValue<S> text(std::string S::*m) {
  return {[m](S& s, std::string_view v) { s.*m = v; }, [m](const S& s) { return s.*m; }, {}, {}};
}

template <class S, class Number>
SettingValue<S> number(Number S::*m, Bound bound = nullptr) {
  SettingValue<S> value;
  value.type = std::is_floating_point_v<Number> ? "FLOAT" : "INT";
  value.get = [m](const S& s) { return fmt::format("{}", s.*m); };
  value.set = [m](S& s, std::string_view v) {
    if constexpr (std::is_floating_point_v<Number>) {
      s.*m = read_number(v);
    } else {
      const int64_t n = read_whole_number(v);
      if (!std::in_range<Number>(n)) throw BadValue{"number is too large"};
      s.*m = static_cast<Number>(n);
    }
  };
  if (bound != nullptr)
    value.fault = [m, bound](const S& s) {
      const char* what = bound(static_cast<double>(s.*m));
      return std::string(what == nullptr ? "" : what);
    };
  return value;
}

template <class S>
SettingValue<S> truth(bool S::*m) {
  return {[m](S& s, std::string_view v) { s.*m = read_truth(v); },
          [m](const S& s) { return fmt::format("{}", s.*m); },
          {},
          {},
          true};
}

template <class S>
SettingValue<S> texts(std::vector<std::string> S::*m) {
  return {[m](S& s, std::string_view v) { (s.*m).emplace_back(v); }, {}, {}, {}, false, true};
}

// One of several names. A value may have several names; the first is used for output.
template <class S, class E>
SettingValue<S> choice(E S::*m, const std::vector<std::pair<const char*, E>>& names) {
  SettingValue<S> value;
  for (const auto& [name, unused] : names) value.choices.emplace_back(name);
  value.set = [m, names, choices = value.choices](S& s, std::string_view v) {
    const auto found = std::find_if(names.begin(), names.end(), [&](const auto& n) { return same_word(v, n.first); });
    if (found == names.end()) throw BadValue{use_one_of(choices)};
    s.*m = found->second;
  };
  value.get = [m, names](const S& s) {
    const auto found = std::find_if(names.begin(), names.end(), [&](const auto& n) { return s.*m == n.second; });
    return std::string(found == names.end() ? "" : found->first);
  };
  return value;
}

// A value parsed by `read` and formatted by `write`.
template <class S, class T, class Read, class Write>
SettingValue<S> typed(T S::*m, Read read, Write write) {
  return {
      [m, read](S& s, std::string_view v) { s.*m = read(v); }, [m, write](const S& s) { return write(s.*m); }, {}, {}};
}

// One of several names, stored as text.
template <class S>
SettingValue<S> word(std::string S::*m, std::vector<std::string> choices) {
  SettingValue<S> value = text(m);
  value.choices = std::move(choices);
  value.fault = [m, choices = value.choices](const S& s) {
    return std::find(choices.begin(), choices.end(), s.*m) != choices.end() ? std::string() : use_one_of(choices);
  };
  return value;
}

}  // namespace setting

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
    if (row == nullptr) refuse_key(key, where, nearest(key));
    if (row->ignored()) return ignored_note(underscored(key), where, row->help);
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
    for (const Setting<S>& row : rows_)
      if (row.keep != Keep::nothing)
        all.push_back({row.kept_as != nullptr ? row.kept_as : row.name,
                       row.text_to_record ? row.text_to_record(settings) : row.value.get(settings), row.keep});
    return all;
  }

 private:
  std::vector<Setting<S>> rows_;
  std::map<std::string, const Setting<S>*, std::less<>> by_name_;
  std::map<std::string, std::string, std::less<>> suggestions_;
};

}  // namespace brim
