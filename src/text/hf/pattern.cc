// SPDX-License-Identifier: Apache-2.0
#include "text/hf/pattern.h"

#include "base/utf8.h"
#include "text/json_reader.h"

namespace brim::text {

void Pattern::for_each_match(std::string_view text, const std::function<void(size_t, size_t)>& found) const {
  if (!regex_) {
    if (literal_.empty()) return;
    for (size_t at = 0; (at = text.find(literal_, at)) != std::string_view::npos; at += literal_.size()) {
      found(at, at + literal_.size());
    }
    return;
  }
  // An empty match is reported only if no match ended at the same position; the search then continues one code point
  // later.
  size_t at = 0, last_end = SIZE_MAX;
  while (at <= text.size()) {
    const auto match = regex_->search(text, at);
    if (!match) return;
    const bool empty = match->begin == match->end;
    if (!empty || match->end != last_end) {
      found(match->begin, match->end);
      last_end = match->end;
    }
    at = match->end;
    if (empty) at += at < text.size() ? static_cast<size_t>(decode_valid(text, at).bytes) : 1;
  }
}

Pattern read_pattern(const JsonValue& json) {
  if (json.has("String")) return Pattern(json.at("String").as_string());
  if (!json.has("Regex")) json.fail("must be {\"String\": …} or {\"Regex\": …}");
  const JsonValue value = json.at("Regex");
  const std::string source = value.as_string();
  auto regex = Regex::compile(source);
  if (!regex) value.fail(std::string("unsupported pattern: ") + regex.error().what());
  return Pattern(std::move(*regex), source);
}

}  // namespace brim::text
