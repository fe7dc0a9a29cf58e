// SPDX-License-Identifier: Apache-2.0
// Tests admission, order and completion of waiting texts. Scores are tested in scorer_test.cc.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <thread>

#include "base/test_files.h"
#include "engine/engine.h"
#include "model/golden_models.h"

namespace brim::engine {
namespace {

class InteractiveTest : public ::testing::Test {
 protected:
  struct Numbered : PendingText {
    int number = 0;
  };
  static constexpr int64_t kBatchTokens = 1024;
  static constexpr int32_t kWindow = 16;

  void SetUp() override {
    model::put_golden_model(dir_ / "model", "bert_sequence");
    EngineOptions options;
    options.model_dir = dir_ / "model";
    options.device = device::read_device("cpu");
    options.precision = plan::read_precision("fp32");
    options.threads = 1;
    engine_ = Engine::open(options);
    limits_.pack = {kBatchTokens, 1000};
    limits_.position_offset = engine_->shape().position_offset;
    limits_.width = engine_->width();
    limits_.tokens_per_second = 1;  // predictions last for minutes, independent of this machine's speed
    limits_.most_seconds = 1e9;
    limits_.most_bytes = int64_t{1} << 40;
  }
  void TearDown() override { release_device(); }

  void open() {
    interactive_ =
        std::make_unique<InteractiveQueue>(engine_->scheduler(), engine_->host(), limits_, [&](PendingTexts& done) {
          std::lock_guard lock(mutex_);
          batches_.push_back(done.size());
          for (const auto& text : done) {
            order_.push_back(static_cast<const Numbered&>(*text).number);
            codes_.push_back(text->error ? std::optional(text->error->code()) : std::nullopt);
            last_error_ = text->error ? text->error->what() : "";
            if (order_.back() == std::exchange(throws_at_, order_.back() == throws_at_ ? -1 : throws_at_))
              throw std::bad_alloc();
            if (order_.back() == stops_at_) stop_.request_stop();
          }
        });
  }
  // The device thread starts nothing until release_device().
  void hold() {
    held_ = go_ = false;
    holding_ = std::thread([this] {
      engine_->scheduler().call([this] {
        held_ = true;
        wait_until([this] { return go_.load(); });
      });
    });
    wait_until([this] { return held_.load(); });
  }
  void release_device() {
    go_ = true;
    if (holding_.joinable()) holding_.join();
  }
  static std::unique_ptr<Numbered> text(int number, uint64_t client, int windows = 1) {
    auto text = std::make_unique<Numbered>();
    text->number = number;
    text->client = client;
    text->tokens.ids.assign(static_cast<size_t>(windows * kWindow), 5);
    for (int w = 0; w < windows; ++w) text->tokens.windows.push_back({static_cast<size_t>(w * kWindow), kWindow, 0});
    text->tokens.texts.push_back({0, static_cast<size_t>(windows), windows * kWindow, false});
    return text;
  }
  void submit(std::unique_ptr<Numbered> one) {
    PendingTexts texts;
    texts.push_back(std::move(one));
    interactive_->submit(std::move(texts));
  }
  // Submits texts of one window each in one call.
  void submit_many(int first, int count, uint64_t client, const std::stop_token& stop = {}) {
    PendingTexts texts;
    for (int i = 0; i < count; ++i) {
      texts.push_back(text(first + i, client));
      texts.back()->stop = stop;
    }
    interactive_->submit(std::move(texts));
  }
  void wait_answered(size_t n) {
    wait_until([&] {
      std::lock_guard lock(mutex_);
      return order_.size() >= n;
    });
  }
  size_t position_of(int number) {
    return static_cast<size_t>(std::find(order_.begin(), order_.end(), number) - order_.begin());
  }

