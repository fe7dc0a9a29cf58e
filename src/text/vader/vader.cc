// SPDX-License-Identifier: Apache-2.0
// The VADER rules, applied to the tokens of a text. Only lexicon words are scored; others are counted. Sums use the
// reference's order and plain double arithmetic (this file is compiled without multiply-add contraction), so results
// match to the last bit before rounding.
#include "text/vader/vader.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <queue>
#include <unordered_map>
#include <vector>

#include "text/vader/vader_tokens.h"

namespace brim::text {
namespace {

using namespace vader;

constexpr double kBoost = 0.293;
constexpr double kCapitals = 0.733;
constexpr double kNegate = -0.74;
constexpr double kThreshold = 0.05;

bool so_or_this(const Token& word) { return word.named() == kWordSo || word.named() == kWordThis; }

// Amount an intensifier adds to the valence of a word that follows it.
double booster_step(const Token& word, double valence, bool mixed_case) {
  if (!word.is(kBooster | kDampener)) return 0;
  double step = word.is(kBooster) ? kBoost : -kBoost;
  if (valence < 0) step = -step;
  if (word.is(kUpper) && mixed_case) step += valence > 0 ? kCapitals : -kCapitals;
  return step;
}

// word[0] is the scored word; distance is 1, 2 or 3 and word[-distance] exists.
double negation_factor(const Token* word, int distance) {
  if (distance == 2) {
    if (word[-2].named() == kWordNever && so_or_this(word[-1])) return 1.25;
    if (word[-2].named() == kWordWithout && word[-1].named() == kWordDoubt) return 1;
  } else if (distance == 3) {
    // "so" or "this" directly before the word boosts it with or without "never": the operator precedence in the
    // reference's and/or expression.
    if ((word[-3].named() == kWordNever && so_or_this(word[-2])) || so_or_this(word[-1])) return 1.25;
    if (word[-3].named() == kWordWithout && (word[-2].named() == kWordDoubt || word[-1].named() == kWordDoubt))
      return 1;
  }
  return word[-distance].is(kNegation) ? kNegate : 1;
}

struct Idiom {
  uint8_t words[3];  // the third is 0 in two-word idioms
  double valence;
};
constexpr Idiom kIdioms[] = {
    {{kWordThe, kWordShit}, 3},         {{kWordThe, kWordBomb}, 3},        {{kWordBad, kWordAss}, 1.5},
    {{kWordBus, kWordStop}, 0},         {{kWordYeah, kWordRight}, -2},     {{kWordKiss, kWordOf, kWordDeath}, -1.5},
    {{kWordTo, kWordDie, kWordFor}, 3}, {{kWordBeating, kWordHeart}, 3.5},
};

const Idiom* find_idiom(const Token* first, int length) {
  for (const Idiom& idiom : kIdioms) {
    const bool three = idiom.words[2] != kWordNone;
    if (three != (length == 3) || idiom.words[0] != first[0].named() || idiom.words[1] != first[1].named()) continue;
    if (!three || idiom.words[2] == first[2].named()) return &idiom;
  }
  return nullptr;
}

bool two_word_dampener(const Token* first) {
  return (first[1].named() == kWordOf && (first[0].named() == kWordKind || first[0].named() == kWordSort)) ||
         (first[0].named() == kWordJust && first[1].named() == kWordEnough);
}

// Idioms that contain the word or directly precede it replace its valence; two-word dampeners lower it.
double apply_idioms(const Token* word, double valence) {
  uint32_t near = 0;
  for (int i = -3; i <= 2; ++i) near |= word[i].bits;
  if (!(near & kIdiomKey)) return valence;
  constexpr struct { int first, length; } kBackward[] = {{-1, 2}, {-2, 3}, {-2, 2}, {-3, 3}, {-3, 2}};
  for (const auto& place : kBackward) {
    if (const Idiom* idiom = find_idiom(word + place.first, place.length)) {
      valence = idiom->valence;
      break;
    }
  }
  if (const Idiom* idiom = find_idiom(word, 2)) valence = idiom->valence;
  if (const Idiom* idiom = find_idiom(word, 3)) valence = idiom->valence;
  if (two_word_dampener(word - 3)) valence += -kBoost;
  if (two_word_dampener(word - 2)) valence += -kBoost;
  return valence;
}

// Valence of a lexicon word with `before` words before it in the text.
double word_valence(const Token* word, size_t before, bool mixed_case) {
  const double rated = word->valence() / 10.0;
  double valence = rated;
  if (word->named() == kWordNo && word[1].is(kLexicon)) valence = 0;
  if (word[-1].named() == kWordNo || word[-2].named() == kWordNo ||
      (word[-3].named() == kWordNo && (word[-1].named() == kWordOr || word[-1].named() == kWordNor))) {
    valence = rated * kNegate;
  }
  if (word->is(kUpper) && mixed_case) valence += valence > 0 ? kCapitals : -kCapitals;
  constexpr double kFade[] = {1, 1, 0.95, 0.9};
  for (int distance = 1; distance <= 3 && before >= static_cast<size_t>(distance); ++distance) {
    const Token& earlier = word[-distance];
    if (earlier.is(kLexicon)) continue;
    valence += booster_step(earlier, valence, mixed_case) * kFade[distance];
    valence *= negation_factor(word, distance);
    if (distance == 3) valence = apply_idioms(word, valence);
  }
  if (word[-1].named() == kWordLeast && word[-2].named() != kWordAt && word[-2].named() != kWordVery)
    valence *= kNegate;
  return valence;
}

struct Sentiment {
  size_t position;  // word index in the text
  double value;     // never 0
};

double but_factor(size_t position, size_t but) { return position < but ? 0.5 : 1.5; }

// Words before "but" are scaled by 0.5, those after it by 1.5. The reference finds each word by searching for the first
// equal value in the list it is modifying, so equal values are scaled twice or not at all: at step k, the value v
// changes the first word that currently has value v. Here each value keeps a heap of its positions among the words
// already visited (the position found is never ahead).
void apply_but(std::vector<Sentiment>& sentiments, size_t but) {
  constexpr size_t kScanLimit = 48;
  if (sentiments.size() <= kScanLimit) {
    for (size_t k = 0; k < sentiments.size(); ++k) {
      size_t first = 0;
      while (sentiments[first].value != sentiments[k].value) ++first;
      sentiments[first].value *= but_factor(sentiments[first].position, but);
    }
    return;
  }
  std::unordered_map<uint64_t, std::priority_queue<size_t, std::vector<size_t>, std::greater<>>> places;
  for (size_t k = 0; k < sentiments.size(); ++k) {
    auto& same = places[std::bit_cast<uint64_t>(sentiments[k].value)];
    same.push(k);
    const size_t first = same.top();
    same.pop();
    double& value = sentiments[first].value;
    value *= but_factor(sentiments[first].position, but);
    places[std::bit_cast<uint64_t>(value)].push(first);
  }
}

int count_up_to(std::string_view text, char wanted, int limit) {
  int count = 0;
  for (size_t at = text.find(wanted); at != text.npos && count < limit; at = text.find(wanted, at + 1)) ++count;
  return count;
}

double punctuation_emphasis(std::string_view text) {
  const int questions = count_up_to(text, '?', 4);
  const double question_part = questions < 2 ? 0 : questions <= 3 ? questions * 0.18 : 0.96;
  return count_up_to(text, '!', 4) * 0.292 + question_part;
}

// Python's round(value, digits) for scale = 10^digits and |value| <= 1: based on the exact decimal expansion, ties to
// even. The product's rounding error matters only if it lands on a tie, and fma computes it exactly.
double round_to(double value, double scale) {
  const double magnitude = std::fabs(value);
  const double product = magnitude * scale;
  double whole = static_cast<double>(static_cast<int64_t>(product));
  double over = product - (whole + 0.5);
  if (over == 0) over = std::fma(magnitude, scale, -product);
  if (over > 0 || (over == 0 && static_cast<int64_t>(whole) % 2 != 0)) ++whole;
  return std::copysign(whole / scale, value);
}

VaderScores final_scores(const std::vector<Sentiment>& sentiments, size_t word_count, double emphasis) {
  double sum = 0, positive = 0, negative = 0;
  size_t neutral = word_count - sentiments.size();
  for (const Sentiment& sentiment : sentiments) {
    sum += sentiment.value;
    if (sentiment.value > 0) positive += sentiment.value + 1;  // a neutral word counts 1, so a rated one counts 1 more
    if (sentiment.value < 0) negative += sentiment.value - 1;
    if (sentiment.value == 0) ++neutral;
  }
  if (sum > 0) {
    sum += emphasis;
  } else if (sum < 0) {
    sum -= emphasis;
  }
  const double compound = sum / std::sqrt(sum * sum + 15);
  if (positive > std::fabs(negative)) {
    positive += emphasis;
  } else if (positive < std::fabs(negative)) {
    negative -= emphasis;
  }
  const double total = positive + std::fabs(negative) + static_cast<double>(neutral);
  return {round_to(std::fabs(negative / total), 1000), round_to(static_cast<double>(neutral) / total, 1000),
          round_to(positive / total, 1000), round_to(std::clamp(compound, -1.0, 1.0), 10000)};
}

}  // namespace

VaderScores vader_scores(std::string_view utf8) {
  thread_local TokenReader tokens;
  thread_local std::vector<Sentiment> sentiments;
  tokens.read(utf8);
  const Token* const words = tokens.words();
  const size_t count = tokens.count();
  sentiments.clear();
  if (tokens.any(kLexicon)) {
    const bool mixed_case = tokens.upper_count() > 0 && tokens.upper_count() < count;
    for (size_t i = 0; i < count; ++i) {
      if (!words[i].is(kLexicon) || words[i].is(kBooster | kDampener)) continue;
      if (words[i].named() == kWordKind && words[i + 1].named() == kWordOf) continue;
      const double valence = word_valence(words + i, i, mixed_case);
      if (valence != 0) sentiments.push_back({i, valence});
    }
    if (tokens.any(kBut)) {
      const auto is_but = [](const Token& token) { return token.is(kBut); };
      apply_but(sentiments, std::find_if(words, words + count, is_but) - words);
    }
  }
  VaderScores scores = {0, count > 0 ? 1.0 : 0.0, 0, 0};
  if (!sentiments.empty()) scores = final_scores(sentiments, count, punctuation_emphasis(tokens.described_text()));
  tokens.give_back_large_buffers();
  if (sentiments.capacity() > 1 << 14) sentiments = {};
  return scores;
}

const char* vader_label(double compound) {
  return compound >= kThreshold ? "positive" : compound <= -kThreshold ? "negative" : "neutral";
}

VaderLabelScores vader_label_scores(double compound) {
  const double strength = std::min(std::fabs(compound), 1.0);
  const double side =
      strength < kThreshold ? 0.5 * strength / kThreshold : 0.5 + 0.5 * (strength - kThreshold) / (1 - kThreshold);
  return {compound < 0 ? side : 0, 1 - side, compound > 0 ? side : 0};
}

}  // namespace brim::text
