// SPDX-License-Identifier: Apache-2.0
// Tests models that are unloaded and reloaded: on request, for lack of memory, or because their files changed. File
// changes without unloading are tested in model_files_test.cc.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/test_files.h"
#include "engine/engine.h"
#include "engine/testing.h"
#include "memory/ledger.h"
#include "model/golden_models.h"

namespace brim::engine {
namespace {

class ResidencyTest : public ::testing::Test {
 protected:
  std::string put(const std::string& name, const char* model = "bert_sequence") {
    const auto dir = temp_.path() / name;
    model::put_golden_model(dir, model);
    return dir.string();
  }
  ScorerOptions options(const std::string& model, std::optional<Pooling> pooling = {}) {
    ScorerOptions o = cpu_options(model);
    o.threads = 1;
    o.pooling = pooling;
    o.in_turn = true;
    return o;
  }
  TempDir temp_;
};

// Loaded kernels are reused only by a model of the same shape, batch sizes and output.
TEST_F(ResidencyTest, WarmsUpSeparatelyForAnotherOutputOrLimit) {
  EngineOptions options;
  options.model_dir = put("model");
  options.device = device::read_device("cpu");
  const auto engine = Engine::open(options);
  DeviceQueue& queue = engine->scheduler().queue();
  const plan::Plan& ran = engine->plan();
  for (const auto batches : {DeviceQueue::Batches::all, DeviceQueue::Batches::captured}) {
    queue.note_run(engine->shape(), ran, batches);
    EXPECT_TRUE(queue.has_run(engine->shape(), ran, batches));
    plan::Plan vectors = ran, longer = ran, more = ran;
    vectors.output = model::Output::mean_hidden;
    ++longer.max_length;
    ++more.max_sequences;
    for (const plan::Plan* other : {&vectors, &longer, &more})
      EXPECT_FALSE(queue.has_run(engine->shape(), *other, batches));
  }
}

TEST_F(ResidencyTest, LoadingParkingAndSwitchingStayUnderTheLimit) {
  std::vector<EngineOptions> options(3);
  for (size_t i = 0; i < options.size(); ++i) {
    options[i].model_dir = put(fmt::format("model{}", i), i == 1 ? "roberta_sequence" : "bert_sequence");
    options[i].device = device::read_device("cpu");
    options[i].precision = plan::read_precision("fp32");
    options[i].threads = 1;
  }
  const std::vector<std::string_view> texts{"w5 w6 w7", "w8", "w9 w10 w11 w12"};
  std::vector<std::vector<std::vector<float>>> want;
  int64_t own = 0, context = 0;
  for (const EngineOptions& o : options) {
    const auto alone = Engine::open(o);
    want.push_back(alone->score(texts));
    own = std::max(own, total_bytes(alone->plan().own_parts()));
    context = alone->plan().device.context_bytes;
  }
  std::mt19937 random(15);
  int limits = 0, parks = 0, loads = 0, crowded = 0;
  for (int64_t limit = context + own; limits < 5 && limit < int64_t{1} << 30; limit += own / 2) {
    options[0].memory_limit = plan::MemoryLimit::read(fmt::format("{}B", limit));
    std::vector<std::unique_ptr<Engine>> engines;
    try {
      engines = Engine::open_together(options, plan::Residency::in_turn);
    } catch (const Error& e) {
      ASSERT_EQ(e.code(), ErrorCode::does_not_fit) << e.what();
      continue;
    }
    ++limits;
    Scheduler& scheduler = engines[0]->scheduler();
    const memory::Ledger& ledger = memory::Ledger::of(engines[0]->device());
    const int64_t weights = engines[0]->host().weight_bytes();
    for (int step = 0; step < 100; ++step) {
      const size_t m = random() % engines.size();
      Engine& engine = *engines[m];
      switch (random() % 4) {
        case 0:
          engine.park();
          EXPECT_NE(engine.host().residence(), Residence::resident);
          parks += engine.host().residence() == Residence::parked;
          break;
        case 1:
          engine.load_weights();
          EXPECT_TRUE(engine.host().resident());
          break;
        case 2:
          scheduler.set_parked_limit(static_cast<int64_t>(random() % 4) * weights * 11 / 10);
          break;
        default:
          EXPECT_EQ(engine.score(texts), want[m]) << "limit " << limit << ", step " << step;
      }
      ASSERT_LE(ledger.reserved_bytes(), limit);
    }
    EXPECT_LE(ledger.most_reserved_bytes(), limit);
    for (const auto& engine : engines) {
      loads += static_cast<int>(engine->host().loads());
      crowded += engine->host().residence() != Residence::resident;
      engine->park();
    }
    const int64_t empty = ledger.reserved_bytes();
    for (const auto& engine : engines) EXPECT_FALSE(engine->host().resident());
    engines[2]->load_weights();
    EXPECT_EQ(ledger.reserved_bytes(), empty + engines[2]->host().own_bytes()) << "all of it came and went";
  }
  EXPECT_EQ(limits, 5);
  EXPECT_GT(parks, 20);
  EXPECT_GT(loads, 100);
  EXPECT_GT(crowded, 0);
}

TEST_F(ResidencyTest, ReloadsAModelWithItsNextText) {
  const auto scorer = Scorer::open(options(put("model")));
  const Prediction before = scorer->submit({.text = "w5 w6"}).get();
  EXPECT_EQ(scorer->residence(), Residence::resident);
  scorer->park();
  EXPECT_EQ(scorer->residence(), Residence::disk) << "on a CPU its files are as near as a copy of them";
  EXPECT_EQ(scorer->submit({.text = "w5 w6"}).get().scores, before.scores);
  EXPECT_EQ(scorer->residence(), Residence::resident);
  scorer->park();
  std::filesystem::remove(temp_.path() / "model/model.safetensors");
  EXPECT_THROW(scorer->load_weights(), Error);
  EXPECT_EQ(scorer->submit({.text = "w5"}).get().error->code(), ErrorCode::bad_model);
}

TEST_F(ResidencyTest, RejectsReplacedModelFiles) {
  const auto scorer = Scorer::open(options(put("model")));
  scorer->park();
  put("model", "bert_token");
  EXPECT_EQ(scorer->submit({.text = "w5"}).get().error->remedy(), "reload the model");
  EXPECT_EQ(scorer->residence(), Residence::disk);
  put("model");  // same shape, but tokenizer and labels may differ
  const auto weights = temp_.path() / "model/model.safetensors";
  std::filesystem::last_write_time(weights, std::filesystem::last_write_time(weights) + std::chrono::seconds(1));
  EXPECT_EQ(scorer->submit({.text = "w5"}).get().error->remedy(), "reload the model");
  EXPECT_FALSE(open_beside(*scorer, options(put("model")))->submit({.text = "w5"}).get().error);
}

TEST_F(ResidencyTest, ReopenedModelJoinsTheQueue) {
  const std::vector<ScorerOptions> all{options(put("a")), options(put("b"))};
  auto scorers = open_together(all);
  const auto again = open_beside(*scorers[0], all[1]);
  EXPECT_EQ(again->plan().peak_bytes, scorers[1]->plan().peak_bytes) << "the same plan";
  EXPECT_EQ(again->submit({.text = "w5"}).get().scores, scorers[1]->submit({.text = "w5"}).get().scores);
  scorers[1].reset();
  scorers[0].reset();  // the queue lives as long as its last model
  EXPECT_FALSE(again->submit({.text = "w5"}).get().error);
  // A model that cannot be opened does not affect others.
  std::filesystem::remove(temp_.path() / "a/model.safetensors");
  EXPECT_THROW(open_beside(*again, all[0]), Error);
  EXPECT_FALSE(again->submit({.text = "w5"}).get().error);
  EXPECT_EQ(open_beside(*again, {.model = "vader"})->kind(), ModelKind::rules);
}

TEST_F(ResidencyTest, PlansSharedMemoryOnce) {
  const auto scorers = open_together(std::vector<ScorerOptions>{options(put("a")), options(put("b"))});
  const MemoryPlan one = scorers[0]->plan(), both = plan_together(scorers);
  const int64_t own = one.peak_bytes - one.shared_bytes;
  EXPECT_GT(one.shared_bytes, 0);
  EXPECT_GT(own, 0);
  EXPECT_EQ(both.peak_bytes, one.shared_bytes + 2 * own);
  EXPECT_EQ(both.limit_bytes, one.limit_bytes);
  int64_t sum = 0;
  for (const auto& [purpose, bytes] : both.bytes) sum += bytes;
  EXPECT_EQ(sum, both.peak_bytes);
  scorers[1]->park();
  EXPECT_EQ(plan_together(scorers).peak_bytes, one.peak_bytes) << "it is off the device";
  const std::vector<std::shared_ptr<Scorer>> rules{Scorer::open({.model = "vader"})};
  EXPECT_EQ(plan_together(rules).peak_bytes, 0);
}

TEST_F(ResidencyTest, ModelOfAnotherShapeJoinsTheQueue) {
  EngineOptions first;
  first.model_dir = put("first");
  first.device = device::read_device("cpu");
  first.precision = plan::read_precision("fp32");
  first.threads = 1;
  first.memory_limit = plan::MemoryLimit::read("1GiB");
  const auto engine = Engine::open(first);
  const memory::Ledger& ledger = memory::Ledger::of(engine->device());
  const std::vector<std::string_view> texts{"w5 w6 w7", "w8"};
  const auto before = engine->score(texts);
  EngineOptions another = first;
  for (const char* model : {"albert_sequence", "roberta_sequence", "distilbert_sequence", "bert_multilabel"}) {
    another.model_dir = put(model, model);
    const int64_t reserved = ledger.reserved_bytes();
    const auto joined = Engine::open_beside(*engine, another);
    EXPECT_EQ(&memory::Ledger::of(joined->device()), &ledger) << "one limit for both";
    EXPECT_EQ(ledger.reserved_bytes(), reserved + joined->host().own_bytes()) << "the queue is there already";
    EXPECT_LE(joined->plan().peak_bytes, ledger.limit_bytes());
    EXPECT_EQ(joined->score(texts), Engine::open(another)->score(texts)) << model;
    EXPECT_EQ(engine->score(texts), before);
  }
  // Longer texts than the queue was sized for: not even one fits.
  another.model_dir = put("long", "roberta_head64");
  first.max_length = 8;
  first.memory_limit = plan::MemoryLimit::read(fmt::format(
      "{}B", engine->plan().device.context_bytes + total_bytes(engine->plan().own_parts()) + (int64_t{384} << 10)));
  std::unique_ptr<Engine> narrow;
  ASSERT_NO_THROW(narrow = Engine::open(first));
  try {
    Engine::open_beside(*narrow, another);
    ADD_FAILURE() << "a queue for 8 tokens took a text of 128";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::does_not_fit) << e.what();
  }
  EXPECT_FALSE(narrow->score(texts).empty()) << "it harmed nobody";
}

// Three models with capacity for two.
class CapacityForTwo : public ResidencyTest {
 protected:
  void SetUp() override {
    std::vector<EngineOptions> options(3);
    for (size_t i = 0; i < options.size(); ++i) {
      options[i].model_dir = put(fmt::format("model{}", i));
      options[i].device = device::read_device("cpu");
      options[i].precision = plan::read_precision("fp32");
      options[i].threads = 1;
    }
    int64_t own = 0, context = 0;
    {
      const auto alone = Engine::open(options[0]);
      own = total_bytes(alone->plan().own_parts());
      context = alone->plan().device.context_bytes;
    }
    for (int64_t limit = context + 2 * own; engines_.empty(); limit += own / 4) {
      ASSERT_LT(limit, context + 64 * own);
      options[0].memory_limit = plan::MemoryLimit::read(fmt::format("{}B", limit));
      try {
        engines_ = Engine::open_together(options, plan::Residency::in_turn);
      } catch (const Error& e) {
        ASSERT_EQ(e.code(), ErrorCode::does_not_fit) << e.what();
        continue;
      }
      for (const auto& engine : engines_) engine->load_weights();
      if (resident() != 2) engines_.clear();
    }
    for (const auto& engine : engines_) engine->park();
  }
  int resident() const {
    int n = 0;
    for (const auto& engine : engines_) n += engine->host().resident();
    return n;
  }
  bool resident(size_t m) const { return engines_[m]->host().resident(); }
  void score_texts(size_t m, size_t texts) {
    engines_[m]->score(std::vector<std::string_view>(texts, "w5 w6"));
    EXPECT_TRUE(resident(m));
  }
  std::vector<std::unique_ptr<Engine>> engines_;
};

TEST_F(CapacityForTwo, EvictsTheLeastRequestedModelFirst) {
  score_texts(0, 2000);
  score_texts(1, 1);  // more recent, but rarely used
  score_texts(2, 1);
  EXPECT_TRUE(resident(0)) << "though it was idle longest";
  EXPECT_FALSE(resident(1));
  score_texts(1, 2000);
  EXPECT_FALSE(resident(2));
  EXPECT_TRUE(resident(0));
}

TEST_F(CapacityForTwo, NeverEvictsAKeptModel) {
  score_texts(0, 1);
  score_texts(1, 2000);
  engines_[0]->keep(true);
  score_texts(2, 1);
  EXPECT_TRUE(resident(0)) << "though it is worth least";
  EXPECT_FALSE(resident(1));
  engines_[2]->keep(true);
  try {
    score_texts(1, 1);
    ADD_FAILURE() << "both places are kept";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::does_not_fit) << e.what();
  }
  EXPECT_TRUE(resident(0) && resident(2));
  engines_[2]->keep(false);
  score_texts(1, 1);
  EXPECT_TRUE(resident(0));
  EXPECT_FALSE(resident(2));
}

