// SPDX-License-Identifier: Apache-2.0
// One JSON object a line, checked against the grammar in one pass and taken apart only at its top level, in place:
// members point into the line, so the original bytes can be written out again untouched. Bytes that are not UTF-8 and
// lone surrogate escapes are let through (texts replace them by U+FFFD later); all else is RFC 8259.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace brim::rows {

enum class JsonKind : uint8_t { null, boolean, number, string, array, object };
const char* json_kind_name(JsonKind kind);  // "a number", for messages

struct JsonMember {
  std::string_view key;    // without quotes; escaped if key_escaped
  std::string_view value;  // as written; strings without their quotes
  JsonKind kind;
  bool key_escaped, value_escaped;
};

struct JsonProblem {
  const char* what = nullptr;  // null: none
  size_t at = 0;               // byte in the line, from 0
};

// Takes apart the object in `line` (white space around it is allowed). `members` is reused.
JsonProblem scan_json_object(std::string_view line, std::vector<JsonMember>& members);

bool json_key_is(const JsonMember& member, std::string_view key);
std::string json_unescape(std::string_view escaped);
void append_json_unescaped(std::string& out, std::string_view escaped);

// A JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD: JSON must be UTF-8.
void append_json_string(std::string& out, std::string_view value);
// The shortest text that reads back as the same float ("0.6369", "1e-05"); null for NaN and infinities.
void append_json_number(std::string& out, float value);
void append_json_number(std::string& out, int64_t value);

}  // namespace brim::rows
