// SPDX-License-Identifier: Apache-2.0
// Fuzz entry: any bytes as a JSON line, against nlohmann's parser: both take it or neither does, and strings mean the
// same. They may differ where we are lenient on purpose (UTF-8, half surrogates) or bounded (depth, a float's range).
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "base/utf8.h"
#include "rows/jsonl.h"

namespace brim::rows::jsonl_fuzz {

// nlohmann skips a byte order mark and takes a NUL for the end.
inline bool comparable(const std::string& line) {
  return is_valid_utf8(line) && line.rfind("\xEF\xBB", 0) != 0 && line.find('\0') == std::string::npos;
}

// What nlohmann says: 1 an object, 0 not, -1 no verdict to compare with.
inline int oracle(const std::string& line, nlohmann::json& value) {
  try {
    value = nlohmann::json::parse(line);
    return value.is_object() ? 1 : 0;
  } catch (const nlohmann::json::out_of_range&) {
    return -1;  // 1e999 is grammatical
  } catch (const nlohmann::json::exception& error) {
    return std::string(error.what()).find("surrogate") != std::string::npos ? -1 : 0;
  }
}

}  // namespace brim::rows::jsonl_fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace brim;
  using namespace brim::rows;
  const std::string line(reinterpret_cast<const char*>(data), size);
  std::vector<JsonMember> members;
  const JsonProblem problem = scan_json_object(line, members);
  if (problem.what != nullptr && problem.at > size) std::abort();
  std::string all;
  for (const JsonMember& member : members)
    if (problem.what == nullptr && member.value_escaped) append_json_unescaped(all, member.value);
  if (!jsonl_fuzz::comparable(line)) return 0;
  nlohmann::json expected;
  const int verdict = jsonl_fuzz::oracle(line, expected);
  if (verdict < 0) return 0;
  if (problem.what != nullptr) {
    const bool deep = std::string(problem.what).find("deep") != std::string::npos;
    if (verdict == 1 && !deep) std::abort();
    return 0;
  }
  if (verdict != 1) std::abort();
  nlohmann::json last;  // of equal keys the last counts
  for (const JsonMember& member : members) {
    const std::string key = json_unescape(member.key);
    if (!json_key_is(member, key) || !expected.contains(key)) std::abort();
    std::string text;
    if (member.kind == JsonKind::string) {
      append_json_string(text, json_unescape(member.value));  // what we decode and write again means the same
    } else {
      text = member.value;
    }
    last[key] = nlohmann::json::parse(text);
  }
  if (members.empty() ? !expected.empty() : last != expected) std::abort();
  return 0;
}
