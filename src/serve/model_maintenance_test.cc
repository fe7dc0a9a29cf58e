// SPDX-License-Identifier: Apache-2.0
// Model maintenance: preloading by schedule, retries, unloading, closing the device.
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>

#include "monitor/host.h"
#include "serve/service_fixture.h"

namespace brim::serve {
namespace {

// A model whose weights can be loaded and parked without a device.
class SwitchableScorer final : public HeldScorer {
 public:
  Residence residence() const override { return loaded ? Residence::resident : Residence::disk; }
  ScorerWork work() const override {
    ScorerWork work;
    work.loads = load_count;
    return work;
  }
  void load_weights() override {
    ++load_calls;
    if (!fits) throw Error(ErrorCode::does_not_fit, "others have the memory");
    set_loaded();
  }
  void park() override { loaded = false; }
  void keep_loaded(bool keep) override { kept_loaded = keep; }
  bool close_device() override {
    if (lost) throw Error(ErrorCode::device_lost, "it has fallen off the bus");
    return closed = !loaded;
  }
  void submit(std::span<const Request> requests, Completion& completion) override {
    if (rejects_request) {  // rejected before loading
      HeldScorer::submit(requests, completion);
      return answer_all(Error(ErrorCode::usage, "takes no pairs"));
    }
    if (fits) set_loaded();
    if (unloads_at_once) loaded = false;
    HeldScorer::submit(requests, completion);
    answer_all(fits ? std::optional<Error>() : Error(ErrorCode::does_not_fit, "others have the memory"));
  }
  Predictions score(std::span<const std::string_view> texts, std::stop_token,
                    const std::function<void(size_t)>&) override {
    ++scorings;
    if (!fits) throw Error(ErrorCode::does_not_fit, "others have the memory");
    set_loaded();
    Predictions p;
    p.rows = texts.size();
    p.width = 2;
    p.labels.assign(p.rows, 1);
    p.label_scores.assign(p.rows, 0.75f);
    for (size_t i = 0; i < p.rows; ++i) p.scores.insert(p.scores.end(), {0.25f, 0.75f});
    p.tokens = static_cast<int64_t>(3 * p.rows);
    return p;
  }
  void set_loaded() {
    if (!loaded.exchange(true)) ++load_count;
  }
  std::atomic<bool> fits{true}, loaded{false}, kept_loaded{false}, closed{false}, unloads_at_once{false},
      rejects_request{false}, lost{false};
  std::atomic<int> load_calls{0}, load_count{0}, scorings{0};
};

class ModelMaintenanceTest : public ServiceTest {
 protected:
  // Two rungs: a switchable model from 09:00 to 17:00 UTC, and VADER.
  ServerOptions two_rungs() {
    ServerOptions o = serving("model", model_);
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
      ++started_ticks_;
      const std::lock_guard held(tick_mutex_);
      ++ticks_;
      return now_.load();
    };
    return o;
  }
  // Adds a queue for the ladder and one for its first rung.
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
  // Waits for complete maintenance passes after the last change; one may have been in progress.
  void wait_for_maintenance() {
    const int seen = ticks_;
    wait_until([&] { return ticks_ > seen + 8; });
  }
  // Blocks the maintenance thread at its clock until the lock is released. No requests may be sent meanwhile.
  std::unique_lock<std::mutex> hold_maintenance() {
    std::unique_lock held(tick_mutex_);
    wait_until([&] { return started_ticks_ > ticks_; });
    return held;
  }
  std::string answering() { return post("/predict", R"({"inputs":"good"})").fields["x-brim-model"].substr(0, 5); }
  std::string status() { return Json::parse(get("/health").body)["status"]; }

