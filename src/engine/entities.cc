// SPDX-License-Identifier: Apache-2.0
#include "engine/entities.h"

#include <algorithm>

#include "base/utf8.h"
#include "engine/label.h"
#include "text/unicode/unicode.h"

namespace brim::engine {

TagParts split_tag(std::string_view tag) {
  if (tag == "O") return {true, false, tag};
  if (tag.size() > 2 && tag[1] == '-') {
    if (std::string_view("BSU").find(tag[0]) != std::string_view::npos) return {false, true, tag.substr(2)};
    if (std::string_view("IEL").find(tag[0]) != std::string_view::npos) return {false, false, tag.substr(2)};
  }
  return {false, false, tag};
}

namespace {

std::u32string code_points(std::string_view text) {
  std::u32string out;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = decode_valid(text, i);
    out += c.value;
    i += static_cast<size_t>(c.bytes);
  }
  return out;
}

bool is_part_of_words(char32_t c) {
  const text::unicode::Category g = text::unicode::category(c);
  return text::unicode::is_letter(g) || text::unicode::is_number(g) || text::unicode::has(c, text::unicode::kCombining);
}

// A token that contains more than white space.
struct Piece {
  EncodedWord word;
  bool continues = false;  // has the ## prefix
};

std::vector<Piece> pieces_of(const std::u32string& text, const text::Encoding& e) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < e.offsets.size(); ++i) {
    auto [begin, end] = e.offsets[i];
    while (begin < end && text::unicode::is_white_space(text[static_cast<size_t>(begin)])) ++begin;
    while (begin < end && text::unicode::is_white_space(text[static_cast<size_t>(end) - 1])) --end;
    if (begin < end) pieces.push_back({{i, begin, end, i}, e.tokens[i].starts_with("##")});
  }
  return pieces;
}

// For tokenizers that only mark preceding spaces. Byte pieces of one character overlap and stay together.
std::vector<bool> starts_by_spaces(const std::u32string& text, const std::vector<Piece>& pieces) {
  const auto letter = [&](size_t p) {
    const auto [token, begin, end, last] = pieces[p].word;
    return std::any_of(text.begin() + begin, text.begin() + end, is_part_of_words);
  };
  std::vector<bool> starts(pieces.size(), false);
  for (size_t first = 0, next; first < pieces.size(); first = next) {
    for (next = first + 1; next < pieces.size() && pieces[next].word.begin <= pieces[next - 1].word.end;) ++next;
    size_t inner = first, inner_end = next;
    while (inner < next && !letter(inner)) ++inner;
    while (inner_end > inner && !letter(inner_end - 1)) --inner_end;
    for (size_t p = first; p < next; ++p) {
      const bool overlaps = p > first && pieces[p].word.begin < pieces[p - 1].word.end;
      const bool chinese = p > first && (text::unicode::is_cjk(text[static_cast<size_t>(pieces[p].word.begin)]) ||
                                         text::unicode::is_cjk(text[static_cast<size_t>(pieces[p - 1].word.end) - 1]));
      starts[p] = !overlaps && (p <= inner || p >= inner_end || chinese);
    }
  }
  return starts;
}

// Removes punctuation at the edges of a word that is part of its tokens ("(Lon" "don").
void trim_edges(const std::u32string& text, EncodedWord& word) {
  const auto begin = text.begin() + word.begin, end = text.begin() + word.end;
  const auto first = std::find_if(begin, end, is_part_of_words);
  if (first == end) return;  // only punctuation
  word.begin += static_cast<int32_t>(first - begin);
  while (!is_part_of_words(text[static_cast<size_t>(word.end) - 1])) --word.end;
}

