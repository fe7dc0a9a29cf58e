// SPDX-License-Identifier: Apache-2.0
#include "base/settings.h"

#include <charconv>
#include <cmath>

namespace brim {
namespace {

template <class Number>
Number read(std::string_view text, const char* what) {
  Number n{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size()) throw BadValue{what};
  return n;
}

// The setting as given by the caller or in a file: "`seed=x`", "run.yaml:7: seed: x".
std::string subject(std::string_view key, std::string_view value, std::string_view where) {
  return where.empty() ? fmt::format("`{}={}`", key, value) : fmt::format("{}: {}: {}", where, key, value);
}

}  // namespace

int64_t read_whole_number(std::string_view text) { return read<int64_t>(text, "must be an integer"); }

double read_number(std::string_view text) { return read<double>(text, "must be a number"); }

std::optional<bool> truth_of(std::string_view text) {
  for (const char* yes : {"true", "True", "TRUE", "1", "yes", "on"})
    if (text == yes) return true;
  for (const char* no : {"false", "False", "FALSE", "0", "no", "off"})
    if (text == no) return false;
  return std::nullopt;
}

bool read_truth(std::string_view text) {
  if (const auto truth = truth_of(text)) return *truth;
  throw BadValue{"must be true or false"};
}

std::string use_one_of(const std::vector<std::string>& choices) {
  std::string all = "use ";
  for (size_t i = 0; i < choices.size(); ++i)
    all += (i == 0 ? "" : i + 1 == choices.size() ? " or " : ", ") + choices[i];
  return all;
}

namespace setting {

const char* above_zero(double v) { return v > 0 && !std::isinf(v) ? nullptr : "must be above zero"; }
const char* not_negative(double v) { return v >= 0 && !std::isinf(v) ? nullptr : "must not be negative"; }
const char* share(double v) { return v >= 0 && v <= 1 ? nullptr : "must be between 0 and 1"; }
const char* share_below_one(double v) { return v >= 0 && v < 1 ? nullptr : "must be at least 0 and below 1"; }

}  // namespace setting

std::string underscored(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

std::string dashed(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

void refuse_value(std::string_view key, std::string_view value, std::string_view where, std::string_view what) {
  fail(ErrorCode::usage, "{}: {}", subject(key, value, where), what);
}

void refuse_key(std::string_view key, std::string_view where, std::string_view near) {
  fail(ErrorCode::usage, "{}{}unknown key {}{}", where, where.empty() ? "" : ": ", underscored(key),
       near.empty() ? "" : fmt::format("; did you mean {}?", near));
}

std::string ignored_note(std::string_view key, std::string_view where, std::string_view why) {
  return where.empty() ? fmt::format("`{}` is ignored: {}", key, why)
                       : fmt::format("{}: {} is ignored: {}", where, key, why);
}

}  // namespace brim