TEST_F(ResidencyTest, EvictionCostDecaysOverMinutes) {
  EngineOptions one;
  one.model_dir = put("model");
  one.device = device::read_device("cpu");
  one.threads = 1;
  one.memory_limit = plan::MemoryLimit::read("1GiB");
  const auto engine = Engine::open(one);
  auto& host = const_cast<ModelHost&>(engine->host());
  constexpr int64_t kMinute = 60'000'000'000, kBegin = 1000 * kMinute;
  EXPECT_EQ(host.eviction_cost(kBegin), 0) << "no requests";
  host.note_texts(100, kBegin);
  const double now = host.eviction_cost(kBegin);
  EXPECT_GT(now, 0);
  EXPECT_LT(host.eviction_cost(kBegin + 10 * kMinute), now / 2);
  EXPECT_LT(host.eviction_cost(kBegin + 60 * kMinute), now / 300);
  host.note_texts(100, kBegin + 60 * kMinute);
  EXPECT_NEAR(host.eviction_cost(kBegin + 60 * kMinute), now, now / 100);
  host.note_texts(100, kBegin + 60 * kMinute);
  EXPECT_NEAR(host.eviction_cost(kBegin + 60 * kMinute), 2 * now, now / 100);
}

int thread_count() {
  int n = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) n += !task.path().empty();
  return n;
}

