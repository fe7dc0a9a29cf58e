// SPDX-License-Identifier: Apache-2.0
// Reads values of tokenizer.json, with errors that name the file, the key and the value.
// Include only from .cc files.
#pragma once
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/error.h"

namespace brim::text {

// A value and its location: "tokenizer.json: model.unk_token".
class JsonValue {
 public:
  JsonValue(const nlohmann::json& value, const std::filesystem::path& file, std::string place)
      : value_(&value), file_(&file), place_(std::move(place)) {}

  const nlohmann::json& raw() const { return *value_; }
  const std::filesystem::path& file() const { return *file_; }
  const std::string& place() const { return place_; }

  bool has(const char* key) const { return value_->is_object() && value_->contains(key) && !(*value_)[key].is_null(); }
  JsonValue at(const char* key) const;  // fails if missing or null
  JsonValue at(size_t index) const;
  size_t size() const { return value_->size(); }

  std::string as_string() const;
  bool as_bool() const;
  int64_t as_int() const;
  double as_double() const;
  void expect_object() const;
  void expect_array() const;

  // The value of a key, or `fallback` if it is missing or null.
  std::string get(const char* key, const std::string& fallback) const {
    return has(key) ? at(key).as_string() : fallback;
  }
  std::string get(const char* key, const char* fallback) const { return get(key, std::string(fallback)); }
  bool get(const char* key, bool fallback) const { return has(key) ? at(key).as_bool() : fallback; }
  int64_t get(const char* key, int64_t fallback) const { return has(key) ? at(key).as_int() : fallback; }

  // "FILE: LOCATION is VALUE: why". Long values are truncated.
  [[noreturn]] void fail(const std::string& why) const;

 private:
  const nlohmann::json* value_;
  const std::filesystem::path* file_;
  std::string place_;
};

std::string json_problem(std::string_view what);  // message of a nlohmann exception without its number

// Parses a whole file; a syntax error names the file, the byte and the expected token.
nlohmann::json parse_json_file(const std::filesystem::path& file);

}  // namespace brim::text
