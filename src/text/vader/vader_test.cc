// SPDX-License-Identifier: Apache-2.0
// VADER compared with rows recorded from the reference, its table compared with the source lexicons, and malformed
// input.
#include "text/vader/vader.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/utf8.h"

namespace brim::text {
namespace {

std::vector<std::string> read_lines(const std::string& path) {
  std::ifstream in(std::string(BRIM_SOURCE_DIR) + "/" + path);
  EXPECT_TRUE(in) << path;
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

bool same(const VaderScores& a, const VaderScores& b) {
  return a.neg == b.neg && a.neu == b.neu && a.pos == b.pos && a.compound == b.compound;
}

std::string show(const VaderScores& s) { return nlohmann::json{s.neg, s.neu, s.pos, s.compound}.dump(); }

// Scores a copy without slack after its end, so that sanitizers catch reads past the text.
VaderScores score_tight(std::string_view text) {
  const auto tight = std::make_unique<char[]>(text.size());
  std::copy(text.begin(), text.end(), tight.get());
  return vader_scores({tight.get(), text.size()});
}

TEST(Vader, MatchesTheReferenceOnEveryGoldenRow) {
  const auto lines = read_lines("tests/data/vader_golden.jsonl");
  ASSERT_GT(lines.size(), 300u);
  for (const std::string& line : lines) {
    const auto row = nlohmann::json::parse(line);
    const VaderScores want = {row["neg"], row["neu"], row["pos"], row["compound"]};
    const VaderScores got = score_tight(row["text"].get<std::string>());
    EXPECT_TRUE(same(got, want)) << row["text"] << " got " << show(got) << " want " << show(want);
  }
}

// A single word has the compound of its mean rating. Boosters count as neutral, and stripping punctuation changes
// emoticons, so only words of letters are checked; the golden rows cover emoticons.
TEST(Vader, TableContainsTheLexicon) {
  int checked = 0, neutral = 0;
  for (const std::string& line : read_lines("src/text/vader/vader_lexicon.txt")) {
    const size_t tab = line.find('\t');
    const std::string word = line.substr(0, tab);
    const double mean = std::stod(line.substr(tab + 1));
    if (!std::all_of(word.begin(), word.end(), [](char c) { return c >= 'a' && c <= 'z'; })) continue;
    const VaderScores got = vader_scores(word);
    if (got.compound == 0 && mean != 0) {
      ++neutral;
    } else {
      EXPECT_NEAR(got.compound, mean / std::sqrt(mean * mean + 15), 0.5e-4 + 1e-9) << word;
    }
    EXPECT_TRUE(same(vader_scores("x" + word + "x"), vader_scores("qqqqqqq"))) << word;
    ++checked;
  }
  EXPECT_GT(checked, 7000);
  EXPECT_LE(neutral, 12);  // lexicon words that are also boosters
}

TEST(Vader, EmojiScoreAsTheirDescriptions) {
  const auto lines = read_lines("src/text/vader/emoji_utf8_lexicon.txt");
  EXPECT_GT(lines.size(), 1000u);
  for (const std::string& line : lines) {
    const size_t tab = line.find('\t');
    const std::string emoji = line.substr(0, tab), description = line.substr(tab + 1);
    EXPECT_TRUE(same(vader_scores("good\t" + emoji + "x"), vader_scores("good\t " + description + "x"))) << line;
    EXPECT_TRUE(same(vader_scores(emoji + emoji), vader_scores(description + " " + description))) << line;
  }
}

TEST(Vader, EndsOfTheScale) {
  EXPECT_EQ(vader_scores("").compound, 0);
  std::string much;
  for (int i = 0; i < 20000; ++i) much += "great! ";
  EXPECT_EQ(vader_scores(much).compound, 1);
  EXPECT_EQ(vader_scores(much).pos, 1);
  much.clear();
  for (int i = 0; i < 20000; ++i) much += "awful! ";
  EXPECT_EQ(vader_scores(much).compound, -1);
  EXPECT_EQ(vader_scores(much).neg, 1);
}

TEST(Vader, InvalidBytesCountAsReplacementCharacters) {
  std::mt19937 random(11);
  const std::string alphabet = "good BUT not!? \xF0\x9F\x98\x80\xC3\xA9\xE2\x84\xAA\xFF\xC0\x80\xED\xA0";
  for (int i = 0; i < 20000; ++i) {
    std::string bytes;
    const size_t size = random() % 70;
    for (size_t k = 0; k < size; ++k) {
      bytes += random() % 4 ? alphabet[random() % alphabet.size()] : static_cast<char>(random());
    }
    const VaderScores got = score_tight(bytes);
    EXPECT_TRUE(same(got, vader_scores(replace_invalid_utf8(bytes)))) << nlohmann::json(replace_invalid_utf8(bytes));
    EXPECT_TRUE(got.compound >= -1 && got.compound <= 1);
    EXPECT_TRUE(got.neg >= 0 && got.neu >= 0 && got.pos >= 0);
    EXPECT_TRUE(size == 0 || got.neg + got.neu + got.pos <= 1.0015);
  }
}

// The fast path must find the same tokens at any position in a vector and before any text.
TEST(Vader, SurroundingsDoNotChangeAToken) {
  for (size_t before = 0; before < 40; ++before) {
    const std::string lead(before, 'v');  // no run of v is in the lexicon
    const std::string gap = before ? " " : "";
    for (const char* word :
         {"good", "(good)", "isn't", "tenderheartedness", ":)", "GOOD!", "caf\xC3\xA9", "\xE2\x84\xAAill"}) {
      const VaderScores want = vader_scores((before ? "v " : "") + std::string(word));
      EXPECT_TRUE(same(score_tight(lead + gap + word), want)) << before << word;
      EXPECT_TRUE(same(score_tight(lead + gap + word + "\n"), want)) << before << word;
      EXPECT_TRUE(same(score_tight(lead + gap + word + "\xC2\xA0\x1F"), want)) << before << word;
    }
  }
}

TEST(Vader, LongInputs) {
  const std::string long_word(300000, 'g');
  EXPECT_TRUE(same(vader_scores(long_word + " good"), vader_scores("ggg good")));
  EXPECT_TRUE(same(vader_scores(std::string(300000, '!') + " good"), vader_scores("!!!!! good")));
  std::string emoji;
  for (int i = 0; i < 100000; ++i) emoji += "\xF0\x9F\x98\xAD but ";
  EXPECT_LT(vader_scores(emoji).compound, 0);
  EXPECT_TRUE(same(vader_scores(std::string(1 << 20, ' ')), {0, 0, 0, 0}));
}

TEST(Vader, ThreadsAgree) {
  const auto lines = read_lines("tests/data/vader_golden.jsonl");
  std::vector<VaderScores> alone;
  for (const std::string& line : lines) alone.push_back(vader_scores(line));
  std::vector<int> differing(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < differing.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < lines.size(); ++i) differing[t] += !same(vader_scores(lines[i]), alone[i]);
    });
  }
  for (auto& thread : threads) thread.join();
  for (const int count : differing) EXPECT_EQ(count, 0);
}