TEST_F(ResidencyTest, ClosesAnIdleDeviceAndReopensItWithTheNextText) {
  std::vector<ScorerOptions> all{options(put("a")), options(put("b", "bert_token"))};
  for (ScorerOptions& o : all) o.threads = 4;
  const auto scorers = open_together(all);
  const auto labels = scorers[0]->submit({.text = "w5 w6"}).get().scores;
  const auto entities = scorers[1]->submit({.text = "w5 w6"}).get().entities;
  const MemoryPlan before = plan_together(scorers);
  const std::string device = scorers[0]->device();
  scorers[0]->park();
  EXPECT_FALSE(scorers[0]->close_device()) << "the other is there";
  const int threads = thread_count();
  scorers[1]->park();
  EXPECT_TRUE(scorers[0]->close_device());
  EXPECT_TRUE(scorers[1]->close_device()) << "it is";
  EXPECT_EQ(plan_together(scorers).peak_bytes, 0) << "not even what the program holds is counted";
  EXPECT_EQ(plan_together(scorers).limit_bytes, before.limit_bytes);
  wait_until([&] { return thread_count() == threads - 3; });  // its threads ended
  EXPECT_EQ(scorers[0]->device(), device);
  EXPECT_EQ(scorers[0]->residence(), Residence::disk);
  EXPECT_EQ(scorers[0]->load().texts, 0);

  EXPECT_EQ(scorers[0]->submit({.text = "w5 w6"}).get().scores, labels);
  wait_until([&] { return thread_count() == threads; });
  EXPECT_FALSE(scorers[1]->close_device());
  EXPECT_EQ(scorers[1]->submit({.text = "w5 w6"}).get().entities.size(), entities.size());
  EXPECT_EQ(plan_together(scorers).peak_bytes, before.peak_bytes) << "the same plan";
  for (const auto& scorer : scorers) scorer->park();
  EXPECT_TRUE(scorers[0]->close_device());
  scorers[1]->load_weights();  // counts as use without a text
  EXPECT_EQ(scorers[1]->residence(), Residence::resident);
  scorers[1]->park();
  EXPECT_TRUE(scorers[0]->close_device());
  const auto again = open_beside(*scorers[0], all[0]);
  EXPECT_EQ(again->submit({.text = "w5 w6"}).get().scores, labels);
  EXPECT_FALSE(Scorer::open({.model = "vader"})->close_device()) << "rules have none";
}

