// SPDX-License-Identifier: Apache-2.0
// What Unicode says about a code point, as Hugging Face's tokenizers sees it: it uses several Unicode versions at once,
// so each question below has its own bit (tools/make_unicode_tables.py says which version stands behind which).
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace brim::text {

struct Rewrite;

namespace unicode {

enum class Category : uint8_t {
  Cn,
  Lu,
  Ll,
  Lt,
  Lm,
  Lo,
  Mn,
  Mc,
  Me,
  Nd,
  Nl,
  No,
  Pc,
  Pd,
  Ps,
  Pe,
  Pi,
  Pf,
  Po,
  Sm,
  Sc,
  Sk,
  So,
  Zs,
  Zl,
  Zp,
  Cc,
  Cf,
  Co,
  Cs
};

// Bits of properties(); the low five are the Category.
enum Flag : uint16_t {
  kWhiteSpace = 1 << 5,   // White_Space
  kNumeric = 1 << 6,      // categories Nd, Nl, No
  kPunctuation = 1 << 7,  // category P, or ASCII punctuation: what BERT splits off
  kControl = 1 << 8,      // what BERT's clean_text removes
  kNonspacing = 1 << 9,   // category Mn: what BERT's strip_accents removes
  kCombining = 1 << 10,   // category M: what StripAccents removes
  kWord = 1 << 11,        // \w of tokenizer.json's patterns
  kWordRegex = 1 << 12,   // \w of the Whitespace pre-tokenizer and of single_word
};

// Code points past U+10FFFF have no properties.
uint16_t properties(char32_t c);
inline bool has(char32_t c, uint16_t flags) { return (properties(c) & flags) != 0; }
inline Category category(char32_t c) { return static_cast<Category>(properties(c) & 31); }
inline bool is_white_space(char32_t c) { return has(c, kWhiteSpace); }
inline bool is_letter(Category g) { return g >= Category::Lu && g <= Category::Lo; }
inline bool is_number(Category g) { return g >= Category::Nd && g <= Category::No; }

// What BERT treats as a Chinese character and surrounds with spaces.
bool is_cjk(char32_t c);

// Lower case, code point by code point (no final sigma, no locale). Writes 1 or 2 code points.
int to_lower(char32_t c, char32_t out[2]);

uint8_t combining_class(char32_t c);

enum class Form { nfd, nfkd, nfc, nfkc };

// The full decomposition of c, Hangul included; empty if it stays as it is. `buffer` holds a computed one.
std::span<const char32_t> decompose(char32_t c, bool compatible, char32_t buffer[3]);
// The primary composite of a and b, or 0.
char32_t compose(char32_t a, char32_t b);

// Replaces `out` by the normal form of `valid_utf8`, each code point with its origin. False, and `out` undefined, if
// the decomposition has more than `most` code points.
bool normalize(std::string_view valid_utf8, Form form, std::vector<Rewrite>& out, size_t most = SIZE_MAX);

}  // namespace unicode
}  // namespace brim::text
