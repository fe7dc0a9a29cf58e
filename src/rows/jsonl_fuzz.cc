// SPDX-License-Identifier: Apache-2.0
// Fuzz entry: compares parsing arbitrary bytes as a JSON line with nlohmann's parser. Both must accept or reject the
// input, and strings must be equal. Differences are allowed where this parser is lenient by design (UTF-8, lone
// surrogates) or bounded (depth, float range).
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "base/utf8.h"
#include "rows/jsonl.h"

namespace brim::rows::jsonl_fuzz {

// nlohmann skips a byte order mark and treats a NUL as the end.
inline bool comparable(const std::string& line) {
  return is_valid_utf8(line) && line.rfind("\xEF\xBB", 0) != 0 && line.find('\0') == std::string::npos;
}

// Verdict of nlohmann: 1 for an object, 0 for an error, -1 if not comparable.
inline int oracle(const std::string& line, nlohmann::json& value) {
  try {
    value = nlohmann::json::parse(line);
    return value.is_object() ? 1 : 0;
  } catch (const nlohmann::json::out_of_range&) {
    return -1;  // 1e999 is valid JSON
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
  nlohmann::json last;  // the last of several equal keys wins
  for (const JsonMember& member : members) {
    const std::string key = json_unescape(member.key);
    if (!json_key_is(member, key) || !expected.contains(key)) std::abort();
    std::string text;
    if (member.kind == JsonKind::string) {
      append_json_string(text, json_unescape(member.value));  // decoding and encoding must round-trip
    } else {
      text = member.value;
    }
    last[key] = nlohmann::json::parse(text);
  }
  if (members.empty() ? !expected.empty() : last != expected) std::abort();
  return 0;
}
