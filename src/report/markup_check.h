// SPDX-License-Identifier: Apache-2.0
// For tests: checks that markup is well formed (tags nest and close, attributes are quoted, no stray < or &) and counts
// its tags.
#pragma once
#include <cctype>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace brim::report {

struct MarkupCheck {
  std::string problem;              // empty if well formed
  std::map<std::string, int> tags;  // how many of each
  std::string text;                 // between tags, entities untouched
};

inline MarkupCheck check_markup(std::string_view m) {
  MarkupCheck r;
  std::vector<std::string> open;
  const auto bad = [&](const std::string& what, size_t at) {
    if (r.problem.empty()) r.problem = what + " near: " + std::string(m.substr(at > 20 ? at - 20 : 0, 80));
  };
  const auto check_entity = [&](size_t at) {
    const size_t end = m.find(';', at);
    if (end == std::string_view::npos || end - at > 8) bad("stray &", at);
  };
  for (size_t i = 0; i < m.size() && r.problem.empty();) {
    const char c = m[i];
    if (c == '&') check_entity(i);
    if (c != '<') {
      if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') bad("control character", i);
      r.text += c;
      ++i;
      continue;
    }
    if (m.substr(i, 2) == "<!") {
      i = m.find('>', i) + 1;
      continue;
    }
    const bool closing = m.substr(i, 2) == "</";
    size_t j = i + 1 + closing;
    std::string name;
    while (j < m.size() && (std::isalnum(static_cast<unsigned char>(m[j])))) name += m[j++];
    if (name.empty()) bad("stray <", i);
    bool self = false;
    while (j < m.size() && m[j] != '>') {
      if (m[j] == '"') {  // an attribute value
        for (++j; j < m.size() && m[j] != '"'; ++j) {
          if (m[j] == '<') bad("< in an attribute", j);
          if (m[j] == '&') check_entity(j);
        }
        if (j == m.size()) bad("unclosed quote", i);
      }
      self = j < m.size() && m[j] == '/';
      if (m[j] == '<') bad("< in a tag", j);
      ++j;
    }
    if (j >= m.size()) bad("unclosed tag", i);
    i = j + 1;
    if (closing) {
      if (open.empty() || open.back() != name)
        bad("</" + name + "> closes <" + (open.empty() ? "nothing" : open.back()) + ">", i);
      else
        open.pop_back();
      continue;
    }
    ++r.tags[name];
    if (self) continue;
    open.push_back(name);
    if (name == "script" || name == "style") {  // their contents are not markup
      const size_t end = m.find("</" + name, i);
      if (end == std::string_view::npos)
        bad("unclosed " + name, i);
      else
        i = end;
    }
  }
  if (r.problem.empty() && !open.empty()) r.problem = "never closed: " + open.back();
  return r;
}

}  // namespace brim::report
