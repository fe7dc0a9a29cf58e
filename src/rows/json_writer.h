// SPDX-License-Identifier: Apache-2.0
// Writes JSON to the end of a string, with the separators. Numbers are written as in rows/jsonl.h. The caller keeps the
// structure valid: keys only in objects, every begin with its end.
#pragma once
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rows/jsonl.h"

namespace brim::rows {

class JsonWriter {
 public:
  explicit JsonWriter(std::string& out) : out_(out) {}

  JsonWriter& begin_object() { return begin('{'); }
  JsonWriter& end_object() { return end('}'); }
  JsonWriter& begin_array() { return begin('['); }
  JsonWriter& end_array() { return end(']'); }

  JsonWriter& key(std::string_view name) {
    separate();
    append_json_string(out_, name);
    out_ += ':';
    first_ = true;
    return *this;
  }

  JsonWriter& value(std::string_view text) {
    separate();
    append_json_string(out_, text);
    return *this;
  }
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(float number) {
    separate();
    append_json_number(out_, number);
    return *this;
  }
  template <std::integral Number>
  JsonWriter& value(Number number) {
    separate();
    if constexpr (std::same_as<Number, bool>)
      out_ += number ? "true" : "false";
    else
      append_json_number(out_, static_cast<int64_t>(number));
    return *this;
  }
  template <class T>
  JsonWriter& value(const std::vector<T>& values) {
    begin_array();
    for (const T& one : values) value(one);
    return end_array();
  }
  JsonWriter& null() { return raw("null"); }
  // JSON text that is already written.
  JsonWriter& raw(std::string_view json) {
    separate();
    out_ += json;
    return *this;
  }
  // A member: key(name).value(v).
  template <class T>
  JsonWriter& member(std::string_view name, const T& v) {
    return key(name).value(v);
  }

  size_t size() const { return out_.size(); }

 private:
  void separate() {
    if (!first_) out_ += ',';
    first_ = false;
  }
  JsonWriter& begin(char bracket) {
    separate();
    out_ += bracket;
    first_ = true;
    return *this;
  }
  JsonWriter& end(char bracket) {
    out_ += bracket;
    first_ = false;
    return *this;
  }

  std::string& out_;
  bool first_ = true;  // the next value follows no other value of its array or object
};

}  // namespace brim::rows
