// SPDX-License-Identifier: Apache-2.0
// All tokenizers in tests/data/tokenizers compared with Hugging Face's tokenizers (tools/make_tokenizer_goldens.py).
#include <gtest/gtest.h>

#include <thread>

#include "base/log.h"
#include "text/golden_cases.h"

namespace brim::text {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> folders() {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(golden_tokenizers())) {
    if (fs::exists(entry.path() / "golden.jsonl") && fs::exists(entry.path() / "tokenizer.json"))
      found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

TEST(TokenizerGolden, FoldersExist) { EXPECT_GE(folders().size(), 30u); }

TEST(TokenizerGolden, IdsTokensAndOffsets) {
  for (const fs::path& folder : folders()) {
    const auto tokenizer = Tokenizer::load(folder);
    for (const GoldenCase& c : read_golden_cases(folder)) {
      const Encoding got = tokenizer->encode(c.text);
      EXPECT_EQ(got.ids, c.expected.ids) << folder << ": " << c.text;
      EXPECT_EQ(got.tokens, c.expected.tokens) << folder << ": " << c.text;
      EXPECT_EQ(got.offsets, c.expected.offsets) << folder << ": " << c.text;
    }
  }
}

TEST(TokenizerGolden, IdOnlyEncodingAppendsTheSameIds) {
  for (const fs::path& folder : folders()) {
    const auto tokenizer = Tokenizer::load(folder);
    for (int round = 0; round < 2; ++round) {  // the second round uses the cache
      std::vector<int32_t> all, expected;
      for (const GoldenCase& c : read_golden_cases(folder)) {
        tokenizer->encode_ids(c.text, all);
        expected.insert(expected.end(), c.expected.ids.begin(), c.expected.ids.end());
        ASSERT_EQ(all, expected) << folder << ": " << c.text;
      }
    }
  }
}

TEST(TokenizerGolden, ManyThreadsShareOneTokenizer) {
  const fs::path data = golden_tokenizers();
  for (const char* name : {"bert_uncased", "byte_bpe", "bpe_bytes", "added_tokens"}) {
    const auto tokenizer = Tokenizer::load(data / name);
    const auto cases = read_golden_cases(data / name);
    std::vector<std::thread> threads;
    std::vector<int> wrong(4);
    for (size_t t = 0; t < wrong.size(); ++t) {
      threads.emplace_back([&, t] {
        for (int round = 0; round < 20; ++round) {
          for (size_t i = 0; i < cases.size(); ++i) {
            const GoldenCase& c = cases[(i * (t + 1)) % cases.size()];
            std::vector<int32_t> ids;
            tokenizer->encode_ids(c.text, ids);
            wrong[t] += ids != c.expected.ids;
            if (round == 0) wrong[t] += tokenizer->encode(c.text).offsets != c.expected.offsets;
          }
        }
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(wrong, std::vector<int>(4)) << name;
  }
}

// Tokenizers on one thread must not share caches, even if they are created and destroyed repeatedly.
TEST(TokenizerGolden, TokenizersDoNotShareCaches) {
  const auto all = folders();
  for (int round = 0; round < 2; ++round) {
    std::vector<std::unique_ptr<Tokenizer>> loaded;
    for (const fs::path& folder : all) loaded.push_back(Tokenizer::load(folder));
    for (size_t k = 0; k < all.size(); ++k) {
      const auto cases = read_golden_cases(all[k]);
      for (size_t i = 0; i < 20; ++i) {
        std::vector<int32_t> ids;
        loaded[k]->encode_ids(cases[i].text, ids);
        ASSERT_EQ(ids, cases[i].expected.ids) << all[k] << ": " << cases[i].text;
      }
    }
  }
}

}  // namespace
}  // namespace brim::text
