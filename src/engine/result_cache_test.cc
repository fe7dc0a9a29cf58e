// SPDX-License-Identifier: Apache-2.0
// Tests the cache of results: memory bound and replacement, and that a scorer with a cache answers like one without.
#include "engine/result_cache.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "base/test_files.h"
#include "engine/scorer_access.h"
#include "engine/testing.h"
#include "model/golden_models.h"

namespace brim::engine {
namespace {

Prediction scored(float score) {
  Prediction p;
  p.scores = {score, 1 - score};
  return p;
}

TEST(ResultCache, ReplacesTheLeastRecentlyUsed) {
  ResultCache cache(20000);
  int put = 0;
  for (; cache.bytes() + 1000 < 20000; ++put) cache.put(fmt::format("text {}", put), scored(static_cast<float>(put)));
  ASSERT_GT(put, 16);
  ASSERT_NE(cache.find("text 0"), nullptr);  // used again
  for (int i = 0; i < put / 2; ++i) cache.put(fmt::format("more {}", i), scored(0));
  EXPECT_LE(cache.bytes(), 20000);
  ASSERT_NE(cache.find("text 0"), nullptr);
  EXPECT_EQ(cache.find("text 0")->scores[0], 0);
  EXPECT_EQ(cache.find("text 1"), nullptr);
  EXPECT_NE(cache.find(fmt::format("text {}", put - 1)), nullptr);
  const int64_t before = cache.bytes();
  cache.put("text 0", scored(7));
  EXPECT_EQ(cache.bytes(), before) << "computed twice";
  cache.put("large", [] {
    Prediction p;
    p.embedding.resize(1000);
    return p;
  }());
  EXPECT_EQ(cache.find("large"), nullptr) << "would replace too many others";
  ResultCache(0).put("none", scored(0));
}

TEST(ResultCache, KeysOfDifferentValuesDiffer) {
  std::string a, b;
  append_key(a, "a");
  append_key(a, "bc");
  append_key(b, "ab");
  append_key(b, "c");
  EXPECT_NE(a, b);
}

void expect_same(const Prediction& got, const Prediction& want) {
  EXPECT_EQ(got.label, want.label);
  EXPECT_EQ(got.score, want.score);
  EXPECT_EQ(got.scores, want.scores);
  EXPECT_EQ(got.embedding, want.embedding);
  EXPECT_EQ(got.truncated, want.truncated);
  EXPECT_EQ(got.tokens, want.tokens);
  ASSERT_EQ(got.entities.size(), want.entities.size());
  for (size_t i = 0; i < want.entities.size(); ++i) {
    EXPECT_EQ(got.entities[i].group, want.entities[i].group);
    EXPECT_EQ(got.entities[i].start, want.entities[i].start);
    EXPECT_EQ(got.entities[i].score, want.entities[i].score);
  }
  ASSERT_EQ(got.error.has_value(), want.error.has_value());
  if (want.error) {
    EXPECT_STREQ(got.error->what(), want.error->what());
  }
}

class CachedScorer : public ::testing::Test {
 protected:
  std::shared_ptr<Scorer> open(const char* model, int64_t cache_bytes, std::optional<Pooling> pooling = {}) {
    const auto dir = temp_.path() / model;
    if (!std::filesystem::exists(dir)) model::put_golden_model(dir, model);
    ScorerOptions o = cpu_options(dir);
    o.raw_scores = true;
    o.pooling = pooling;
    o.cache_bytes = cache_bytes;
    return Scorer::open(o);
  }
  const TempDir temp_;
};

// Requests for one text that differ in one option each.
std::vector<Request> requests_for(std::string_view text, ModelKind kind) {
  static const std::vector<int32_t> ids = {2, 5, 6, 3}, other_ids = {2, 5, 7, 3};
  std::vector<Request> all = {{.text = text}};
  const auto add = [&](auto&& set) { set(all.emplace_back(Request{.text = text})); };
  add([](Request& r) { r.long_text = LongText::window_mean; });
  add([](Request& r) { r.long_text = LongText::window_max; });
  add([](Request& r) { r.long_text = LongText::error; });
  add([](Request& r) { r.keep_end = true; });
  add([](Request& r) { r.max_length = 5; });
  add([](Request& r) { r.long_text = LongText::window_mean, r.overlap = 7; });
  if (kind == ModelKind::tagger) {
    add([](Request& r) { r.aggregation = Aggregation::none; });
    add([](Request& r) { r.outside = true; });
    return all;
  }
  add([](Request& r) { r.pair = "w9"; });
  add([](Request& r) { r.ids = ids; });
  add([](Request& r) { r.ids = other_ids; });
  if (kind == ModelKind::embedder) add([](Request& r) { r.prompt = "w8 w9 "; });
  if (kind == ModelKind::classifier) add([](Request& r) { r.raw_scores = true; });
  return all;
}

TEST_F(CachedScorer, AnswersLikeOneWithoutCache) {
  std::string longer = "w10";
  for (int i = 0; i < 90; ++i) longer += fmt::format(" w{}", 5 + i);
  const struct {
    const char* model;
    std::optional<Pooling> pooling;
  } kCases[] = {{"bert_sequence", {}}, {"bert_token", {}}, {"bert_sequence", Pooling::mean}};
  for (const auto& [model, pooling] : kCases) {
    const auto plain = open(model, 0, pooling), cached = open(model, 1 << 20, pooling);
    int64_t good = 0;
    for (const std::string_view text : {std::string_view(longer), std::string_view("w5 w6"), std::string_view("\xff")})
      for (const Request& request : requests_for(text, plain->kind())) {
        const Prediction want = plain->submit(request).get();
        const int64_t hits = cached->work().cache_hits;
        expect_same(cached->submit(request).get(), want);
        EXPECT_EQ(cached->work().cache_hits, hits) << "the options changed";
        expect_same(cached->submit(request).get(), want);
        EXPECT_EQ(cached->work().cache_hits, hits + (want.error ? 0 : 1)) << "errors are not kept";
        good += !want.error;
      }
    EXPECT_GT(good, 10) << model;
    EXPECT_EQ(plain->work().cache_misses, 0);
  }
}

TEST_F(CachedScorer, ScoresListsOfTextsLikeOneWithoutCache) {
  for (const std::optional<Pooling> pooling : {std::optional<Pooling>(), std::optional(Pooling::mean)}) {
    const auto plain = open("bert_sequence", 0, pooling), cached = open("bert_sequence", 1 << 20, pooling);
    const std::vector<std::string_view> first = {"w5", "w6 w7", "\xff", "w5"}, second = {"w8", "w6 w7", "\xff", "w9"};
    for (const auto& texts : {first, second, second}) {
      const Predictions want = plain->score(texts);
      std::vector<size_t> progress;
      const Predictions got = cached->score(texts, {}, [&](size_t done) { progress.push_back(done); });
      EXPECT_EQ(got.scores, want.scores);
      EXPECT_EQ(got.labels, want.labels);
      EXPECT_EQ(got.label_scores, want.label_scores);
      ASSERT_EQ(got.errors.size(), 1u);
      EXPECT_EQ(got.errors[0].first, want.errors[0].first);
      EXPECT_EQ(progress.back(), texts.size());
    }
    EXPECT_EQ(cached->work().cache_hits, 5);    // one in the first and second list, three in the third
    EXPECT_EQ(cached->work().cache_misses, 7);  // including the text that is not UTF-8, each time
  }
}

TEST_F(CachedScorer, ScoresEqualTextsOfACallOnce) {
  const auto plain = open("bert_sequence", 0), cached = open("bert_sequence", 1 << 20);
  const std::vector<std::string_view> texts = {"w5", "w6 w7", "\xff", "w5", "\xff", "w6 w7", "w5"};
  const Predictions want = plain->score(texts), got = cached->score(texts);
  EXPECT_EQ(got.scores, want.scores);
  EXPECT_EQ(got.labels, want.labels);
  ASSERT_EQ(got.errors.size(), 2u);
  for (const size_t i : {0u, 1u}) EXPECT_EQ(got.errors[i].first, want.errors[i].first);
  EXPECT_EQ(got.tokens, 3 + 4);
  EXPECT_EQ(cached->work().cache_hits, 4);
  EXPECT_EQ(cached->work().cache_misses, 3);
  // The same first texts with other second ones are not equal.
  const std::vector<std::string_view> first = {"w5", "w5", "w5"}, second = {"w6", "w7", "w6"};
  EXPECT_EQ(cached->score_pairs(first, second).scores, plain->score_pairs(first, second).scores);
  EXPECT_EQ(cached->work().cache_hits, 5);
}

class CollectedAnswers : public Completion {
 public:
  void done(std::span<Answer> answers) noexcept override {
    const std::lock_guard lock(mutex_);
    for (Answer& answer : answers) found_[answer.ticket].push_back(std::move(answer.prediction));
  }
  std::map<uint64_t, std::vector<Prediction>> wait(size_t tickets) {
    wait_until([&] {
      const std::lock_guard lock(mutex_);
      return found_.size() == tickets;
    });
    const std::lock_guard lock(mutex_);
    return found_;
  }