TEST_F(ResidencyTest, StaysClosedWhileOtherProcessesHoldTheMemory) {
  EngineOptions one;
  one.model_dir = put("model");
  one.device = device::read_device("cpu");
  one.threads = 2;
  one.memory_limit = plan::MemoryLimit::read("1GiB");
  const auto engine = Engine::open(one);
  const std::vector<std::string_view> texts{"w5 w6 w7", "w8"};
  const auto want = engine->score(texts);
  memory::Ledger& ledger = memory::Ledger::of(engine->device());
  const int64_t context = ledger.context_bytes();
  ASSERT_GT(context, 0);
  engine->park();
  ASSERT_TRUE(engine->close_device());
  ASSERT_EQ(ledger.reserved_bytes(), 0);
  // Less than the process's fixed memory; then exactly that, without a batch
  for (const int64_t left : {int64_t{4096}, context + 4096}) {
    const auto others = ledger.reserve(memory::Tag::workspace, "others", ledger.limit_bytes() - left);
    for (int twice = 0; twice < 2; ++twice) try {
        engine->score(texts);
        ADD_FAILURE() << "scored with " << left << " bytes";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::does_not_fit) << e.what();
      }
    EXPECT_EQ(ledger.reserved_bytes(), others.bytes()) << "nothing is held for an opening that failed";
    EXPECT_FALSE(engine->host().resident());
  }
  EXPECT_EQ(engine->score(texts), want);
}

