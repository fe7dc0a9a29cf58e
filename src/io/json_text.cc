// SPDX-License-Identifier: Apache-2.0
#include "io/json_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

#include "io/quote_text.h"

namespace brim::io {
namespace {

constexpr int kMaxDepth = 64;  // model directories nest only a few levels; recursion elsewhere relies on this bound

}  // namespace

std::string line_and_column(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const size_t line = 1 + static_cast<size_t>(std::count(before.begin(), before.end(), '\n'));
  const size_t newline = before.rfind('\n');
  const size_t column = newline == std::string_view::npos ? before.size() + 1 : before.size() - newline;
  return fmt::format("{}:{}", line, column);
}

std::string json_reason(std::string_view what) {
  // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while parsing …"
  if (const size_t bracket = what.find("] "); what.starts_with('[') && bracket != std::string_view::npos)
    what.remove_prefix(bracket + 2);
  if (const size_t colon = what.find(": "); what.starts_with("parse error") && colon != std::string_view::npos)
    what.remove_prefix(colon + 2);
  const std::string quoted = quote_text(what, 200);
  return quoted.substr(1, quoted.size() - 2);
}

nlohmann::json parse_json(std::string_view text, const std::string& where, ErrorCode code) {
  using nlohmann::json;
  std::vector<std::unordered_set<std::string>> keys;  // one set per open object
  auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) fail(code, "{}: JSON nesting depth exceeds {}", where, kMaxDepth);
    if (event == json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) fail(code, "{}: duplicate key {}; remove one", where, quote_text(key));
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), watch);
  } catch (const json::parse_error& error) {
    const size_t at = error.byte > 0 ? error.byte - 1 : 0;
    fail(code, "{}:{}: not valid JSON: {}", where, line_and_column(text, at), json_reason(error.what()));
  } catch (const json::exception& error) {
    fail(code, "{}: not valid JSON: {}", where, json_reason(error.what()));
  }
}

}  // namespace brim::io
