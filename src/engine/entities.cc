// SPDX-License-Identifier: Apache-2.0
#include "engine/entities.h"

#include <algorithm>

#include "base/utf8.h"

namespace brim {

TagParts split_tag(std::string_view tag) {
  if (tag == "O") return {true, false, tag};
  if (tag.size() > 2 && (tag[0] == 'B' || tag[0] == 'I') && tag[1] == '-') return {false, tag[0] == 'B', tag.substr(2)};
  return {false, false, tag};
}

std::vector<size_t> code_point_starts(std::string_view text) {
  std::vector<size_t> starts;
  starts.reserve(text.size() + 1);
  for (size_t i = 0; i < text.size(); ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) starts.push_back(i);
  starts.push_back(text.size());
  return starts;
}

namespace {

bool is_special(const std::pair<int32_t, int32_t>& offset) { return offset.first == 0 && offset.second == 0; }

// A WordPiece continuation says so itself; elsewhere a token continues the word when no space stands before it.
bool continues_word(std::string_view text, const std::vector<size_t>& at, const Encoding& e, size_t token) {
  if (token == 0 || is_special(e.offsets[token - 1])) return false;
  if (e.tokens[token].rfind("##", 0) == 0) return true;
  const auto [begin, end] = e.offsets[token];
  if (begin != e.offsets[token - 1].second) return false;
  const bool wordpiece =
      std::any_of(e.tokens.begin(), e.tokens.end(), [](const std::string& t) { return t.rfind("##", 0) == 0; });
  if (wordpiece) return false;
  return begin > 0 && text[at[static_cast<size_t>(begin)]] != ' ' && text[at[static_cast<size_t>(begin) - 1]] != ' ' &&
         e.tokens[token].rfind("\xC4\xA0", 0) != 0 && e.tokens[token].rfind("\xE2\x96\x81", 0) != 0;
}

}  // namespace

std::vector<size_t> word_starts(std::string_view text, const Encoding& e) {
  const auto at = code_point_starts(text);
  std::vector<size_t> starts;
  for (size_t i = 0; i < e.offsets.size(); ++i)
    if (!is_special(e.offsets[i]) && !continues_word(text, at, e, i)) starts.push_back(i);
  return starts;
}

std::vector<Entity> group_entities(std::string_view raw, const Encoding& e, const float* scores,
                                   const std::vector<std::string>& labels) {
  const std::string text = replace_invalid_utf8(raw);
  const auto at = code_point_starts(text);
  const size_t K = labels.size();
  std::vector<Entity> found;
  std::vector<int> words;  // of each entity, for the mean score
  bool open = false;
  const auto starts = word_starts(text, e);
  for (size_t w = 0; w < starts.size(); ++w) {
    const size_t token = starts[w];
    size_t last = w + 1 < starts.size() ? starts[w + 1] - 1 : e.offsets.size() - 1;
    while (last > token && is_special(e.offsets[last])) --last;
    const float* row = scores + token * K;
    const auto best = static_cast<size_t>(std::max_element(row, row + K) - row);
    const TagParts tag = split_tag(labels[best]);
    if (tag.outside) {
      open = false;
      continue;
    }
    const int32_t begin = e.offsets[token].first, end = e.offsets[last].second;
    if (open && !tag.begin && found.back().group == tag.type) {
      found.back().score += row[best];
      found.back().end = end;
      ++words.back();
    } else {
      found.push_back({std::string(tag.type), "", row[best], begin, end});
      words.push_back(1);
    }
    open = true;
  }
  for (size_t i = 0; i < found.size(); ++i) {
    Entity& f = found[i];
    f.score /= static_cast<float>(words[i]);
    f.word = text.substr(at[static_cast<size_t>(f.start)],
                         at[static_cast<size_t>(f.end)] - at[static_cast<size_t>(f.start)]);
  }
  return found;
}

}  // namespace brim
