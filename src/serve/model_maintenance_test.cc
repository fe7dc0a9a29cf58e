// SPDX-License-Identifier: Apache-2.0
// What the server does for its models unasked: loaded ahead of a schedule, tried again, the device closed.
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>

#include "monitor/host.h"
#include "serve/service_fixture.h"

namespace brim::serve {
namespace {

// A model whose weights come and go without a device.
class ComingScorer final : public HeldScorer {
 public:
  Residence residence() const override { return there ? Residence::resident : Residence::disk; }
  ScorerWork work() const override {
    ScorerWork work;
    work.loads = comings;
    return work;
  }
  void load_weights() override {
    ++loads;
    if (!room) throw Error(ErrorCode::does_not_fit, "others have the memory");
    come();
  }
  void park() override { there = false; }
  void keep_loaded(bool keep) override { kept = keep; }
  bool close_device() override {
    if (lost) throw Error(ErrorCode::device_lost, "it has fallen off the bus");
    return closed = !there;
  }
  void submit(std::span<const Request> requests, Completion& completion) override {
    if (mistake) {  // found before anything is loaded
      HeldScorer::submit(requests, completion);
      return answer_all(Error(ErrorCode::usage, "takes no pairs"));
    }
    if (room) come();
    if (leaves_at_once) there = false;
    HeldScorer::submit(requests, completion);
    answer_all(room ? std::optional<Error>() : Error(ErrorCode::does_not_fit, "others have the memory"));
  }
  Predictions score(std::span<const std::string_view> texts, std::stop_token,
                    const std::function<void(size_t)>&) override {
    ++scorings;
    if (!room) throw Error(ErrorCode::does_not_fit, "others have the memory");
    come();
    Predictions p;
    p.rows = texts.size();
    p.width = 2;
    p.labels.assign(p.rows, 1);
    p.label_scores.assign(p.rows, 0.75f);
    for (size_t i = 0; i < p.rows; ++i) p.scores.insert(p.scores.end(), {0.25f, 0.75f});
    p.tokens = static_cast<int64_t>(3 * p.rows);
    return p;
  }
  void come() {
    if (!there.exchange(true)) ++comings;
  }
  std::atomic<bool> room{true}, there{false}, kept{false}, closed{false}, leaves_at_once{false}, mistake{false},
      lost{false};
  std::atomic<int> loads{0}, comings{0}, scorings{0};
};

class TendingTest : public ServiceTest {
 protected:
  // Two rungs: one that comes and goes, which answers from 09:00 to 17:00 UTC, and rules.
  ServerOptions two_rungs() {
    ServerOptions o = serving("model", coming_);
    o.load_retry_seconds = 0;
    o.tick_seconds = 0.02;
    o.models.push_back({"vader", "vader", "2", Scorer::open({.model = "vader"})});
    LadderRules rules;
    rules.name = "ladder";
    rules.rungs = {{"model", {}}, {"vader", {}}};
    rules.default_rung = "vader";
    std::string block = "TZif2" + std::string(31, '\0');
    block += std::string(3, '\0') + '\1' + std::string(3, '\0') + '\4' + std::string(6, '\0') + std::string("LMT\0", 4);
    rules.schedule = Schedule(TimeZone::parse(block + block + "\nUTC0\n", "UTC"),
                              std::vector<TimedRung>{{0x7F, 9 * 60, 17 * 60, "model"}});
    ladder_ = std::make_shared<Ladder>(rules);
    o.ladders.push_back(ladder_);
    o.unix_clock = [this] {
      ++begun_looks_;
      const std::lock_guard held(look_);
      ++looks_;
      return now_.load();
    };
    return o;
  }
  // With queues of the ladder and of its first rung alone.
  ServerOptions with_state(ServerOptions o) {
    o.state_dir = (temp_.path() / "state").string();
    QueueRules news, alone;
    news.name = "news";
    alone.name = "alone";
    alone.model = "model";
    o.queues = {news, alone};
    return o;
  }
  void set_time(int hour, int minute, int second) { now_ = kMidnight + hour * 3600 + minute * 60 + second; }
  // Until the server has tended its models since the last change, twice: one may have been under way.
  void let_it_tend() {
    const int seen = looks_;
    wait_until([&] { return looks_ > seen + 8; });
  }
  // The server's one thread that tends stands still, at its clock, until the lock goes. Nobody else may ask meanwhile.
  std::unique_lock<std::mutex> hold_maintenance() {
    std::unique_lock held(look_);
    wait_until([&] { return begun_looks_ > looks_; });
    return held;
  }
  std::string answering() { return post("/predict", R"({"inputs":"good"})").fields["x-brim-model"].substr(0, 5); }
  std::string status() { return Json::parse(get("/health").body)["status"]; }

