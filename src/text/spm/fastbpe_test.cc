// SPDX-License-Identifier: Apache-2.0
#include "text/spm/fastbpe.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "base/error.h"

namespace brim::text {
namespace {

const std::vector<std::string> kSpecials = {"<s>", "<pad>", "</s>", "<unk>"};

FastBpe make(std::string_view codes, std::string_view vocab) {
  return FastBpe(codes, "bpe.codes", vocab, "vocab.txt", kSpecials, "<unk>");
}

std::string cut(const FastBpe& bpe, std::string_view text) {
  std::vector<int32_t> ids;
  bpe.tokenize(text, ids);
  std::string out;
  for (const int32_t id : ids) out += fmt::format("{}{}", out.empty() ? "" : " ", bpe.token(id));
  return out;
}

TEST(FastBpe, MergesByRankAndMarksInnerParts) {
  const FastBpe bpe = make("l o 9\nlo w</w> 8\ne r</w> 7\n", "low 1\nlo@@ 1\nw@@ 1\ner 1\nw 1\ne@@ 1\nl 1\n");
  EXPECT_EQ(bpe.id("low"), 4);
  EXPECT_EQ(cut(bpe, "low"), "low");
  EXPECT_EQ(cut(bpe, "lower  low"), "lo@@ w@@ er low");
  EXPECT_EQ(cut(bpe, "l"), "l");
  EXPECT_EQ(cut(bpe, "q"), "<unk>");
  EXPECT_EQ(cut(bpe, "wqe"), "w@@ <unk> <unk>");
  EXPECT_EQ(cut(bpe, ""), "");
  EXPECT_EQ(cut(bpe, " \t\u3000\u00A0"), "");
  EXPECT_EQ(cut(bpe, "low\u2003low\u0085low\x1clow"), "low low low low");
}

TEST(FastBpe, KeepsANewlineWithItsWord) {
  const FastBpe bpe = make("a b</w> 1\na b 1\n", "ab 1\nab@@ 1\n");
  EXPECT_EQ(cut(bpe, "ab\nab"), "ab@@ <unk> ab");
  EXPECT_EQ(cut(bpe, "ab \nab"), "ab ab");
  EXPECT_EQ(cut(bpe, "ab\n\n"), "ab@@ <unk>");
}

TEST(FastBpe, ReadsFilesLikePython) {
  // \r\n and \r end lines, the last code without a line end is ignored, counts are not checked.
  const FastBpe bpe = make("a b 1\r\nab c</w> x\ra d</w> 1", "  ab@@ 1 \r\nabc 2\rx y 3\n");
  EXPECT_EQ(cut(bpe, "abc"), "abc");
  EXPECT_EQ(cut(bpe, "ad"), "<unk> <unk>");
  EXPECT_EQ(bpe.id("x y"), 6);
  // A repeated word moves to the next id, which the following word then shares.
  const FastBpe twice = make("", "a 1\nb 1\na 1\nc 1\n");
  EXPECT_EQ(twice.id("a"), 6);
  EXPECT_EQ(twice.id("b"), 5);
  EXPECT_EQ(twice.id("c"), 6);
  EXPECT_EQ(twice.token(6), "c");
  EXPECT_EQ(twice.token(4), "");
  // The later of equal codes counts; lines with other field counts are not codes.
  const FastBpe ranks = make("a b 1\nb c</w> 1\na b 1\nx\n\n1 2 3 4\n", "ab@@ 1\na@@ 1\nbc 1\nc 1\n");
  EXPECT_EQ(cut(ranks, "abc"), "a@@ bc");
}

TEST(FastBpe, ReportsInvalidFiles) {
  const auto error_message = [](std::string_view codes, std::string_view vocab) -> std::string {
    try {
      make(codes, vocab);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_model);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_message("", ""), "");
  EXPECT_EQ(error_message("", "a 1\nb\n"), "vocab.txt: line 2: \"b\" is not a token and a count");
  EXPECT_EQ(error_message("", "a 1\n\nb 1"), "vocab.txt: line 2: \"\" is not a token and a count");
  EXPECT_NE(error_message("", "a\xFF 1\n").find("vocab.txt: not UTF-8"), std::string::npos);
  EXPECT_NE(error_message("\xFF b 1\n", "").find("bpe.codes: not UTF-8"), std::string::npos);
}

// Reference implementation: merge all occurrences of the known pair of lowest rank, from the left, until none is left.
std::vector<std::string> by_definition(const std::vector<std::pair<std::string, std::string>>& codes,
                                       std::string word) {
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  parts.back() += "</w>";
  for (;;) {
    size_t best = codes.size();
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      for (size_t rank = 0; rank < best; ++rank) {
        if (codes[rank] == std::pair(parts[i], parts[i + 1])) best = rank;
      }
    }
    if (best == codes.size()) return parts;
    std::vector<std::string> merged;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i + 1 < parts.size() && codes[best] == std::pair(parts[i], parts[i + 1])) {
        merged.push_back(parts[i] + parts[i + 1]);
        ++i;
      } else {
        merged.push_back(parts[i]);
      }
    }
    parts = merged;
  }
}

TEST(FastBpe, MatchesTheReferenceForShortAndLongWords) {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    // Random pairs in random order, including merges that rank before those of their parts.
    std::vector<std::pair<std::string, std::string>> codes;
    std::string file, vocab;
    const auto part = [&] {
      std::string text;
      for (size_t n = 1 + random() % 3; text.size() < n;) text.push_back(static_cast<char>('a' + random() % 3));
      return text;
    };
    while (codes.size() < 40) {
      std::pair<std::string, std::string> code{part(), part() + (random() % 4 == 0 ? "</w>" : "")};
      if (std::find(codes.begin(), codes.end(), code) != codes.end()) continue;
      file += code.first + " " + code.second + " 1\n";
      codes.push_back(code);
    }
    std::set<std::string> texts = {"a", "b", "c"};
    for (const auto& code : codes) {
      const std::string text = code.first + code.second;
      texts.insert(text.ends_with("</w>") ? text.substr(0, text.size() - 4) : text);
    }
    for (const std::string& text : texts) vocab += text + " 1\n" + text + "@@ 1\n";
    const FastBpe bpe = make(file, vocab);
    for (const size_t size : {1, 2, 5, 12, 39, 40, 41, 60, 150}) {
      std::string word;
      while (word.size() < size) word.push_back(static_cast<char>('a' + random() % 3));
      std::string want;
      for (const std::string& text : by_definition(codes, word)) want += text + (text.ends_with("</w>") ? "" : "@@ ");
      want.resize(want.size() - 4);
      EXPECT_EQ(cut(bpe, word), want);
    }
  }
}

TEST(FastBpe, LongWordsAreNotQuadratic) {
  const FastBpe bpe = make("a a 1\naa aa 1\n", "aaaa@@ 1\na 1\na@@ 1\naa@@ 1\n");
  std::vector<int32_t> ids;
  bpe.tokenize(std::string(300001, 'a'), ids);
  EXPECT_EQ(ids.size(), 75001u);
}

}  // namespace
}  // namespace brim::text