 private:
  std::mutex mutex_;
  std::map<uint64_t, std::vector<Prediction>> found_;
};

TEST_F(CachedScorer, ComputesEqualTextsSubmittedTogetherOnce) {
  const auto plain = open("bert_sequence", 0), cached = open("bert_sequence", 1 << 20);
  std::vector<Request> requests;
  for (const std::string_view text : {"w5", "w6 w7", "w5", "w5"})
    requests.push_back({.text = text, .ticket = requests.size()});
  requests.push_back({.text = "w5", .ticket = 4, .raw_scores = true});
  requests.push_back({.text = "w5", .ticket = 5, .client = 9});  // may be treated differently in the queue
  requests.push_back({.text = "\xff", .ticket = 6});
  requests.push_back({.text = "\xff", .ticket = 7});
  CollectedAnswers answers;
  cached->submit(requests, answers);
  for (const auto& [ticket, found] : answers.wait(requests.size())) {
    ASSERT_EQ(found.size(), 1u) << ticket;
    expect_same(found[0], plain->submit(requests[ticket]).get());
  }
  EXPECT_EQ(cached->work().cache_hits, 2);
  EXPECT_EQ(cached->work().cache_misses, 4);
  EXPECT_EQ(cached->work().tokens, 3 + 4 + 3 + 3);
}

TEST_F(CachedScorer, CountsItsMemoryTowardsTheLimit) {
  const auto plain = open("bert_sequence", 0), cached = open("bert_sequence", 64 << 20);
  const auto bytes_of = [](const std::shared_ptr<Scorer>& scorer) {
    return brim::plan_together({&scorer, 1}).peak_bytes;
  };
  EXPECT_EQ(bytes_of(cached), bytes_of(plain) + (64 << 20));
  EXPECT_THROW(open("bert_sequence", int64_t{1} << 30), Error) << "as large as the limit";
}

// Models of one queue share the cache, but not their results.
TEST_F(CachedScorer, KeepsResultsOfModelsApart) {
  const auto first = open("bert_sequence", 1 << 20);
  ScorerOptions o = cpu_options(temp_.path() / "bert_sequence");
  o.raw_scores = true;
  const Prediction want = first->submit({.text = "w5"}).get();
  const auto second = open_beside(*first, o);
  expect_same(second->submit({.text = "w5"}).get(), want);
  EXPECT_EQ(second->work().cache_hits, 0);
  EXPECT_EQ(second->work().cache_misses, 1);
}

}  // namespace
}  // namespace brim::engine