  static constexpr int64_t kMidnight = 1780358400;  // 2026-06-02, UTC
  std::shared_ptr<SwitchableScorer> model_ = std::make_shared<SwitchableScorer>();
  std::shared_ptr<Ladder> ladder_;
  std::atomic<int64_t> now_{kMidnight};
  std::mutex tick_mutex_;
  std::atomic<int> started_ticks_{0}, ticks_{0};
};

TEST_F(ModelMaintenanceTest, PreloadsNextRung) {
  ServerOptions o = two_rungs();
  o.models[0].keep_alive_seconds = 0;
  set_time(8, 59, 29);
  start(std::move(o));
  wait_for_maintenance();
  EXPECT_EQ(model_->load_calls, 0) << "31 s before";
  set_time(8, 59, 30);
  wait_until([&] { return model_->loaded.load(); });
  EXPECT_EQ(answering(), "vader") << "it is not yet time";
  wait_for_maintenance();
  EXPECT_TRUE(model_->loaded) << "stays loaded until its time, regardless of keep_alive";
  EXPECT_EQ(model_->load_calls, 1);
  set_time(9, 0, 0);
  EXPECT_EQ(answering(), "model");
  wait_until([&] { return !model_->loaded; });  // keep_alive applies again
  set_time(16, 59, 45);                         // VADER needs no loading
  wait_for_maintenance();
  EXPECT_EQ(model_->load_calls, 1);
}

TEST_F(ModelMaintenanceTest, LoadsAndKeepsPinnedRung) {
  ServerOptions o = two_rungs();
  o.models[0].keep_alive_seconds = 0;
  set_time(3, 0, 0);
  start(std::move(o));
  wait_for_maintenance();
  EXPECT_FALSE(model_->kept_loaded);
  EXPECT_EQ(post("/admin/ladders/ladder/pin?rung=model", "").status, 200);
  wait_until([&] { return model_->loaded && model_->kept_loaded; });
  wait_for_maintenance();
  EXPECT_TRUE(model_->loaded);
  EXPECT_EQ(post("/admin/ladders/ladder/unpin", "").status, 200);
  wait_until([&] { return !model_->loaded && !model_->kept_loaded; });
}

TEST_F(ModelMaintenanceTest, RejectsUnloadableModelAndFallsBackToNextRung) {
  ServerOptions o = two_rungs();
  o.load_retry_seconds = 1e9;
  model_->fits = false;
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

TEST_F(ModelMaintenanceTest, ResponsesReportReplacedRung) {
  ServerOptions o = two_rungs();
  o.load_retry_seconds = 1e9;
  model_->fits = false;
  set_time(10, 0, 0);
  start(std::move(o));
  EXPECT_EQ(post("/predict", R"({"inputs":"good"})").status, 503);
  RawAnswer answer = post("/predict", R"({"inputs":"good"})");
  EXPECT_EQ(answer.fields["x-brim-reason"], "schedule");
  EXPECT_EQ(answer.fields["x-brim-instead-of"], "model");
  set_time(20, 0, 0);
  answer = post("/predict", R"({"inputs":"good"})");
  EXPECT_EQ(answer.fields.count("x-brim-instead-of"), 0u) << "selected by the schedule";
  ladder_->report_fault("vader", "gone");
  answer = post("/predict", R"({"inputs":"good"})");
  EXPECT_EQ(answer.status, 503) << answer.body;
  EXPECT_EQ(Json::parse(answer.body)["error_type"], "Unhealthy");
  EXPECT_TRUE(answer.fields.count("retry-after"));
}

TEST_F(ModelMaintenanceTest, InvalidRequestDoesNotFailModel) {
  ServerOptions o = two_rungs();
  model_->rejects_request = true;
  set_time(10, 0, 0);
  start(std::move(o));
  EXPECT_EQ(post("/predict", R"({"inputs":["good","day"]})").status, 424);
  EXPECT_EQ(status(), "ok");
  model_->rejects_request = false;
  EXPECT_EQ(answering(), "model");
}

TEST_F(ModelMaintenanceTest, RetriesFailedLoad) {
  ServerOptions o = two_rungs();
  model_->fits = false;
  set_time(10, 0, 0);
  start(std::move(o));
  EXPECT_EQ(post("/predict", R"({"inputs":"good"})").status, 503);
  wait_until([&] { return model_->load_calls >= 2; });
  EXPECT_EQ(answering(), "vader");
  model_->fits = true;
  wait_until([&] { return answering() == "model"; });
  EXPECT_EQ(status(), "ok");
  const int load_calls = model_->load_calls;
  wait_for_maintenance();
  EXPECT_EQ(model_->load_calls, load_calls) << "already loaded";
}

TEST_F(ModelMaintenanceTest, QueueItemsFallBackToNextRung) {
  ServerOptions o = with_state(two_rungs());
  o.load_retry_seconds = 1e9;
  model_->fits = false;
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
  EXPECT_EQ(model_->scorings, 1);
  EXPECT_EQ(answering(), "vader") << "the ladder knows of the failure";
  EXPECT_EQ(status(), "degraded");
  EXPECT_EQ(flush("alone").status, 503) << "of that model alone";
  EXPECT_EQ(model_->scorings, 2) << "it is not tried twice";
  RawAnswer refused = flush("alone");
  EXPECT_EQ(Json::parse(refused.body)["error_type"], "Unhealthy") << refused.body;
  EXPECT_EQ(refused.fields["retry-after"], "86400");
  EXPECT_EQ(get("/queues/alone").status, 200);
}

TEST_F(ModelMaintenanceTest, StreamReportsFailedLoad) {
  ServerOptions o = two_rungs();
  o.load_retry_seconds = 1e9;
  model_->fits = false;
  set_time(10, 0, 0);
  start(std::move(o));
  RawAnswer refused = post("/score?format=txt", "good\n");
  EXPECT_EQ(refused.status, 503) << refused.body;
  EXPECT_TRUE(refused.fields.contains("retry-after"));
  client_ = std::make_unique<RawClient>(server_->port());
  EXPECT_EQ(post("/score?format=txt", "good\n").fields["x-brim-model"], "vader@2");
  EXPECT_EQ(status(), "degraded");
}

TEST_F(ModelMaintenanceTest, CountsBulkTextsByReason) {
  set_time(10, 0, 0);
  start(with_state(two_rungs()));
  EXPECT_EQ(post("/queues/news/flush_and_apply", R"({"items":[{"text":"a","item":{"id":1}},{"text":"b"}]})").status,
            200);
  EXPECT_EQ(post("/queues/alone/flush_and_apply", R"({"items":[{"text":"c","item":{"id":3}}]})").status, 200);
  EXPECT_EQ(post("/score?format=txt", "d\ne\n").status, 200);
  EXPECT_EQ(post("/jobs?format=txt", "f\ng\nh\n").status, 201);
  const auto has_metric = [&](const std::string& line) { return get("/metrics").body.find(line) != std::string::npos; };
  wait_until([&] { return has_metric("brim_job_rows_total{status=\"completed\"} 3\n"); });
  EXPECT_TRUE(has_metric("brim_texts_total{model=\"model\",class=\"bulk\",reason=\"schedule\"} 7\n"));
  EXPECT_TRUE(has_metric("brim_texts_total{model=\"model\",class=\"bulk\",reason=\"requested\"} 1\n"));
  EXPECT_TRUE(has_metric("brim_tokens_total{model=\"model\"} 24\n"));
}

TEST_F(ModelMaintenanceTest, JobFallsBackToNextRung) {
  ServerOptions o = with_state(two_rungs());
  o.load_retry_seconds = 1e9;
  model_->fits = false;
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

TEST_F(ModelMaintenanceTest, ClosesUnusedDevice) {
  ServerOptions o = two_rungs();
  o.models[0].keep_alive_seconds = 0;
  o.release_device_seconds = 0;
  set_time(10, 0, 0);
  start(std::move(o));
  wait_until([&] { return model_->closed.load(); });  // not loaded at the start
  model_->closed = false;
  EXPECT_EQ(answering(), "model");
  wait_until([&] { return model_->closed.load(); });
  set_time(20, 0, 0);
  EXPECT_EQ(answering(), "vader");
  model_->closed = false;
  wait_for_maintenance();
  EXPECT_FALSE(model_->closed) << "closed only once";
  set_time(10, 0, 0);
  EXPECT_EQ(answering(), "model");
  wait_until([&] { return model_->closed.load(); });
  model_->unloads_at_once = true;
  model_->closed = false;
  EXPECT_EQ(answering(), "model");
  wait_until([&] { return model_->closed.load(); });  // although maintenance never saw it loaded
}

TEST_F(ModelMaintenanceTest, KeepsVaderIfDeviceIsLostWhileClosing) {
  ServerOptions o = two_rungs();
  o.models[0].keep_alive_seconds = 0;
  o.release_device_seconds = 0;
  set_time(20, 0, 0);
  model_->lost = true;
  start(std::move(o));
  wait_for_maintenance();
  EXPECT_EQ(answering(), "vader");
}

TEST_F(ModelMaintenanceTest, ReturnsFreedHeapToSystem) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers have their own heap";
#endif
  ::malloc_trim(0);  // otherwise freed memory of earlier tests would be reused
  start(two_rungs());
  wait_for_maintenance();
  std::vector<std::unique_ptr<char[]>> pieces;
  auto held = hold_maintenance();
  for (int i = 0; i < 8192; ++i) {
    pieces.push_back(std::make_unique<char[]>(4096));
    std::memset(pieces.back().get(), 1, 4096);
  }
  const auto last = std::make_unique<char[]>(4096);  // memory in use above them prevents trimming the end of the heap
  pieces.clear();
  const int64_t before = monitor::own_resident_bytes();
  held.unlock();
  wait_until([&] { return monitor::own_resident_bytes() < before - (24 << 20); });
}

TEST_F(ModelMaintenanceTest, KeepsDeviceOpenByDefault) {
  ServerOptions o = two_rungs();
  o.models[0].keep_alive_seconds = 0;
  start(std::move(o));
  wait_for_maintenance();
  EXPECT_FALSE(model_->closed);
}

// The same with encoders: all planned bytes are released, and the results afterwards are the same.
TEST_F(ModelMaintenanceTest, ReloadsEncodersOnClosedDevice) {
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
