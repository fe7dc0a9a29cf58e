// SPDX-License-Identifier: Apache-2.0
// Types of settings: how a value is parsed, formatted and checked. Settings are named in a table (base/settings.h).
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
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

}  // namespace brim