  static constexpr int64_t kMidnight = 1780358400;  // 2026-06-02, UTC
  std::shared_ptr<ComingScorer> coming_ = std::make_shared<ComingScorer>();
  std::shared_ptr<Ladder> ladder_;
  std::atomic<int64_t> now_{kMidnight};
  std::mutex look_;
  std::atomic<int> begun_looks_{0}, looks_{0};
};

TEST_F(TendingTest, TheNextRungIsLoadedAheadOfItsTime) {
  ServerOptions o = two_rungs();
  o.models[0].keep_alive_seconds = 0;
  set_time(8, 59, 29);
  start(std::move(o));
  let_it_tend();
  EXPECT_EQ(coming_->loads, 0) << "31 s before";
  set_time(8, 59, 30);
  wait_until([&] { return coming_->there.load(); });
  EXPECT_EQ(answering(), "vader") << "it is not yet time";
  let_it_tend();
  EXPECT_TRUE(coming_->there) << "it waits for its hour, whatever keep_alive says";
  EXPECT_EQ(coming_->loads, 1);
  set_time(9, 0, 0);
  EXPECT_EQ(answering(), "model");
  wait_until([&] { return !coming_->there; });  // keep_alive again
  set_time(16, 59, 45);                         // rules need no loading
  let_it_tend();
  EXPECT_EQ(coming_->loads, 1);
}

TEST_F(TendingTest, ARungThatIsPinnedIsLoadedAndStays) {
  ServerOptions o = two_rungs();
  o.models[0].keep_alive_seconds = 0;
  set_time(3, 0, 0);
  start(std::move(o));
  let_it_tend();
  EXPECT_FALSE(coming_->kept);
  EXPECT_EQ(post("/admin/ladders/ladder/pin?rung=model", "").status, 200);
  wait_until([&] { return coming_->there && coming_->kept; });
  let_it_tend();
  EXPECT_TRUE(coming_->there);
  EXPECT_EQ(post("/admin/ladders/ladder/unpin", "").status, 200);
  wait_until([&] { return !coming_->there && !coming_->kept; });
}

TEST_F(TendingTest, WhoseModelCannotBeLoadedIsToldAndTheNextRungAnswers) {
  ServerOptions o = two_rungs();
  o.load_retry_seconds = 1e9;
  coming_->room = false;
  set_time(10, 0, 0);
  start(std::move(o));
  EXPECT_EQ(status(), "ok");
  const RawAnswer refused = post("/predict", R"({"inputs":"good"})");
  EXPECT_EQ(refused.status, 503) << refused.body;
  EXPECT_NE(refused.body.find("others have the memory"), std::string::npos) << refused.body;
  EXPECT_EQ(Json::parse(refused.body)["error_type"], "Unhealthy");
  EXPECT_NE(refused.fields.find("retry-after"), refused.fields.end());
  EXPECT_EQ(answering(), "vader");
  EXPECT_EQ(status(), "degraded");
  EXPECT_NE(get("/health").body.find("model is unavailable: others have the memory"), std::string::npos);
}

TEST_F(TendingTest, AnswersNameTheRungTheyStandInFor) {
  ServerOptions o = two_rungs();
  o.load_retry_seconds = 1e9;
  coming_->room = false;
  set_time(10, 0, 0);
  start(std::move(o));
  EXPECT_EQ(post("/predict", R"({"inputs":"good"})").status, 503);
  RawAnswer answer = post("/predict", R"({"inputs":"good"})");
  EXPECT_EQ(answer.fields["x-brim-reason"], "schedule");
  EXPECT_EQ(answer.fields["x-brim-instead-of"], "model");
  set_time(20, 0, 0);
  answer = post("/predict", R"({"inputs":"good"})");
  EXPECT_EQ(answer.fields.count("x-brim-instead-of"), 0u) << "the schedule names this one";
  ladder_->report_fault("vader", "gone");
  answer = post("/predict", R"({"inputs":"good"})");
  EXPECT_EQ(answer.status, 503) << answer.body;
  EXPECT_EQ(Json::parse(answer.body)["error_type"], "Unhealthy");
  EXPECT_TRUE(answer.fields.count("retry-after"));
}

// A pair for a model that takes none says nothing of the model.
TEST_F(TendingTest, AMistakenRequestDoesNotMakeAModelFail) {
  ServerOptions o = two_rungs();
  coming_->mistake = true;
  set_time(10, 0, 0);
  start(std::move(o));
  EXPECT_EQ(post("/predict", R"({"inputs":["good","day"]})").status, 424);
  EXPECT_EQ(status(), "ok");
  coming_->mistake = false;
  EXPECT_EQ(answering(), "model");
}

TEST_F(TendingTest, AModelThatCouldNotBeLoadedIsTriedAgain) {
  ServerOptions o = two_rungs();
  coming_->room = false;
  set_time(10, 0, 0);
  start(std::move(o));
  EXPECT_EQ(post("/predict", R"({"inputs":"good"})").status, 503);
  wait_until([&] { return coming_->loads >= 2; });
  EXPECT_EQ(answering(), "vader");
  coming_->room = true;
  wait_until([&] { return answering() == "model"; });
  EXPECT_EQ(status(), "ok");
  const int loads = coming_->loads;
  let_it_tend();
  EXPECT_EQ(coming_->loads, loads) << "it is there";
}

TEST_F(TendingTest, ItemsOfARungThatCannotBeLoadedGoToTheNext) {
  ServerOptions o = with_state(two_rungs());
  o.load_retry_seconds = 1e9;
  coming_->room = false;
  set_time(10, 0, 0);
  start(std::move(o));
  const auto flush = [&](const std::string& queue) {
    return post("/queues/" + queue + "/flush_and_apply",
                R"({"items":[{"text":"good","item":{"id":1}},{"text":"bad","item":{"id":2}}]})");
  };
  const RawAnswer answer = flush("news");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json flushed = Json::parse(answer.body);
  for (const Json& item : flushed["items"]) {
    EXPECT_EQ(item["model"], "vader") << item;
    EXPECT_EQ(item["reason"], "schedule");
    EXPECT_EQ(item["instead_of"], "model");
  }
  EXPECT_EQ(coming_->scorings, 1);
  EXPECT_EQ(answering(), "vader") << "the ladder was told";
  EXPECT_EQ(status(), "degraded");
  EXPECT_EQ(flush("alone").status, 503) << "of that model alone";
  EXPECT_EQ(coming_->scorings, 2) << "it is not tried twice";
  RawAnswer refused = flush("alone");
  EXPECT_EQ(Json::parse(refused.body)["error_type"], "Unhealthy") << refused.body;
  EXPECT_EQ(refused.fields["retry-after"], "86400");
  EXPECT_EQ(get("/queues/alone").status, 200);
}

TEST_F(TendingTest, AStreamOfRowsReportsAModelThatCannotBeLoaded) {
  ServerOptions o = two_rungs();
  o.load_retry_seconds = 1e9;
  coming_->room = false;
  set_time(10, 0, 0);
  start(std::move(o));
  RawAnswer refused = post("/score?format=txt", "good\n");
  EXPECT_EQ(refused.status, 503) << refused.body;
  EXPECT_TRUE(refused.fields.contains("retry-after"));
  client_ = std::make_unique<RawClient>(server_->port());
  EXPECT_EQ(post("/score?format=txt", "good\n").fields["x-brim-model"], "vader@2");
  EXPECT_EQ(status(), "degraded");
}

TEST_F(TendingTest, BulkWorkIsCountedByTheReasonOfItsChoice) {
  set_time(10, 0, 0);
  start(with_state(two_rungs()));
  EXPECT_EQ(post("/queues/news/flush_and_apply", R"({"items":[{"text":"a","item":{"id":1}},{"text":"b"}]})").status,
            200);
  EXPECT_EQ(post("/queues/alone/flush_and_apply", R"({"items":[{"text":"c","item":{"id":3}}]})").status, 200);
  EXPECT_EQ(post("/score?format=txt", "d\ne\n").status, 200);
  EXPECT_EQ(post("/jobs?format=txt", "f\ng\nh\n").status, 201);
  const auto says = [&](const std::string& line) { return get("/metrics").body.find(line) != std::string::npos; };
  wait_until([&] { return says("brim_job_rows_total{status=\"completed\"} 3\n"); });
  EXPECT_TRUE(says("brim_texts_total{model=\"model\",class=\"bulk\",reason=\"schedule\"} 7\n"));
  EXPECT_TRUE(says("brim_texts_total{model=\"model\",class=\"bulk\",reason=\"requested\"} 1\n"));
  EXPECT_TRUE(says("brim_tokens_total{model=\"model\"} 24\n"));
}

TEST_F(TendingTest, AJobOfARungThatCannotBeLoadedGetsTheNext) {
  ServerOptions o = with_state(two_rungs());
  o.load_retry_seconds = 1e9;
  coming_->room = false;
  set_time(10, 0, 0);
  start(std::move(o));
  const auto put = [&](const char* query) { return Json::parse(post(query, "good\n").body)["id"].get<std::string>(); };
  const std::string waits = put("/jobs?format=txt&model=model"), goes = put("/jobs?format=txt&model=ladder");
  const auto job = [&](const std::string& id) { return Json::parse(get("/jobs/" + id).body); };
  wait_until([&] { return job(goes)["status"] == "completed"; });
  EXPECT_EQ(job(goes)["model"], "vader");
  EXPECT_EQ(job(goes)["reason"], "schedule");
  EXPECT_EQ(job(goes)["instead_of"], "model");
  wait_until([&] { return !job(waits)["waiting"].is_null(); });
  EXPECT_EQ(job(waits)["waiting"], "others have the memory");
  EXPECT_EQ(job(waits)["status"], "in_progress");
}

TEST_F(TendingTest, ADeviceThatOnlyRulesWouldUseIsClosed) {
  ServerOptions o = two_rungs();
  o.models[0].keep_alive_seconds = 0;
  o.release_device_seconds = 0;
  set_time(10, 0, 0);
  start(std::move(o));
  wait_until([&] { return coming_->closed.load(); });  // it was not there from the start
  coming_->closed = false;
  EXPECT_EQ(answering(), "model");
  wait_until([&] { return coming_->closed.load(); });
  set_time(20, 0, 0);
  EXPECT_EQ(answering(), "vader");
  coming_->closed = false;
  let_it_tend();
  EXPECT_FALSE(coming_->closed) << "once is enough";
  set_time(10, 0, 0);
  EXPECT_EQ(answering(), "model");
  wait_until([&] { return coming_->closed.load(); });
  coming_->leaves_at_once = true;
  coming_->closed = false;
  EXPECT_EQ(answering(), "model");
  wait_until([&] { return coming_->closed.load(); });  // though nobody saw it there
}

TEST_F(TendingTest, ADeviceThatIsLostWhileItIsClosedLeavesTheRules) {
  ServerOptions o = two_rungs();
  o.models[0].keep_alive_seconds = 0;
  o.release_device_seconds = 0;
  set_time(20, 0, 0);
  coming_->lost = true;
  start(std::move(o));
  let_it_tend();
  EXPECT_EQ(answering(), "vader");
}

TEST_F(TendingTest, WhatRequestsLeftInTheHeapIsGivenBack) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer has a heap of its own";
#endif
  ::malloc_trim(0);  // what tests before left would be used again
  start(two_rungs());
  let_it_tend();
  std::vector<std::unique_ptr<char[]>> pieces;
  auto held = hold_maintenance();
  for (int i = 0; i < 8192; ++i) {
    pieces.push_back(std::make_unique<char[]>(4096));
    std::memset(pieces.back().get(), 1, 4096);
  }
  const auto last = std::make_unique<char[]>(4096);  // what is in use above them keeps them from being cut off
  pieces.clear();
  const int64_t before = monitor::own_resident_bytes();
  held.unlock();
  wait_until([&] { return monitor::own_resident_bytes() < before - (24 << 20); });
}

TEST_F(TendingTest, NobodyClosesADeviceUnasked) {
  ServerOptions o = two_rungs();
  o.models[0].keep_alive_seconds = 0;
  start(std::move(o));
  let_it_tend();
  EXPECT_FALSE(coming_->closed);
}

// The same with encoders: every byte of the plan goes, and the answers after it are those before.
TEST_F(TendingTest, EncodersComeBackToADeviceThatWasClosed) {
  ServerOptions o = tiny();
  for (ServedModel& model : o.models) model.keep_alive_seconds = 0;
  o.release_device_seconds = 0;
  o.tick_seconds = 0.02;
  start(std::move(o));
  const auto planned = [&] { return get("/metrics").body.find("brim_memory_planned_bytes{") != std::string::npos; };
  const Json labels = good("/predict", R"({"inputs":"w6 w7"})"), vector = good("/embed", R"({"inputs":"w6 w7"})");
  for (int round = 0; round < 2; ++round) {
    wait_until([&] { return !planned(); });
    EXPECT_EQ(get("/health/ready").status, 200);
    EXPECT_EQ(Json::parse(get("/health").body)["status"], "ok");
    EXPECT_TRUE(good("/predict", R"({"inputs":"good","model":"vader"})").is_array());
    EXPECT_EQ(good("/predict", R"({"inputs":"w6 w7"})"), labels);
    EXPECT_EQ(good("/embed", R"({"inputs":"w6 w7"})"), vector);
    EXPECT_TRUE(good("/ner", R"({"inputs":"w6"})").is_array());
  }
}

}  // namespace
}  // namespace brim::serve