TEST_F(ResidencyTest, AnswersTextsSubmittedWhileTheDeviceIsClosed) {
  const auto scorer = Scorer::open(options(put("model")));
  const auto want = scorer->submit({.text = "w5 w6"}).get().scores;
  std::atomic<bool> ended{false};
  std::thread closing([&] {
    while (!ended) {
      scorer->park();
      scorer->close_device();
    }
  });
  for (int i = 0; i < 100; ++i) {
    const Prediction p = scorer->submit({.text = "w5 w6"}).get();
    EXPECT_FALSE(p.error) << p.error->what();
    EXPECT_EQ(p.scores, want);
  }
  ended = true;
  closing.join();
}

TEST_F(ResidencyTest, ReturnsTokenVectors) {
  const std::string model = put("model");
  const auto every = Scorer::open(options(model, Pooling::none)), mean = Scorer::open(options(model, Pooling::mean));
  std::vector<std::string> texts(300, "w5");  // enough to fill batches
  std::vector<std::future<Prediction>> all_of, one_of;
  for (size_t t = 0; t < texts.size(); ++t) {
    for (size_t word = 0; word < t % 20; ++word) texts[t] += " w6";
    all_of.push_back(every->submit({.text = texts[t]}));
    one_of.push_back(mean->submit({.text = texts[t]}));
  }
  for (size_t t = 0; t < texts.size(); ++t) {
    const Prediction all = all_of[t].get(), one = one_of[t].get();
    ASSERT_EQ(all.vectors, static_cast<int>(t % 20) + 3) << "special tokens too";
    ASSERT_EQ(one.vectors, 1);
    const size_t width = one.embedding.size();
    ASSERT_EQ(all.embedding.size(), width * static_cast<size_t>(all.vectors));
    for (size_t d = 0; d < width; ++d) {
      double sum = 0;
      for (int v = 0; v < all.vectors; ++v) sum += all.embedding[static_cast<size_t>(v) * width + d];
      EXPECT_NEAR(sum / all.vectors, one.embedding[d], 1e-5);
    }
  }
  const std::vector<std::string_view> few{"w5"};
  EXPECT_THROW((void)every->score(few), Error);
  const std::vector<int32_t> ids{2, 5};
  EXPECT_EQ(every->decode(ids, true), mean->decode(ids, true));
  EXPECT_THROW((void)Scorer::open({.model = "vader"})->decode(ids, true), Error);
}

}  // namespace
}  // namespace brim::engine