  TempDir dir_;
  std::unique_ptr<Engine> engine_;
  InteractiveQueue::Limits limits_;
  std::mutex mutex_;
  std::vector<size_t> batches_;
  std::vector<int> order_;
  std::vector<std::optional<ErrorCode>> codes_;
  std::string last_error_;
  std::stop_source stop_;
  int stops_at_ = -1;   // text with a completion that withdraws others
  int throws_at_ = -1;  // text with a completion that throws, once
  std::atomic<bool> held_{false}, go_{true};
  std::thread holding_;
  std::unique_ptr<InteractiveQueue> interactive_;  // last member: closed first
};

TEST_F(InteractiveTest, WaitCountsOwnTextsAndOneTurnOfOthers) {
  limits_.most_seconds = 2000;
  open();
  hold();
  submit_many(0, 1, 1);
  submit_many(1, 1000, 1);
  EXPECT_EQ(codes_.size(), 1000u - 124u) << "2,000 s are 125 texts of 16 tokens";
  EXPECT_EQ(codes_.back(), ErrorCode::busy);
  codes_.clear();
  submit_many(2000, 1, 2);
  EXPECT_TRUE(codes_.empty()) << "another client's text goes before most of those";
  EXPECT_EQ(interactive_->load().wait_seconds, 126 * kWindow) << "which all the same are there";
  const ClientWait own = interactive_->wait_of(1, kWindow, false), other = interactive_->wait_of(3, kWindow, false);
  EXPECT_EQ(own.own_tokens, 125 * kWindow);
  EXPECT_EQ(own.begin_seconds, 126 * kWindow);
  EXPECT_EQ(own.end_seconds, 127 * kWindow);
  EXPECT_EQ(other.own_tokens, 0);
  EXPECT_EQ(other.begin_seconds, 512 + kWindow) << "a turn of the one, and all of the other";
  EXPECT_EQ(other.end_seconds, 512 + 2 * kWindow);
  EXPECT_EQ(interactive_->wait_of(3, 0, true).begin_seconds, 126 * kWindow) << "what may wait goes after them";
  // Many clients make the wait long even if each has few texts.
  for (uint64_t client = 100; client < 200; ++client) submit_many(5000, 40, client);
  EXPECT_EQ(codes_.back(), ErrorCode::busy);
  EXPECT_GT(interactive_->wait_of(99, 0, false).begin_seconds, limits_.most_seconds);
  release_device();
  interactive_->close();
  EXPECT_EQ(interactive_->load().tokens, 0);
}

TEST_F(InteractiveTest, LimitsWaitingBytes) {
  limits_.most_bytes = 10'000;
  open();
  hold();
  submit(text(0, 1, 1000));  // any size is admitted into an empty queue
  EXPECT_TRUE(order_.empty());
  submit_many(1, 1, 2);
  ASSERT_EQ(codes_.size(), 1u);
  EXPECT_EQ(codes_[0], ErrorCode::busy);
  EXPECT_NE(last_error_.find("the limit is 9.77 KiB"), std::string::npos) << last_error_;
  release_device();
  wait_answered(2);
  hold();
  for (int i = 0; i < 100; ++i) submit_many(10 + i, 1, static_cast<uint64_t>(i));
  const size_t refused = codes_.size() - 2;
  EXPECT_GT(refused, 50u);
  EXPECT_LT(refused, 99u);
  release_device();
  wait_answered(102);
  hold();
  submit_many(200, 1, 1);
  EXPECT_EQ(order_.size(), 102u) << "they hold nothing any more";
  release_device();
}

TEST_F(InteractiveTest, OversizedCallIsAnErrorButNotBusy) {
  limits_.most_bytes = 10'000;
  open();
  hold();
  submit_many(0, 100, 1);
  ASSERT_GT(codes_.size(), 50u);
  ASSERT_LT(codes_.size(), 100u);
  for (const auto& code : codes_) EXPECT_EQ(code, ErrorCode::bad_data) << "it would be so again";
  EXPECT_NE(last_error_.find("send fewer texts per call"), std::string::npos) << last_error_;
  const size_t refused = codes_.size();
  submit_many(100, 1, 2);
  EXPECT_EQ(codes_.size(), refused + 1);
  EXPECT_EQ(codes_.back(), ErrorCode::busy) << "others' texts are in its way";
  release_device();
  wait_answered(101);
}

TEST_F(InteractiveTest, RejectsTokenVectorsOverTheLimit) {
  limits_.most_bytes = 10'000;
  limits_.per_token = true;
  open();
  submit(text(0, 1, 1000));
  wait_answered(1);
  EXPECT_EQ(codes_[0], ErrorCode::bad_data);
}

TEST_F(InteractiveTest, ModelsTakeTurns) {
  open();
  EngineOptions options;
  options.model_dir = dir_ / "model";
  const auto engine = Engine::open_beside(*engine_, options);
  InteractiveQueue other(engine->scheduler(), engine->host(), limits_, [](PendingTexts&) {});
  hold();
  submit_many(0, 100, 1);
  EXPECT_EQ(interactive_->load().wait_seconds, 100 * kWindow);
  EXPECT_EQ(other.load().wait_seconds, 0);
  PendingTexts few;
  few.push_back(text(100, 1));
  other.submit(std::move(few));
  EXPECT_EQ(interactive_->load().wait_seconds, 101 * kWindow);
  EXPECT_EQ(other.load().wait_seconds, 2 * kWindow) << "a turn of those";
  EXPECT_EQ(other.wait_of(2, kWindow, false).end_seconds, 4 * kWindow);
  release_device();
  wait_answered(100);
}

TEST_F(InteractiveTest, CpuFailureAffectsOnlyItsBatch) {
  open();
  hold();
  throws_at_ = 3;
  submit_many(0, 200, 1);
  release_device();
  wait_until([&] {
    std::lock_guard lock(mutex_);
    return std::count(codes_.begin(), codes_.end(), ErrorCode::internal) >= 100;
  });
  EXPECT_FALSE(engine_->scheduler().lost());
  order_.clear();
  codes_.clear();
  submit_many(1000, 10, 1);
  wait_answered(10);
  EXPECT_EQ(std::count(codes_.begin(), codes_.end(), std::nullopt), 10);
  EXPECT_EQ(interactive_->load().wait_seconds, 0);
}

TEST_F(InteractiveTest, CancelledTextsAreFreeForTheirClient) {
  open();
  hold();
  std::stop_source stop;
  submit_many(0, 1000, 1, stop.get_token());
  submit_many(1000, 1, 1);
  submit_many(2000, 500, 2);
  stop.request_stop();
  release_device();
  wait_answered(1501);
  std::erase_if(order_, [](int number) { return number < 1000; });
  // After every 256 dropped texts another client gets a turn of 32 texts.
  EXPECT_LE(position_of(1000), 4u * 32) << "they would have been 32 turns";
  EXPECT_EQ(std::count(codes_.begin(), codes_.end(), ErrorCode::cancelled), 1000);
}

TEST_F(InteractiveTest, LongTextTakesTurnsByWindow) {
  open();
  hold();
  submit(text(0, 1, 1000));
  submit_many(1, 40, 2);
  release_device();
  wait_answered(41);
  EXPECT_EQ(order_.back(), 0);
  EXPECT_EQ(batches_.front(), 32u) << "half of the first batch is the other client's";
}

TEST_F(InteractiveTest, LongTextIsCancelledBetweenWindows) {
  open();
  hold();
  stops_at_ = 1;  // in the first batch
  auto text_of_many = text(0, 1, 5000);
  text_of_many->stop = stop_.get_token();
  submit(std::move(text_of_many));
  submit_many(1, 1, 2);
  const int64_t before = engine_->scheduler().work_of(engine_->host()).tokens;
  release_device();
  wait_answered(2);
  EXPECT_EQ(codes_[1], ErrorCode::cancelled);
  EXPECT_EQ(engine_->scheduler().work_of(engine_->host()).tokens - before, kBatchTokens);
  EXPECT_EQ(interactive_->load().tokens, 0);
}

TEST_F(InteractiveTest, ClosingCompletesStartedTexts) {
  open();
  hold();
  submit(text(0, 1, 5000));
  submit_many(1, 1, 2);
  release_device();
  wait_answered(1);
  interactive_->close();
  ASSERT_EQ(order_.size(), 2u);
  EXPECT_EQ(order_[1], 0);
  EXPECT_EQ(interactive_->load().texts, 0);
}

TEST_F(InteractiveTest, BatchRespectsItsEarliestDeadline) {
  const auto first_batch = [&](std::optional<std::chrono::seconds> deadline, uint64_t client = 1) {
    batches_.clear();
    order_.clear();
    open();
    hold();
    PendingTexts texts;
    for (int i = 0; i < 100; ++i) texts.push_back(text(i, 1));
    if (deadline) texts[10]->deadline = std::chrono::steady_clock::now() + *deadline;
    texts[10]->client = client;
    interactive_->submit(std::move(texts));
    release_device();
    wait_answered(100);
    interactive_.reset();
    return batches_[0];
  };
  const size_t whole = kBatchTokens / kWindow;
  EXPECT_EQ(first_batch({}), whole);
  // At one token per second, four fifths of 700 seconds are 560 tokens, or fewer if this machine starts slowly.
  const size_t cut = first_batch(std::chrono::seconds(700));
  EXPECT_LE(cut, 35u);
  EXPECT_GE(cut, 11u);
  EXPECT_EQ(first_batch(std::chrono::seconds(100'000)), whole);
  EXPECT_GE(first_batch(std::chrono::seconds(15)), whole - 1) << "one that is late anyway cuts nothing";
  // A text that arrives late in the batch, after another client's turn of 32 texts, is its last.
  EXPECT_EQ(first_batch(std::chrono::seconds(600), 2), 33u);
}

TEST_F(InteractiveTest, OrdersTextsOfOneClientByDeadline) {
  open();
  hold();
  const auto now = std::chrono::steady_clock::now();
  const auto in = [&](int hours) { return now + std::chrono::hours(hours); };
  submit_many(0, 500, 1);
  submit_many(500, 10, 2);
  for (const auto& [number, hours] : {std::pair(1000, 200), {1001, 100}, {1002, 200}, {1003, 50}}) {
    auto urgent = text(number, 1);
    urgent->deadline = in(hours);
    submit(std::move(urgent));
  }
  const auto begins_after = [&](Deadline deadline, bool bulk = false) {
    return interactive_->wait_of(1, 0, bulk, deadline).begin_seconds / kWindow;
  };
  EXPECT_EQ(begins_after(in(1)), 10) << "nothing of its own, and the other's turn";
  EXPECT_EQ(begins_after(in(50)), 11);
  EXPECT_EQ(begins_after(in(150)), 12);
  EXPECT_EQ(begins_after(in(200)), 14);
  EXPECT_EQ(begins_after({}), 514);
  EXPECT_EQ(begins_after(in(1), true), 514) << "what may wait goes after all of them";
  release_device();
  wait_answered(514);
  std::erase_if(order_, [](int number) { return number >= 500 && number < 510; });
  EXPECT_EQ(std::vector<int>(order_.begin(), order_.begin() + 5), (std::vector<int>{1003, 1001, 1000, 1002, 0}));
}

// For random work every text is completed once with the expected result, no batch exceeds its budget, texts of one
// client keep their order, and bulk work gets its tenth without long runs.
class RandomWork : public InteractiveTest {
 protected:
  struct Wanted {
    Deadline deadline;
    std::optional<ErrorCode> code;
    bool may_be_cancelled = false;
  };
  struct BulkTurn {
    int64_t texts_before, bulk_before, tokens;
  };

  int draw(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  int64_t tokens_done() { return engine_->scheduler().work_of(engine_->host()).tokens; }

  void submit_bulk(BulkQueue& bulk, bool full) {
    const std::vector<int32_t> ids(kWindow, 5);
    for (int i = 0; i < 20; ++i) {
      // As large as a batch of a file, or smaller like the end of a list.
      const int windows = full ? 32 + draw(97) : 1 + draw(128);
      batch::PackedBatch batch;
      for (int w = 0; w < windows; ++w) batch.add({ids.data(), kWindow, 0}, engine_->shape().position_offset);
      batch.finish();
      bulk.submit(batch);
    }
  }

  void submit_texts(const std::stop_token& withdrawn) {
    const auto now = std::chrono::steady_clock::now();
    for (int calls = 10 + draw(40); calls > 0; --calls) {
      PendingTexts texts;
      for (int n = 1 + draw(40); n > 0; --n) {
        auto one = text(static_cast<int>(wanted_.size()), static_cast<uint64_t>(draw(5)), 1 + draw(4));
        Wanted& want = wanted_.emplace_back();
        one->bulk = draw(4) == 0;
        if (draw(3) == 0) one->deadline = now + std::chrono::hours(100 + draw(4));
        if (draw(10) == 0) {
          one->stop = withdrawn;
          want.code = ErrorCode::cancelled;
        } else if (draw(10) == 0) {
          one->deadline = now - std::chrono::seconds(1);
          want.code = ErrorCode::timed_out;
        } else if (draw(10) == 0) {
          one->stop = stop_.get_token();
          want.may_be_cancelled = true;
        } else {
          by_client_[{one->client, one->bulk}].push_back(one->number);
        }
        want.deadline = one->bulk ? std::nullopt : one->deadline;
        texts.push_back(std::move(one));
      }
      interactive_->submit(std::move(texts));
    }
  }

  void check_answers() {
    ASSERT_EQ(order_.size(), wanted_.size());
    std::vector<int> times(wanted_.size());
    std::vector<size_t> place(wanted_.size());
    for (size_t i = 0; i < order_.size(); ++i) {
      const auto number = static_cast<size_t>(order_[i]);
      ++times[number];
      place[number] = i;
      const Wanted& want = wanted_[number];
      if (!want.may_be_cancelled || codes_[i] != ErrorCode::cancelled) {
        EXPECT_EQ(codes_[i], want.code) << number;
      }
    }
    EXPECT_EQ(std::count(times.begin(), times.end(), 1), std::ssize(times));
    for (auto& [client, numbers] : by_client_) {
      const auto due = [&](int number) {
        return wanted_[static_cast<size_t>(number)].deadline.value_or(std::chrono::steady_clock::time_point::max());
      };
      std::stable_sort(numbers.begin(), numbers.end(), [&](int a, int b) { return due(a) < due(b); });
      const auto earlier = [&](int a, int b) { return place[static_cast<size_t>(a)] < place[static_cast<size_t>(b)]; };
      EXPECT_TRUE(std::is_sorted(numbers.begin(), numbers.end(), earlier)) << client.first << " " << client.second;
    }
  }

  void check_turns(int64_t text_tokens) {
    int64_t run = 0;  // tokens of consecutive bulk batches while texts wait
    for (size_t i = 0; i < turns_.size(); ++i) {
      EXPECT_LE(turns_[i].texts_before, TurnRule::kTokensPerBulkToken * turns_[i].bulk_before + 5 * kBatchTokens) << i;
      const bool follows = i > 0 && turns_[i - 1].texts_before == turns_[i].texts_before;
      run = follows && turns_[i].texts_before < text_tokens ? run + turns_[i].tokens : 0;
      EXPECT_LE(run, TurnRule::kInteractiveStreak * kBatchTokens / TurnRule::kTokensPerBulkToken) << i;
    }
  }

  std::mt19937 random_;
  std::vector<Wanted> wanted_;
  std::map<std::pair<uint64_t, bool>, std::vector<int>> by_client_;  // computed texts
  std::vector<BulkTurn> turns_;                                      // used by the device thread
};

TEST_F(RandomWork, KeepsAllInvariants) {
  ASSERT_GE(engine_->plan().token_budget, 2 * kBatchTokens);
  for (uint32_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    random_.seed(seed);
    order_.clear();
    codes_.clear();
    wanted_.clear();
    by_client_.clear();
    turns_.clear();
    stop_ = std::stop_source();
    std::stop_source withdrawn;
    withdrawn.request_stop();
    open();
    hold();
    const int64_t before = tokens_done();
    int64_t bulk_tokens = 0;  // used by the device thread
    const auto collect = [&](const batch::PackedBatch& batch, const float*) {
      turns_.push_back({tokens_done() - before - bulk_tokens, bulk_tokens, batch.tokens()});
      bulk_tokens += batch.tokens();
    };
    BulkQueue bulk(engine_->scheduler(), engine_->host(), 2 * kBatchTokens, collect);
    submit_bulk(bulk, seed % 2 == 0);
    submit_texts(withdrawn.get_token());
    stops_at_ = by_client_.begin()->second.front();
    release_device();
    bulk.finish();
    wait_answered(wanted_.size());
    interactive_->close();
    check_answers();
    EXPECT_EQ(engine_->scheduler().work_of(engine_->host()).batch_fill.counts.back(), 0) << "batches over their budget";
    check_turns(tokens_done() - before - bulk_tokens);
  }
}

}  // namespace
}  // namespace brim::engine
