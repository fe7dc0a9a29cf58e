// SPDX-License-Identifier: Apache-2.0
#include "text/unicode/unicode.h"

#include <algorithm>

#include "base/utf8.h"
#include "text/pipeline.h"

namespace brim::text::unicode {
namespace {

#include "text/unicode/unicode_tables.inc"

template <class Stage1, class Stage2>
auto lookup(const Stage1& stage1, const Stage2& stage2, char32_t c) {
  return c < 0x110000 ? stage2[stage1[c / kBlock] * kBlock + c % kBlock] : decltype(stage2[0] + 0){0};
}

// Hangul syllables are composed by arithmetic (Unicode 15.0, section 3.12).
constexpr char32_t kSBase = 0xAC00, kLBase = 0x1100, kVBase = 0x1161, kTBase = 0x11A7;
constexpr char32_t kLCount = 19, kVCount = 21, kTCount = 28, kSCount = kLCount * kVCount * kTCount;

struct Decomposed {
  uint8_t ccc;
  char32_t c;
  int32_t change;
};

// Canonical ordering: runs of nonzero combining class are sorted by class; the sort is stable.
void sort_marks(std::vector<Decomposed>& chars) {
  const auto less = [](const Decomposed& a, const Decomposed& b) { return a.ccc < b.ccc; };
  for (size_t i = 0; i < chars.size();) {
    if (chars[i].ccc == 0) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < chars.size() && chars[end].ccc != 0) ++end;
    std::stable_sort(chars.begin() + static_cast<ptrdiff_t>(i), chars.begin() + static_cast<ptrdiff_t>(end), less);
    i = end;
  }
}

// Composes decomposed code points. A composite represents all code points it absorbed: changes add up, minus one for
// each.
void recompose(const std::vector<Decomposed>& chars, std::vector<Rewrite>& out) {
  std::vector<Rewrite> blocked;  // marks after the starter that were not composed
  Rewrite starter{0, 0};
  bool have_starter = false;
  int last_ccc = -1;
  auto flush = [&] {
    if (have_starter) out.push_back(starter);
    out.insert(out.end(), blocked.begin(), blocked.end());
    blocked.clear();
  };
  for (const Decomposed& d : chars) {
    if (!have_starter) {
      if (d.ccc != 0) {
        out.push_back({d.c, d.change});
      } else {
        starter = {d.c, d.change};
        have_starter = true;
      }
      continue;
    }
    if (last_ccc < d.ccc) {
      if (const char32_t joined = compose(starter.c, d.c)) {
        starter = {joined, starter.change + d.change - 1};
        continue;
      }
    }
    if (d.ccc == 0) {
      flush();
      starter = {d.c, d.change};
      last_ccc = -1;
    } else {
      blocked.push_back({d.c, d.change});
      last_ccc = d.ccc;
    }
  }
  flush();
}

}  // namespace

uint16_t properties(char32_t c) { return static_cast<uint16_t>(lookup(kPropertiesStage1, kPropertiesStage2, c)); }

uint8_t combining_class(char32_t c) { return static_cast<uint8_t>(lookup(kCccStage1, kCccStage2, c)); }

bool is_cjk(char32_t c) {
  if (c < 0x3400) return false;
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0xF900 && c <= 0xFAFF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0x2F800 && c <= 0x2FA1F);
}

int to_lower(char32_t c, char32_t out[2]) {
  if (c == 0x130) {  // İ is the only code point that becomes two
    out[0] = 'i';
    out[1] = 0x307;
    return 2;
  }
  out[0] = static_cast<char32_t>(static_cast<int32_t>(c) + kLowerDeltas[lookup(kLowerStage1, kLowerStage2, c)]);
  return 1;
}

std::span<const char32_t> decompose(char32_t c, bool compatible, char32_t buffer[3]) {
  if (c >= kSBase && c < kSBase + kSCount) {
    const char32_t s = c - kSBase, t = s % kTCount;
    buffer[0] = kLBase + s / (kVCount * kTCount);
    buffer[1] = kVBase + s % (kVCount * kTCount) / kTCount;
    buffer[2] = kTBase + t;
    return {buffer, t == 0 ? size_t{2} : size_t{3}};
  }
  const uint16_t* record = kDecompositionRecords + 4 * lookup(kDecompositionStage1, kDecompositionStage2, c);
  if (compatible) record += 2;
  return {kDecompositionPool + record[0], record[1]};
}

char32_t compose(char32_t a, char32_t b) {
  if (a >= kLBase && a < kLBase + kLCount && b >= kVBase && b < kVBase + kVCount) {
    return kSBase + ((a - kLBase) * kVCount + (b - kVBase)) * kTCount;
  }
  if (a >= kSBase && a < kSBase + kSCount && (a - kSBase) % kTCount == 0 && b > kTBase && b < kTBase + kTCount) {
    return a + (b - kTBase);
  }
  size_t low = 0, high = std::size(kCompositionPairs) / 3;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    const char32_t* pair = kCompositionPairs + 3 * middle;
    if (pair[0] == a && pair[1] == b) return pair[2];
    if (pair[0] < a || (pair[0] == a && pair[1] < b)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return 0;
}

bool normalize(std::string_view text, Form form, std::vector<Rewrite>& out, size_t most) {
  const bool compatible = form == Form::nfkd || form == Form::nfkc;
  const bool composed = form == Form::nfc || form == Form::nfkc;
  std::vector<Decomposed> chars;
  chars.reserve(text.size());
  char32_t buffer[3];
  for (size_t i = 0; i < text.size();) {
    const CodePoint p = decode_valid(text, i);
    i += static_cast<size_t>(p.bytes);
    const auto parts = decompose(p.value, compatible, buffer);
    if (parts.empty()) {
      chars.push_back({combining_class(p.value), p.value, 0});
    } else {
      for (size_t k = 0; k < parts.size(); ++k) chars.push_back({combining_class(parts[k]), parts[k], k == 0 ? 0 : 1});
    }
    if (chars.size() > most) return false;
  }
  sort_marks(chars);
  out.clear();
  out.reserve(chars.size());
  if (composed) {
    recompose(chars, out);
  } else {
    for (const Decomposed& d : chars) out.push_back({d.c, d.change});
  }
  return true;
}

}  // namespace brim::text::unicode
