// SPDX-License-Identifier: Apache-2.0
// Unicode properties as used by Hugging Face's tokenizers, which mix several Unicode versions: each query below has its
// own bit (tools/make_unicode_tables.py lists the version for each).
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
  kPunctuation = 1 << 7,  // category P, or ASCII punctuation: split off by BERT
  kControl = 1 << 8,      // removed by BERT's clean_text
  kNonspacing = 1 << 9,   // category Mn: removed by BERT's strip_accents
  kCombining = 1 << 10,   // category M: removed by StripAccents
  kWord = 1 << 11,        // \w in tokenizer.json patterns
  kWordRegex = 1 << 12,   // \w in the Whitespace pre-tokenizer and for single_word
};

// Code points past U+10FFFF have no properties.
uint16_t properties(char32_t c);
inline bool has(char32_t c, uint16_t flags) { return (properties(c) & flags) != 0; }
inline Category category(char32_t c) { return static_cast<Category>(properties(c) & 31); }
inline bool is_white_space(char32_t c) { return has(c, kWhiteSpace); }
inline bool is_letter(Category g) { return g >= Category::Lu && g <= Category::Lo; }
inline bool is_number(Category g) { return g >= Category::Nd && g <= Category::No; }

// Characters that BERT treats as Chinese and surrounds with spaces.
bool is_cjk(char32_t c);

// Lowercases one code point (no final sigma, no locale). Writes 1 or 2 code points.
int to_lower(char32_t c, char32_t out[2]);

uint8_t combining_class(char32_t c);

enum class Form { nfd, nfkd, nfc, nfkc };

// Full decomposition of c, including Hangul; empty if unchanged. `buffer` holds a computed one.
std::span<const char32_t> decompose(char32_t c, bool compatible, char32_t buffer[3]);
// The primary composite of a and b, or 0.
char32_t compose(char32_t a, char32_t b);

// Replaces `out` by the normal form of `valid_utf8`, each code point with its origin. Returns false and leaves `out`
// undefined if the decomposition has more than `most` code points.
bool normalize(std::string_view valid_utf8, Form form, std::vector<Rewrite>& out, size_t most = SIZE_MAX);

}  // namespace unicode
}  // namespace brim::text