std::vector<EncodedWord> words_of(const std::u32string& text, const text::Encoding& e,
                                  const std::string& tokenizer_kind) {
  const std::vector<Piece> pieces = pieces_of(text, e);
  const bool marked = tokenizer_kind == "wordpiece";
  std::vector<bool> starts;
  if (marked)
    for (const Piece& p : pieces) starts.push_back(!p.continues);
  else
    starts = starts_by_spaces(text, pieces);
  std::vector<EncodedWord> words;
  for (size_t p = 0; p < pieces.size(); ++p) {
    if (starts[p] || words.empty()) {
      words.push_back(pieces[p].word);
    } else {
      words.back().end = std::max(words.back().end, pieces[p].word.end);
      words.back().last = pieces[p].word.last;
    }
  }
  if (!marked)
    for (EncodedWord& word : words) trim_edges(text, word);
  return words;
}

// Scores that determine a word's tag; stored in `mean` if they combine several tokens.
const float* deciding_scores(const EncodedWord& word, const float* scores, size_t width, Aggregation aggregation,
                             std::vector<float>& mean) {
  const float* row = scores + word.token * width;
  const auto surest = [&](const float* of) { return *std::max_element(of, of + width); };
  if (aggregation == Aggregation::max) {
    for (size_t token = word.token + 1; token <= word.last; ++token)
      if (surest(scores + token * width) > surest(row)) row = scores + token * width;
  } else if (aggregation == Aggregation::average && word.last > word.token) {
    mean.assign(width, 0);
    for (size_t token = word.token; token <= word.last; ++token)
      for (size_t k = 0; k < width; ++k) mean[k] += scores[token * width + k];
    for (float& value : mean) value /= static_cast<float>(word.last - word.token + 1);
    row = mean.data();
  }
  return row;
}

}  // namespace

std::vector<EncodedWord> encoded_words(std::string_view text, const text::Encoding& e,
                                       const std::string& tokenizer_kind) {
  return words_of(code_points(text), e, tokenizer_kind);
}

std::vector<Entity> group_entities(std::string_view raw, const text::Encoding& e, const std::string& tokenizer_kind,
                                   const float* scores, const std::vector<std::string>& labels, Aggregation aggregation,
                                   bool outside) {
  const std::u32string text = code_points(replace_invalid_utf8(raw));
  const size_t K = labels.size();
  std::vector<Entity> found;
  if (aggregation == Aggregation::none) {
    for (const Piece& piece : pieces_of(text, e)) {
      const EncodedWord& at = piece.word;
      const Choice choice = choose_label({scores + at.token * K, K});
      const std::string& tag = labels[static_cast<size_t>(choice.label)];
      if (split_tag(tag).outside && !outside) continue;
      found.push_back({tag, e.tokens[at.token], choice.score, at.begin, at.end, static_cast<int32_t>(at.token)});
    }
    return found;
  }
  std::vector<int> words;  // words per entity, for the mean score
  bool open = false;
  std::vector<EncodedWord> all;
  if (aggregation == Aggregation::simple)
    for (const Piece& piece : pieces_of(text, e)) all.push_back(piece.word);
  else
    all = words_of(text, e, tokenizer_kind);
  std::vector<float> mean;
  for (const EncodedWord& word : all) {
    const float* row = deciding_scores(word, scores, K, aggregation, mean);
    const auto best = static_cast<size_t>(std::max_element(row, row + K) - row);
    const TagParts tag = split_tag(labels[best]);
    if (tag.outside && !outside) {
      open = false;
      continue;
    }
    if (open && !tag.begin && found.back().group == tag.type) {
      found.back().score += row[best];
      found.back().end = word.end;
      ++words.back();
    } else {
      found.push_back({std::string(tag.type), "", row[best], word.begin, word.end});
      words.push_back(1);
    }
    open = true;
  }
  for (size_t i = 0; i < found.size(); ++i) {
    Entity& f = found[i];
    f.score /= static_cast<float>(words[i]);
    for (const char32_t c :
         std::u32string_view(text).substr(static_cast<size_t>(f.start), static_cast<size_t>(f.end - f.start)))
      append_utf8(f.word, c);
  }
  return found;
}

}  // namespace brim::engine
