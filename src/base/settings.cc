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

SettingHint hint_for(std::string_view key, std::string_view value) {
  const std::string name = lower_case(underscored(key));
  const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (is_one_of({"memory_fraction", "gpu_memory_fraction", "gpu_memory_utilization"}))
    return {"memory_limit", with_unit(value)};
  if (is_one_of({"gpu", "gpu_id", "gpu_device", "device_id", "cuda_device"})) {
    const bool index = !value.empty() && value.find_first_not_of("0123456789") == std::string_view::npos;
    return {"device", index ? fmt::format("cuda:{}", value) : value == "-1" ? "cpu" : ""};
  }
  if (is_one_of({"fp32", "tf32", "bf16", "fp16", "fp8", "int8", "half"}) && (value.empty() || truth_of(value) == true))
    return {"precision", name == "half" ? "fp16" : name};
  return {};
}

std::string hint_text(const SettingHint& hint, std::string_view where) {
  if (hint.value.empty()) return hint.key;
  return where.empty() ? fmt::format("`{}={}`", hint.key, hint.value) : fmt::format("{}: {}", hint.key, hint.value);
}

void check_ignored(std::string_view key, std::string_view value, std::string_view where, bool is_switch) {
  if (is_switch && !value.empty() && !truth_of(value)) refuse_value(key, value, where, "must be true or false");
}

std::string ignored_note(std::string_view key, std::string_view where, std::string_view why) {
  return where.empty() ? fmt::format("`{}` is ignored: {}", key, why)
                       : fmt::format("{}: {} is ignored: {}", where, key, why);
}

}  // namespace brim
