// SPDX-License-Identifier: Apache-2.0
#include "text/spm/charsmap.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "text/spm/spm_testing.h"
#include "text/unicode/grapheme.h"

namespace brim::text {
namespace {

std::string rewritten(const std::map<std::string, std::string>& rules, std::string_view text) {
  const auto normalizer = make_precompiled(make_charsmap(rules), "x.model");
  NormalizedText plain, tracked;
  plain.reset(text, false);
  tracked.reset(text, true);
  normalizer->apply(plain);
  normalizer->apply(tracked);
  EXPECT_EQ(plain.text, tracked.text);
  EXPECT_EQ(tracked.spans.size(), tracked.text.size());
  return plain.text;
}

// One span per byte, as "b-e b-e …".
std::string spans(const std::map<std::string, std::string>& rules, std::string_view text) {
  const auto normalizer = make_precompiled(make_charsmap(rules), "x.model");
  NormalizedText tracked;
  tracked.reset(text, true);
  normalizer->apply(tracked);
  std::string out;
  for (const Span& span : tracked.spans) out += fmt::format("{}{}-{}", out.empty() ? "" : " ", span.begin, span.end);
  return out;
}

TEST(Charsmap, FindsTheShortestKey) {
  const Charsmap map(make_charsmap({{"a", "1"}, {"ab", "22"}, {"\u00E9", ""}, {"xyz", "\u2581"}}), "x.model");
  EXPECT_EQ(map.find("a"), "1");
  EXPECT_EQ(map.find("abc"), "1");
  EXPECT_EQ(map.find("\u00E9t"), "");
  EXPECT_EQ(map.find("xyzw"), "\u2581");
  EXPECT_EQ(map.find("xy"), std::nullopt);
  EXPECT_EQ(map.find("b"), std::nullopt);
  EXPECT_EQ(map.find(""), std::nullopt);
  EXPECT_EQ(map.find(std::string_view("\0a", 2)), std::nullopt);
}

TEST(Charsmap, RewritesWholeGraphemesUpToFiveBytes) {
  const std::map<std::string, std::string> rules = {{"a", "b"}, {"\u0301", "!"}};
  EXPECT_EQ(rewritten(rules, "xaz"), "xbz");
  EXPECT_EQ(rewritten(rules, "a\u0301z"), "bz");               // 3 bytes: the accent is replaced with its letter
  EXPECT_EQ(rewritten(rules, "a\u0301\u0301"), "b");           // 5 bytes
  EXPECT_EQ(rewritten(rules, "a\u0301\u0301\u0301"), "b!!!");  // 7 bytes: character by character
  EXPECT_EQ(rewritten(rules, "\u0301"), "!");
  EXPECT_EQ(rewritten({{"\r", " "}}, "a\r\nb\rc"), "a b c");  // \r\n is one grapheme
  EXPECT_EQ(rewritten(rules, ""), "");
  EXPECT_EQ(rewritten(rules, "no hit \u00e9 \U0001F600"), "no hit \u00e9 \U0001F600");
}

TEST(Charsmap, TracksTheOriginOfEachByte) {
  EXPECT_EQ(spans({{"a", "bc"}}, "xay"), "0-1 1-2 1-2 2-3");  // inserted: shares the origin of the one before
  EXPECT_EQ(spans({{"a\u0301", "b"}}, "xa\u0301y"), "0-1 1-2 3-4");
  EXPECT_EQ(spans({{"a", ""}}, "xay"), "0-1 2-3");
  // Removed at the very start: no earlier code point can carry it, so the following origins shift.
  EXPECT_EQ(spans({{"a", ""}}, "axy"), "0-1 1-2");
  // Attributed to an inserted code point, which then counts as a replacement.
  EXPECT_EQ(spans({{"a", "bc"}, {"d", ""}}, "ady"), "0-1 1-2 2-3");
}

TEST(Charsmap, RejectsOutOfRangeReferences) {
  const std::string good = make_charsmap({{"a", "b"}, {"\u00E9", "e"}});
  const auto error_message = [](const std::string& blob) -> std::string {
    try {
      Charsmap(blob, "x.model");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_model);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_message(good), "");
  EXPECT_NE(error_message("").find("x.model: precompiled_charsmap: 0 bytes"), std::string::npos);
  EXPECT_NE(error_message(good.substr(0, 100)).find("are left"), std::string::npos);
  EXPECT_NE(error_message(little_endian_u32(0)).find("trie size of 0 bytes"), std::string::npos);
  EXPECT_NE(error_message(little_endian_u32(6) + "abcdef").find("trie size of 6 bytes"), std::string::npos);
  EXPECT_NE(error_message(good + "\xFF").find("not UTF-8"), std::string::npos);
  std::string far = good;  // the root's offset, with the bit that shifts it by another eight
  far.replace(4, 4, little_endian_u32(0x7FFFFFFF & ~0xFFu));
  EXPECT_NE(error_message(far).find("unit 0"), std::string::npos);
  std::string value = good;  // a leaf's replacement past the end: unit 256 * 2 is the value of "a"
  value.replace(4 + 4 * 512, 4, little_endian_u32(0x80000000u | 999));
  EXPECT_NE(error_message(value).find("rewriting at 999"), std::string::npos);
}

TEST(Grapheme, MatchesUnicodeBoundaries) {
  const auto first = [](std::string_view text) { return text.substr(0, grapheme_end(text, 0)); };
  EXPECT_EQ(first("ab"), "a");
  EXPECT_EQ(first("\r\nx"), "\r\n");
  EXPECT_EQ(first("\n\r"), "\n");
  EXPECT_EQ(first("e\u0301\u0302x"), "e\u0301\u0302");
  EXPECT_EQ(first("\n\u0301"), "\n");
  EXPECT_EQ(first("\u0600a\u0301b"), "\u0600a\u0301");                            // prepended mark
  EXPECT_EQ(first("\u1100\u1161\u11a8\u1100"), "\u1100\u1161\u11a8");             // Hangul parts
  EXPECT_EQ(first("\uac00\u11a8\u1161"), "\uac00\u11a8");                         // open syllable and a tail
  EXPECT_EQ(first("\uac01\u1161"), "\uac01");                                     // closed syllable, no vowel
  EXPECT_EQ(first("\U0001F469\u200D\U0001F52C!"), "\U0001F469\u200D\U0001F52C");  // emoji sequence
  EXPECT_EQ(first("\U0001F469\U0001F3FD\u200D\U0001F52C"), "\U0001F469\U0001F3FD\u200D\U0001F52C");
  EXPECT_EQ(first("a\u200D\U0001F52C"), "a\u200D");
  EXPECT_EQ(first("\U0001F1FB\U0001F1F3\U0001F1FB"), "\U0001F1FB\U0001F1F3");      // flags are pairs
  EXPECT_EQ(first("\u0915\u094D\u0937\u093F\u0915"), "\u0915\u094D\u0937\u093F");  // conjunct
  EXPECT_EQ(first("\u0915\u093F\u0937"), "\u0915\u093F");
}

}  // namespace
}  // namespace brim::text
