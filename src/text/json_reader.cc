// SPDX-License-Identifier: Apache-2.0
#include "text/json_reader.h"

#include "base/mapped_file.h"

namespace brim::text {
namespace {

std::string shown(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  constexpr size_t kLongest = 80;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "…";
  return text;
}

}  // namespace

JsonValue JsonValue::at(const char* key) const {
  expect_object();
  if (!has(key)) brim::fail(ErrorCode::bad_model, "{}: {}: key \"{}\" is missing", file_->string(), place_, key);
  return {(*value_)[key], *file_, place_.empty() ? key : place_ + "." + key};
}

JsonValue JsonValue::at(size_t index) const {
  expect_array();
  if (index >= value_->size()) fail(fmt::format("entry {} is missing", index));
  return {(*value_)[index], *file_, fmt::format("{}[{}]", place_, index)};
}

std::string JsonValue::as_string() const {
  if (!value_->is_string()) fail("must be a string");
  return value_->get<std::string>();
}

bool JsonValue::as_bool() const {
  if (!value_->is_boolean()) fail("must be true or false");
  return value_->get<bool>();
}

int64_t JsonValue::as_int() const {
  if (!value_->is_number_integer()) fail("must be an integer");
  if (value_->is_number_unsigned() && value_->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) fail("is too large");
  return value_->get<int64_t>();
}

double JsonValue::as_double() const {
  if (!value_->is_number()) fail("must be a number");
  return value_->get<double>();
}

void JsonValue::expect_object() const {
  if (!value_->is_object()) fail("must be an object");
}

void JsonValue::expect_array() const {
  if (!value_->is_array()) fail("must be an array");
}

void JsonValue::fail(const std::string& why) const {
  brim::fail(ErrorCode::bad_model, "{}: {} is {}: {}", file_->string(), place_.empty() ? "the file" : place_,
             shown(*value_), why);
}

std::string json_problem(std::string_view what) {
  const size_t bracket = what.starts_with('[') ? what.find("] ") : std::string_view::npos;
  return std::string(bracket == std::string_view::npos ? what : what.substr(bracket + 2));
}

nlohmann::json parse_json_file(const std::filesystem::path& file) {
  using nlohmann::json;
  const std::string text = read_file(file);
  // Real files nest only a few levels; values are printed recursively, so depth is limited to protect the stack.
  constexpr int kDeepest = 100;
  const auto watch = [&](int depth, json::parse_event_t, const json&) {
    if (depth > kDeepest) brim::fail(ErrorCode::bad_model, "{}: nesting depth exceeds {}", file.string(), kDeepest);
    return true;
  };
  try {
    return json::parse(text, watch);
  } catch (const json::exception& error) {
    brim::fail(ErrorCode::bad_model, Remedy{"download the file again"}, "{}: not valid JSON: {}", file.string(),
               json_problem(error.what()));
  }
}

}  // namespace brim::text
