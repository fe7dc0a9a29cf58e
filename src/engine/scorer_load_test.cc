// SPDX-License-Identifier: Apache-2.0
// Tests scorers under concurrent work: every request is completed exactly once, bulk results do not depend on other
// load, and load and work are reported. Admission rules are tested in interactive_test.cc.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "base/clock.h"
#include "brim/brim.h"
#include "engine/engine.h"
#include "engine/scorer_fixture.h"

namespace brim::engine {
namespace {

using Clock = std::chrono::steady_clock;

TEST_F(ScorerTest, WorkReportsBatchesAndIdleTime) {
  const int64_t opened = now_ns();
  const auto scorer = Scorer::open(options());
  const auto total = [](const ValueCounts& values) {
    EXPECT_EQ(values.counts.size(), values.bounds.size() + 1);
    return std::accumulate(values.counts.begin(), values.counts.end(), int64_t{0});
  };
  const ScorerWork none = scorer->work();
  EXPECT_EQ(none.loads, 1);
  EXPECT_GT(none.load_seconds, 0);
  EXPECT_EQ(total(none.batch_tokens), 0);

  scorer->submit({.text = "a good day"}).get();  // one batch of one text
  const ScorerWork one = scorer->work();
  ASSERT_EQ(one.batches, 1);
  EXPECT_EQ(one.batch_tokens.sum, static_cast<double>(one.tokens));
  EXPECT_EQ(one.batch_tokens.counts[0], 1) << "at most 16 tokens";
  EXPECT_EQ(one.batch_sequences.counts[0], 1);
  const auto most = static_cast<double>(scorer->plan().tokens_per_interactive_batch);
  EXPECT_DOUBLE_EQ(one.batch_fill.sum, static_cast<double>(one.tokens) / most);
  EXPECT_EQ(total(one.prediction_error), 1);
  EXPECT_GT(one.idle.pack, 0);

  const auto texts = make_texts(3000, 4);
  scorer->score(views(texts));  // without predictions
  const ScorerWork many = scorer->work();
  EXPECT_EQ(total(many.batch_tokens), many.batches);
  EXPECT_EQ(total(many.batch_sequences), many.batches);
  EXPECT_EQ(many.batch_sequences.sum, 3001);
  EXPECT_EQ(many.batch_tokens.sum, static_cast<double>(many.tokens));
  EXPECT_EQ(total(many.batch_fill), many.batches);
  EXPECT_EQ(many.batch_fill.counts.back(), 0) << "no batch is more than full";
  EXPECT_EQ(total(many.prediction_error), 1);
  EXPECT_GT(many.idle.collect, one.idle.collect);
  EXPECT_EQ(many.idle.switching, one.idle.switching);

  scorer->park();
  scorer->load_weights();
  const ScorerWork again = scorer->work();
  EXPECT_EQ(again.loads, 2);
  EXPECT_GT(again.load_seconds, none.load_seconds);
  EXPECT_GT(again.idle.switching, many.idle.switching);
  EXPECT_GT(again.idle.no_work, 0);
  EXPECT_LT(again.idle.no_work, scorer->work().idle.no_work) << "also while it still waits";
  const ScorerWork::Idle& idle = again.idle;
  EXPECT_LE(again.busy_seconds + idle.no_work + idle.pack + idle.collect + idle.switching, seconds_since(opened));
}

TEST_F(ScorerTest, LoadReportsTheElapsedTimeOfABatch) {
  const auto scorer = Scorer::open(options());
  EXPECT_EQ(scorer->load().batch_seconds, 0);
  const auto texts = make_texts(5000, 7);
  std::jthread working([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) scorer->score(views(texts), stop);
  });
  ScorerLoad seen;
  wait_until([&] { return (seen = scorer->load()).batch_seconds > 0; });
  EXPECT_GT(seen.batch_predicted_seconds, 0);
  EXPECT_EQ(seen.texts, 0) << "none was submitted";
  working.request_stop();
  working.join();
  EXPECT_EQ(scorer->load().batch_seconds, 0);
}

TEST_F(ScorerTest, BulkScoresDoNotDependOnOtherWork) {
  ScorerOptions o = options();
  o.memory_limit = "200MiB";
  const auto scorer = Scorer::open(o);
  const auto texts = make_texts(4000, 5), others = make_texts(64, 6);
  const Predictions alone = scorer->score(views(texts));
  for (int round = 0; round < 10; ++round) {
    std::atomic<bool> ended{false};
    std::vector<std::thread> callers;
    for (int t = 0; t < round % 4; ++t)
      callers.emplace_back([&, t] {
        for (size_t i = static_cast<size_t>(t); !ended; i = (i + 7) % others.size())
          EXPECT_FALSE(scorer->submit({.text = others[i]}).get().error);
      });
    std::thread bulk([&] { EXPECT_EQ(scorer->score(views(texts)).scores, alone.scores); });
    const Predictions beside = scorer->score(views(texts));
    bulk.join();
    ended = true;
    for (auto& caller : callers) caller.join();
    EXPECT_EQ(beside.scores, alone.scores) << round;
  }
}

TEST_F(ScorerTest, TextsOfOneCallMatchSingleTexts) {
  const auto scorer = Scorer::open(options());
  const auto texts = make_texts(50, 21);
  std::vector<Request> requests;
  for (size_t i = 0; i < texts.size(); ++i) requests.push_back({.text = texts[i], .ticket = i});
  requests.push_back({.text = "\xFF", .ticket = texts.size()});
  Box box(requests.size());
  scorer->submit(requests, box);
  box.wait(requests.size());
  EXPECT_TRUE(box.each_once());
  for (size_t i = 0; i < texts.size(); ++i) {
    const Prediction alone = scorer->submit({.text = texts[i]}).get();
    ASSERT_EQ(box[i].scores.size(), alone.scores.size());
    for (size_t k = 0; k < alone.scores.size(); ++k) EXPECT_NEAR(box[i].scores[k], alone.scores[k], 1e-5);
    EXPECT_EQ(box[i].tokens, static_cast<int32_t>(scorer->tokenize(texts[i]).size()));
  }
  EXPECT_TRUE(box[texts.size()].error);
  const ScorerLoad load = scorer->load();
  EXPECT_EQ(load.texts, 0);
  EXPECT_EQ(load.wait_seconds, 0);
  EXPECT_GT(load.tokens_per_second, 0);
}

TEST_F(ScorerTest, BulkTextsFollowOthers) {
  // Blocks the device thread in its completion while others submit.
  class Gate final : public Completion {
   public:
    void done(std::span<Answer>) noexcept override {
      reached = true;
      wait_until([&] { return open.load(); });
    }
    std::atomic<bool> reached{false}, open{false};
  };
  class Order final : public Completion {
   public:
    void done(std::span<Answer> answers) noexcept override {
      for (const Answer& a : answers) tickets.push_back(a.ticket);
      count = tickets.size();
    }
    std::vector<uint64_t> tickets;  // used by one thread
    std::atomic<size_t> count{0};
  };
  const auto scorer = Scorer::open(options());
  Gate gate;
  Order order;
  scorer->submit({.text = "w6"}, gate);
  wait_until([&] { return gate.reached.load(); });
  for (uint64_t i = 0; i < 5; ++i) scorer->submit({.text = "w6 w7", .ticket = i, .bulk = true}, order);
  scorer->submit({.text = "w8", .ticket = 99}, order);
  EXPECT_EQ(scorer->load().texts, 6);
  EXPECT_EQ(scorer->load().tokens, 5 * 4 + 3) << "with [CLS] and [SEP]";
  EXPECT_EQ(scorer->load().bulk_tokens, 5 * 4);
  EXPECT_GT(scorer->load().wait_seconds, 0);
  gate.open = true;
  wait_until([&] { return order.count >= 6; });
  EXPECT_EQ(order.tickets, (std::vector<uint64_t>{99, 0, 1, 2, 3, 4}));

  // Clients take turns: a text submitted after another client's hundred texts does not wait for all of them.
  Gate second;
  Order turns;
  scorer->submit({.text = "w6"}, second);
  wait_until([&] { return second.reached.load(); });
  const auto texts = make_texts(100, 4, 30);
  for (uint64_t i = 0; i < 100; ++i) scorer->submit({.text = texts[i], .ticket = i, .client = 1}, turns);
  scorer->submit({.text = "w8", .ticket = 999, .client = 2}, turns);
  second.open = true;
  wait_until([&] { return turns.count >= 101; });
  EXPECT_LT(std::find(turns.tickets.begin(), turns.tickets.end(), 999u) - turns.tickets.begin(), 60);
  std::erase(turns.tickets, 999u);
  EXPECT_TRUE(std::is_sorted(turns.tickets.begin(), turns.tickets.end())) << "each in its order";
}

// Load like a server's: threads submit, withdraw and time out while others score and one closes.
TEST_F(ScorerTest, AnswersEveryRequestOnceFromManyThreads) {
  for (uint32_t seed = 0; seed < 3; ++seed) {
    const auto scorer = Scorer::open(options());
    constexpr size_t kThreads = 64, kEach = 40;
    const auto texts = make_texts(kThreads * kEach, seed + 10, 60);
    Box box(texts.size());
    std::atomic<size_t> scored{0}, started{0};
    std::vector<std::thread> threads;
    for (size_t t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        std::mt19937 random(seed * 100 + static_cast<uint32_t>(t));
        for (size_t i = 0; i < kEach; ++i) {
          Request request{.text = texts[t * kEach + i], .ticket = t * kEach + i};
          std::stop_source stop;
          if (random() % 4 == 0) request.stop = stop.get_token();
          if (random() % 4 == 0) request.deadline = Clock::now() + std::chrono::microseconds(random() % 3000);
          scorer->submit(request, box);
          if (random() % 2 == 0) stop.request_stop();
          ++started;
        }
      });
    std::thread bulk([&] {
      try {
        scored = scorer->score(views(texts)).rows;
      } catch (const Error& error) {  // closed before it started
        EXPECT_EQ(error.code(), ErrorCode::cancelled);
      }
    });
    std::thread closer([&] {
      wait_until([&] { return started >= texts.size() * (seed + 1) / 4; });
      scorer->close();
    });
    for (auto& t : threads) t.join();
    bulk.join();
    closer.join();
    box.wait(texts.size());
    EXPECT_TRUE(box.each_once());
  }
}

TEST_F(ScorerTest, ClosingAScorerDoesNotAffectOthers) {
  const auto texts = make_texts(500, 7);
  auto first = Scorer::open(options()), second = Scorer::open(options("bert_token"));
  const Predictions before = first->score(views(texts));
  std::thread other([&] {
    for (int i = 0; i < 3; ++i) EXPECT_EQ(second->score(views(texts)).entities.size(), texts.size());
    second.reset();
  });
  EXPECT_EQ(first->score(views(texts)).scores, before.scores);
  other.join();
  EXPECT_EQ(first->score(views(texts)).scores, before.scores);
}

#if !defined(__SANITIZE_THREAD__)
TEST_F(ScorerTest, ForkedChildGetsAnErrorAndExits) {
  auto scorer = Scorer::open(options());
  EXPECT_FALSE(scorer->submit({.text = "w6"}).get().error);
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 1;
    try {
      (void)scorer->submit({.text = "w6"});
    } catch (const Error& error) {
      code = error.code() == ErrorCode::usage ? 0 : 2;
    }
    scorer.reset();
    ::_exit(code);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_FALSE(scorer->submit({.text = "w6"}).get().error);
}
#endif

}  // namespace
}  // namespace brim::engine
