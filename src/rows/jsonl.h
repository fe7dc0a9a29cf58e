// SPDX-License-Identifier: Apache-2.0
// Parses one JSON object per line: validates the grammar in one pass and splits only the top level, in place. Members
// point into the line, so the original bytes can be written out unchanged. Bytes that are not UTF-8 and lone surrogate
// escapes are accepted (later replaced by U+FFFD); everything else follows RFC 8259.
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
  const char* what = nullptr;  // null if there is no problem
  size_t at = 0;               // byte offset in the line, from 0
};

// Splits the object in `line` (surrounding white space is allowed). `members` is reused.
JsonProblem scan_json_object(std::string_view line, std::vector<JsonMember>& members);

bool json_key_is(const JsonMember& member, std::string_view key);
std::string json_unescape(std::string_view escaped);
void append_json_unescaped(std::string& out, std::string_view escaped);

// Appends a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD, because JSON must be UTF-8.
void append_json_string(std::string& out, std::string_view value);
// Appends the shortest text that reads back as the same float ("0.6369", "1e-05"); null for NaN and infinities.
void append_json_number(std::string& out, float value);
void append_json_number(std::string& out, int64_t value);

}  // namespace brim::rows