TEST(VaderLabel, FollowsTheUsualThresholds) {
  EXPECT_STREQ(vader_label(0.05), "positive");
  EXPECT_STREQ(vader_label(0.0499), "neutral");
  EXPECT_STREQ(vader_label(0), "neutral");
  EXPECT_STREQ(vader_label(-0.0499), "neutral");
  EXPECT_STREQ(vader_label(-0.05), "negative");
}

TEST(VaderLabel, ScoresSumToOneAndLeadToTheLabel) {
  for (int i = -10000; i <= 10000; ++i) {
    const double compound = i / 10000.0;
    const VaderLabelScores s = vader_label_scores(compound);
    EXPECT_NEAR(s.negative + s.neutral + s.positive, 1, 1e-15);
    const double leader = std::max({s.negative, s.neutral, s.positive});
    EXPECT_GE(leader, 0.5);
    const std::string label = vader_label(compound);
    const double own = label == "positive" ? s.positive : label == "negative" ? s.negative : s.neutral;
    EXPECT_EQ(own, leader) << compound;
  }
  EXPECT_EQ(vader_label_scores(1).positive, 1);
  EXPECT_EQ(vader_label_scores(-1).negative, 1);
  EXPECT_EQ(vader_label_scores(0).neutral, 1);
}

}  // namespace
}  // namespace brim::text
