// SPDX-License-Identifier: Apache-2.0
#include "text/hf/added_tokens.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/utf8.h"
#include "text/unicode/unicode.h"

namespace brim::text {
namespace {

size_t char_before(std::string_view text, size_t at) {
  do --at;
  while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

bool word_before(std::string_view text, size_t at) {
  return at > 0 && unicode::has(decode_valid(text, char_before(text, at)).value, unicode::kWordRegex);
}

bool word_after(std::string_view text, size_t at) {
  return at < text.size() && unicode::has(decode_valid(text, at).value, unicode::kWordRegex);
}

size_t skip_spaces_back(std::string_view text, size_t at) {
  while (at > 0) {
    const size_t before = char_before(text, at);
    if (!unicode::is_white_space(decode_valid(text, before).value)) break;
    at = before;
  }
  return at;
}

size_t skip_spaces(std::string_view text, size_t at) {
  while (at < text.size()) {
    const CodePoint p = decode_valid(text, at);
    if (!unicode::is_white_space(p.value)) break;
    at += static_cast<size_t>(p.bytes);
  }
  return at;
}

}  // namespace

void AddedTokenMatcher::build(const std::vector<AddedToken>& tokens, const std::vector<std::string>& contents) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!contents[i].empty()) tokens_.push_back({contents[i], tokens[i]});
  }
  std::stable_sort(tokens_.begin(), tokens_.end(), [](const Entry& a, const Entry& b) {
    const auto x = static_cast<unsigned char>(a.content[0]), y = static_cast<unsigned char>(b.content[0]);
    return x != y ? x < y : a.content.size() > b.content.size();
  });
  by_first_.assign(257, 0);
  for (const Entry& e : tokens_) {
    const auto first = static_cast<unsigned char>(e.content[0]);
    if (!starts_[first]) first_bytes_.push_back(e.content[0]);
    starts_[first] = true;
    ++by_first_[first + 1u];
  }
  for (size_t i = 1; i < by_first_.size(); ++i) by_first_[i] += by_first_[i - 1];
}

bool AddedTokenMatcher::may_match(std::string_view text) const {
  if (text.empty()) return false;
  if (first_bytes_.size() <= 4) {
    for (const char c : first_bytes_) {
      if (std::memchr(text.data(), c, text.size()) != nullptr) return true;
    }
    return false;
  }
  return std::any_of(text.begin(), text.end(), [&](char c) { return starts_[static_cast<unsigned char>(c)]; });
}

const AddedTokenMatcher::Entry* AddedTokenMatcher::longest_at(std::string_view text, size_t at) const {
  const auto first = static_cast<unsigned char>(text[at]);
  if (!starts_[first]) return nullptr;
  for (uint32_t i = by_first_[first]; i < by_first_[first + 1u]; ++i) {
    if (text.substr(at).starts_with(tokens_[i].content)) return &tokens_[i];
  }
  return nullptr;
}

void AddedTokenMatcher::split(std::string_view text, std::vector<Stretch>& out) const {
  out.clear();
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const Entry* found = longest_at(text, at);
    if (found == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + found->content.size();
    at = end;
    if (found->token.single_word && (word_before(text, begin) || word_after(text, end))) continue;
    // Spaces already taken by the previous token stay with it.
    if (found->token.lstrip) begin = std::max(skip_spaces_back(text, begin), done);
    if (found->token.rstrip) end = skip_spaces(text, end);
    if (begin > done) out.push_back({-1, done, begin});
    out.push_back({found->token.id, begin, end});
    done = end;
  }
  if (done < text.size()) out.push_back({-1, done, text.size()});
}

}  // namespace brim::text
