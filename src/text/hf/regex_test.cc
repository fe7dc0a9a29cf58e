// SPDX-License-Identifier: Apache-2.0
#include "text/hf/regex.h"

#include <gtest/gtest.h>

#include "base/fuzz_driver.h"
#include "text/hf/byte_level.h"
#include "text/hf/pattern.h"
#define LLVMFuzzerTestOneInput fuzz_regex
#include "text/hf/regex_fuzz.cc"
#undef LLVMFuzzerTestOneInput

namespace brim::text {
namespace {

// All matches, separated by |.
std::string matches(const std::string& pattern, const std::string& text) {
  auto regex = Regex::compile(pattern);
  if (!regex) return std::string("error: ") + regex.error().what();
  std::string out;
  bool first = true;
  Pattern(std::move(*regex), pattern).for_each_match(text, [&](size_t begin, size_t end) {
    if (!first) out += '|';
    first = false;
    out += text.substr(begin, end - begin);
  });
  return out;
}

TEST(Regex, LiteralsClassesAndRepeats) {
  EXPECT_EQ(matches("b", "abcb"), "b|b");
  EXPECT_EQ(matches("a|bc", "abc"), "a|bc");
  EXPECT_EQ(matches("[a-c]+", "xabcabx"), "abcab");
  EXPECT_EQ(matches("[^a-c ]+", "xy ab z"), "xy|z");
  EXPECT_EQ(matches("a{2}", "aaaaa"), "aa|aa");
  EXPECT_EQ(matches("a{2,3}", "aaaaaa"), "aaa|aaa");
  EXPECT_EQ(matches("a{2,}", "aaaa a"), "aaaa");
  EXPECT_EQ(matches("a{,2}b", "aaab"), "aab");
  EXPECT_EQ(matches("x{a}", "x{a}"), "x{a}");
  EXPECT_EQ(matches("(?:ab){1,2}c", "ababcabc"), "ababc|abc");
  EXPECT_EQ(matches("(ab)*c", "ababc c"), "ababc|c");
  EXPECT_EQ(matches("a+?", "aaa"), "a|a|a");
  EXPECT_EQ(matches("<.*?>", "<a><b>"), "<a>|<b>");
  EXPECT_EQ(matches("<.*>", "<a><b>"), "<a><b>");
  EXPECT_EQ(matches("a++a", "aaa"), "");
  EXPECT_EQ(matches("(?>a|ab)c", "abc ac"), "ac");
  EXPECT_EQ(matches("(?:a?)*b", "aab"), "aab");
  EXPECT_EQ(matches(R"(\[\]\\\.)", "[]\\."), "[]\\.");
  EXPECT_EQ(matches(R"([\]\-a]+)", "x-]ay"), "-]a");
  EXPECT_EQ(matches("[]a]+", "x]ay"), "]a");
  EXPECT_EQ(matches(R"(\x41\x{e9}\u00e8\t)", "Aéè\t"), "Aéè\t");
}

TEST(Regex, UnicodeClasses) {
  EXPECT_EQ(matches(R"(\p{L}+)", "abc中文 déf 12"), "abc中文|déf");
  EXPECT_EQ(matches(R"(\p{Lu}\p{Ll}*)", "Éa B c"), "Éa|B");
  EXPECT_EQ(matches(R"(\P{L}+)", "a12b"), "12");
  EXPECT_EQ(matches(R"(\p{^L}+)", "a12b"), "12");
  EXPECT_EQ(matches(R"(\pN+)", "a12½b"), "12½");
  EXPECT_EQ(matches(R"([^\s\p{L}\p{N}]+)", "a!? b…"), "!?|…");
  EXPECT_EQ(matches(R"([\s\S]+)", "a \n中"), "a \n中");
  EXPECT_EQ(matches(R"([\W\d]+)", "ab1!é"), "1!");
  EXPECT_EQ(matches(R"([^\D]+)", "ab12"), "12");
  EXPECT_EQ(matches(R"(\s+)", "a\u00a0\u3000b c"), "\u00a0\u3000| ");
  EXPECT_EQ(matches("[一-龥]+", "a中文b"), "中文");
  EXPECT_EQ(matches("[a[b-d]]+", "xabcdy"), "abcd");
}

TEST(Regex, FoldsCaseOnRequest) {
  EXPECT_EQ(matches("(?i:'s|'LL)", "'S 'll 's 'ſ"), "'S|'ll|'s|'ſ");
  EXPECT_EQ(matches("(?i)ab|É", "AB é"), "AB|é");
  EXPECT_EQ(matches("(?i:[a-c])x", "Bx BX"), "Bx");
}

TEST(Regex, LookaroundsAndAnchors) {
  EXPECT_EQ(matches(R"(\s+(?!\S))", "a  b  "), " |  ");
  EXPECT_EQ(matches("a(?=b)", "ab ac"), "a");
  EXPECT_EQ(matches("(?<=a)b", "ab cb b"), "b");
  EXPECT_EQ(matches("(?<!a)b", "ab cb"), "b");
  EXPECT_EQ(matches("^a", "a\na"), "a|a");
  EXPECT_EQ(matches("a$", "a\na"), "a|a");
  EXPECT_EQ(matches(R"(\Aa)", "a\na"), "a");
  EXPECT_EQ(matches(R"(a\z)", "a\na"), "a");
  EXPECT_EQ(matches(R"(\bab\b)", "ab cab ab"), "ab|ab");
}

// As upstream: an empty match counts, except directly after another match.
TEST(Regex, EmptyMatchesAdvance) {
  EXPECT_EQ(matches("x*", "aé"), "||");
  EXPECT_EQ(matches("x*,?", ",a,"), ",|,");
  EXPECT_EQ(matches("(?=b)|[ac]", "abc"), "a|c");
  EXPECT_EQ(matches("(?=b)|c", "abc"), "|c");
}

TEST(Regex, RejectsUnsupportedSyntax) {
  for (const char* pattern : {"(", ")", "a)", "[a", "*a", R"(\p{Greek})", R"(\1)", R"((?<name>a))", "(?<=ab)c",
                              "[[:alpha:]]", "[a&&b]", R"(\x{110000})", "[b-a]", "a{2,1}", "a{9999}", R"(\q)", "\\"}) {
    EXPECT_EQ(matches(pattern, "").rfind("error: ", 0), 0u) << pattern;
  }
  EXPECT_EQ(matches(std::string(500, '('), "").rfind("error: ", 0), 0u);
  EXPECT_EQ(matches("((((a{999}){999}){999}){999})", "").rfind("error: ", 0), 0u);
  EXPECT_EQ(matches("\xFF", "").rfind("error: ", 0), 0u);
}

// The hand-written scanner splits like the pattern.
TEST(Regex, Gpt2ScannerMatchesThePattern) {
  auto regex = Regex::compile(kGpt2Pattern);
  ASSERT_TRUE(static_cast<bool>(regex));
  const char* parts[] = {"a", "Z",  "é",   "中",  "1",  "½", " ", "  ",     "\n", "\t", "\u00a0", "\u2003",
                         "'", "'s", "'ll", "'re", "'v", "!", "😂", "\u0301", "l",  "e",  "d"};
  std::mt19937 random(3);
  for (int round = 0; round < 5000; ++round) {
    std::string text;
    for (size_t i = random() % 12; i > 0; --i) text += parts[random() % std::size(parts)];
    for (size_t at = 0; at < text.size();) {
      const size_t end = gpt2_word_end(text, at);
      const auto match = regex->search(text, at);
      ASSERT_TRUE(match.has_value()) << text;
      ASSERT_EQ(match->begin, at) << text;
      ASSERT_EQ(match->end, end) << text;
      at = end;
    }
  }
}

TEST(Regex, LongTextsDoNotOverflow) {
  const std::string text(300000, 'a');
  EXPECT_EQ(matches("(?:a|b)+", text).size(), text.size());
  EXPECT_EQ(matches("(?:(?:a)+?)+$", text).size(), text.size());
}

TEST(Regex, Fuzz) {
  drive_fuzz(fuzz_regex,
             {std::string(kGpt2Pattern) + "\nit's 12 o'clock", "(?i:'s|[a-z]{1,3}?)++(?!\\S)\nabc's",
              "[^\\s\\p{L}[0-9]]*|(?<=a)b$\n(ab)"},
             20000);
}

}  // namespace
}  // namespace brim::text
