// SPDX-License-Identifier: Apache-2.0
#include "text/unicode/unicode.h"

#include <gtest/gtest.h>

#include <random>

#include "base/utf8.h"
#include "text/pipeline.h"

namespace brim::text {
namespace {

using unicode::Category;
using unicode::Form;

std::string normal(const std::string& text, Form form) {
  std::vector<Rewrite> chars;
  unicode::normalize(text, form, chars);
  std::string out;
  for (const Rewrite& r : chars) append_utf8(out, r.c);
  return out;
}

std::string utf8(std::u32string_view chars) {
  std::string out;
  for (const char32_t c : chars) append_utf8(out, c);
  return out;
}

TEST(Unicode, CategoriesAndFlags) {
  EXPECT_EQ(unicode::category(U'a'), Category::Ll);
  EXPECT_EQ(unicode::category(U'Ж'), Category::Lu);
  EXPECT_EQ(unicode::category(U'中'), Category::Lo);
  EXPECT_EQ(unicode::category(U'5'), Category::Nd);
  EXPECT_EQ(unicode::category(0x1F602), Category::So);
  EXPECT_EQ(unicode::category(0xD800), Category::Cs);
  EXPECT_EQ(unicode::category(0x10FFFF), Category::Cn);
  EXPECT_EQ(unicode::properties(0x110000), 0);
  EXPECT_EQ(unicode::properties(0xFFFFFFFF), 0);
  for (const char32_t c : {U' ', U'\t', U'\n', U'\x85', U'\xA0', U'\u2003', U'\u3000'})
    EXPECT_TRUE(unicode::is_white_space(c));
  for (const char32_t c : {U'\u200B', U'\uFEFF', U'a', U'\0', U'\x1C'}) EXPECT_FALSE(unicode::is_white_space(c));
  for (const char32_t c : {U'!', U'$', U'`', U'«', U'。'}) EXPECT_TRUE(unicode::has(c, unicode::kPunctuation));
  EXPECT_FALSE(unicode::has(U'€', unicode::kPunctuation));
  EXPECT_TRUE(unicode::has(0x301, unicode::kNonspacing));
  EXPECT_FALSE(unicode::has(0x903, unicode::kNonspacing));
  EXPECT_TRUE(unicode::has(0x903, unicode::kCombining));
  EXPECT_TRUE(unicode::has(U'_', unicode::kWord));
  EXPECT_TRUE(unicode::has(0x200D, unicode::kWordRegex));
  EXPECT_FALSE(unicode::has(0x200D, unicode::kWord));
  EXPECT_TRUE(unicode::has(0, unicode::kControl));
  EXPECT_TRUE(unicode::has(0xFFFD, unicode::kControl));
  EXPECT_FALSE(unicode::has(U'\n', unicode::kControl));
}

TEST(Unicode, LowerCase) {
  char32_t out[2];
  const auto lower = [&](char32_t c) { return std::u32string(out, static_cast<size_t>(unicode::to_lower(c, out))); };
  EXPECT_EQ(lower(U'A'), U"a");
  EXPECT_EQ(lower(U'z'), U"z");
  EXPECT_EQ(lower(U'Ä'), U"ä");
  EXPECT_EQ(lower(U'Σ'), U"σ");
  EXPECT_EQ(lower(U'İ'), U"i\u0307");
  EXPECT_EQ(lower(U'ẞ'), U"ß");
  EXPECT_EQ(lower(0x10400), std::u32string(1, 0x10428));
  EXPECT_EQ(lower(0x10FFFF), std::u32string(1, 0x10FFFF));
}

TEST(Unicode, NormalForms) {
  EXPECT_EQ(normal(utf8(U"é"), Form::nfd), utf8(U"e\u0301"));
  EXPECT_EQ(normal(utf8(U"e\u0301"), Form::nfc), utf8(U"é"));
  EXPECT_EQ(normal(utf8(U"ﬁ½"), Form::nfkc), utf8(U"fi1\u20442"));
  EXPECT_EQ(normal(utf8(U"ﬁ"), Form::nfc), utf8(U"ﬁ"));
  EXPECT_EQ(normal(utf8(U"한"), Form::nfd), utf8(U"\u1112\u1161\u11ab"));
  EXPECT_EQ(normal(utf8(U"\u1112\u1161\u11ab"), Form::nfc), utf8(U"한"));
  EXPECT_EQ(normal(utf8(U"가\u11a8"), Form::nfc), utf8(U"각"));
  // Marks are sorted by class, equal ones keep their order; an excluded composite is not composed.
  EXPECT_EQ(normal(utf8(U"a\u0301\u0323"), Form::nfd), utf8(U"a\u0323\u0301"));
  EXPECT_EQ(normal(utf8(U"a\u0301\u0300"), Form::nfd), utf8(U"a\u0301\u0300"));
  EXPECT_EQ(normal(utf8(U"a\u0301\u0323"), Form::nfc), utf8(U"ạ\u0301"));
  EXPECT_EQ(normal(utf8(U"\u0958"), Form::nfc), utf8(U"\u0915\u093c"));
  EXPECT_EQ(normal(utf8(U"\u0301a"), Form::nfc), utf8(U"\u0301a"));
  EXPECT_EQ(normal("", Form::nfkc), "");
}

// For any text, normal forms are stable, and composing the decomposed form gives the composed form.
TEST(Unicode, NormalFormsAgreeOnRandomText) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int i = 0; i < 12; ++i) {
      const char32_t bases[] = {U'a', U'e', 0x1100, 0x1161, 0x11A8, 0xAC00, 0x915, 0x93C, 0x3C9};
      char32_t c = random() % 3 == 0   ? bases[random() % 9]
                   : random() % 2 == 0 ? 0x300 + random() % 0x70
                                       : random() % 0x11000;
      if (c >= 0xD800 && c < 0xE000) c = U'x';
      append_utf8(text, c);
    }
    const std::string d = normal(text, Form::nfd), c = normal(text, Form::nfc);
    EXPECT_EQ(normal(d, Form::nfd), d);
    EXPECT_EQ(normal(c, Form::nfc), c);
    EXPECT_EQ(normal(c, Form::nfd), d);
    EXPECT_EQ(normal(d, Form::nfc), c);
    EXPECT_EQ(normal(normal(text, Form::nfkc), Form::nfkd), normal(text, Form::nfkd));
  }
}

// The origin of each code point survives rewriting.
TEST(NormalizedText, TracksOrigins) {
  NormalizedText text;
  text.reset("aéb", true, 10);
  const std::vector<Span> start = {{10, 11}, {11, 12}, {11, 12}, {12, 13}};
  EXPECT_EQ(text.spans, start);
  std::vector<Rewrite> chars;
  unicode::normalize(text.text, Form::nfd, chars);
  text.transform(chars);
  EXPECT_EQ(text.text, "ae\u0301b");
  const std::vector<Span> apart = {{10, 11}, {11, 12}, {11, 12}, {11, 12}, {12, 13}};
  EXPECT_EQ(text.spans, apart);
  unicode::normalize(text.text, Form::nfc, chars);
  text.transform(chars);
  EXPECT_EQ(text.text, "aéb");
  EXPECT_EQ(text.spans, start);
  // The first is removed, the second also replaces the next one, and one is inserted.
  text.transform(std::vector<Rewrite>{{U'x', -1}, {U'y', 1}}, 1);
  EXPECT_EQ(text.text, "xy");
  const std::vector<Span> last = {{11, 12}, {12, 13}};
  EXPECT_EQ(text.spans, last);
}

}  // namespace
}  // namespace brim::text
