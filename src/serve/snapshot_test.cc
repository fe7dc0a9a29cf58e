// SPDX-License-Identifier: Apache-2.0
// Dashboard, snapshots and events, and gates measured by the server, over real sockets.
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "serve/dashboard.h"
#include "serve/service_fixture.h"

namespace brim::serve {
namespace {

class SnapshotTest : public ServiceTest {
 protected:
  // The first snapshot for which `wanted` is true.
  template <class Fn>
  Json snapshot_with(Fn&& wanted) {
    Json snapshot;
    wait_until([&] {
      snapshot = Json::parse(get("/snapshot").body);
      return snapshot.is_object() && wanted(snapshot);
    });
    return snapshot;
  }
  double metric(const std::string& name) {
    const std::string all = get("/metrics").body;
    const size_t at = all.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(all.substr(at + name.size() + 2));
  }
};

TEST_F(SnapshotTest, PageHasContentSecurityPolicy) {
  start(held());
  for (const char* path : {"/dashboard", "/"}) {
    RawAnswer page = get(path);
    ASSERT_EQ(page.status, 200);
    EXPECT_EQ(page.fields["content-type"], "text/html; charset=utf-8");
    EXPECT_EQ(page.fields["content-security-policy"], dashboard_policy());
    EXPECT_NE(page.body.find("<!doctype html>"), std::string::npos);
  }
}

TEST_F(SnapshotTest, FiguresMatchMetrics) {
  ServerOptions o = tiny();
  o.state_dir = (temp_.path() / "state").string();
  o.queues.push_back({.name = "news", .model = "vader"});
  start(std::move(o));
  for (int i = 0; i < 5; ++i) good("/classify", R"({"input":["w6 w7","w8"]})");
  bad("/classify", R"({"input":"a","model":"none"})", 404, "NotFound");
  const auto timed = [](const Json& snapshot) {
    uint64_t counted = 0;
    for (const Json& bucket : snapshot["latency_ms"]["buckets"])
      for (const auto& [stage, n] : bucket["stages"].items()) counted += n.get<uint64_t>();
    return counted;
  };
  // Latency is counted after the response is sent; the client may have read it before.
  const Json s =
      snapshot_with([&](const Json& snapshot) { return snapshot["totals"]["texts"] == 10 && timed(snapshot) >= 5; });
  EXPECT_EQ(s["schema_version"], 1);
  EXPECT_EQ(s["state"], "ok");
  EXPECT_EQ(metric("brim_texts_total{model=\"cls\",class=\"interactive\",reason=\"default\"}"), 10);
  EXPECT_EQ(metric("brim_tokens_total{model=\"cls\"}"), s["totals"]["tokens"].get<double>());
  ASSERT_EQ(s["models"].size(), 4u);
  EXPECT_EQ(s["models"][0]["state"], "resident");
  EXPECT_EQ(s["models"][0]["precision"], "fp32");
  EXPECT_EQ(s["models"][3]["precision"], "") << "VADER has none";
  EXPECT_GT(s["device"]["memory"]["held"].get<double>(), 0);
  int64_t planned = 0, own = 0;
  for (const auto& [tag, bytes] : s["device"]["memory"]["tags"].items()) {
    planned += bytes.get<int64_t>();
    EXPECT_EQ(metric("brim_memory_planned_bytes{tag=\"" + tag + "\"}"), bytes.get<double>());
  }
  for (const Json& model : s["models"]) own += model["bytes"].is_null() ? 0 : model["bytes"].get<int64_t>();
  EXPECT_EQ(s["device"]["memory"]["planned"], planned);
  EXPECT_LT(own, planned) << "batch memory belongs to no model";
  EXPECT_EQ(metric("brim_memory_limit_bytes"), s["device"]["memory"]["limit"].get<double>());
  EXPECT_EQ(s["queues"][0]["queue"], "news");
  EXPECT_EQ(timed(s), 5u);
  const Json later = snapshot_with([](const Json& snapshot) { return !snapshot["device"]["busy"].is_null(); });
  EXPECT_GE(later["device"]["busy"].get<double>(), 0);
  EXPECT_EQ(Json::parse(get("/history?minutes=15").body)[0]["schema_version"], 1);
  EXPECT_EQ(get("/history?minutes=x").status, 422);
  const Json health = Json::parse(get("/health").body);
  EXPECT_FALSE(health["device"]["busy_pct"].is_null());
  EXPECT_GT(metric("brim_device_busy_seconds_total{model=\"cls\"}"), 0);
  const double batches = metric("brim_batches_total{model=\"cls\",kind=\"eager\"}");
  EXPECT_GT(batches, 0);

  EXPECT_EQ(s["batches"]["batches"].get<double>(), batches) << "no other model was used";
  double counted = 0;
  for (const Json& bucket : s["batches"]["tokens"]) {
    counted += bucket["batches"].get<double>();
    const std::string le = bucket["le"].is_null() ? "+Inf" : fmt::format("{}", bucket["le"].get<double>());
    EXPECT_EQ(metric("brim_batch_tokens_bucket{model=\"cls\",le=\"" + le + "\"}"), counted);
  }
  EXPECT_EQ(counted, batches);
  EXPECT_EQ(metric("brim_batch_tokens_sum{model=\"cls\"}"), metric("brim_computed_tokens_total{model=\"cls\"}"));
  EXPECT_EQ(metric("brim_batch_sequences_sum{model=\"cls\"}"), 10);
  EXPECT_EQ(metric("brim_batch_fill_ratio_count{model=\"cls\"}"), batches);
  EXPECT_EQ(metric("brim_prediction_error_ratio_count{model=\"cls\"}"), batches);
  EXPECT_EQ(metric("brim_padding_tokens_total{model=\"cls\"}"), 0) << "the CPU pads nothing";
  EXPECT_EQ(metric("brim_model_load_seconds_count{model=\"cls\"}"), 1);
  EXPECT_GT(metric("brim_model_load_seconds_sum{model=\"cls\"}"), 0);
  EXPECT_EQ(metric("brim_model_load_seconds_count{model=\"vader\"}"), 0);
  EXPECT_EQ(metric("te_batch_next_tokens_count"), batches);
  EXPECT_EQ(metric("te_request_duration_count"), 5);
  double idle = 0;
  for (const auto& [cause, share] : later["batches"]["idle"].items()) {
    EXPECT_GE(metric("brim_device_idle_seconds_total{cause=\"" + cause + "\"}"), 0);
    idle += share.get<double>();
  }
  EXPECT_EQ(later["batches"]["idle"].size(), kIdleCauses);
  EXPECT_GT(idle, 0);
}

TEST_F(SnapshotTest, VaderHasNoBatches) {
  ServerOptions o = serving("vader", Scorer::open({.model = "vader"}));
  start(std::move(o));
  good("/classify", R"({"input":["so good","so bad"]})");
  const std::string all = get("/metrics").body;
  for (const char* none : {"brim_batch_tokens", "brim_device_idle_seconds_total", "te_batch_next_tokens",
                           "brim_memory_planned_bytes", "load\""})
    EXPECT_EQ(all.find(none), std::string::npos) << none;
  const Json s = snapshot_with([](const Json& snapshot) { return !snapshot["device"]["busy"].is_null(); });
  EXPECT_TRUE(s["batches"]["idle"].empty());
  EXPECT_TRUE(s["batches"]["tokens"].empty());
}

TEST_F(SnapshotTest, SendsEventsUntilServerStops) {
  start(held());
  snapshot_with([](const Json&) { return true; });
  EXPECT_EQ(get("/events?interval=0s").status, 422);
  RawClient listener(server_->port());
  listener.get("/events");
  RawAnswer head = listener.read_head();
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.fields["content-type"], "text/event-stream");
  std::string event;
  for (int i = 0; i < 2; ++i) {
    do {  // a busy GPU on this machine adds warnings
      ASSERT_TRUE(listener.read_chunk(event));
    } while (event.starts_with("event: warning"));
    ASSERT_EQ(event.find("event: snapshot\ndata: {"), 0u) << event;
    EXPECT_TRUE(event.ends_with("}\n\n"));
    EXPECT_TRUE(Json::parse(event.substr(event.find('{'))).is_object());
  }
  RawClient leaving(server_->port());
  leaving.get("/events");
  leaving.read_head();
  leaving.close();
  std::thread draining([this] { server_->drain(); });
  std::string last;
  while (listener.read_chunk(event) && !event.empty()) last = event;
  EXPECT_EQ(last, "event: drain\ndata: {}\n\n");
  draining.join();
}

TEST_F(SnapshotTest, LimitsListeners) {
  start(held());
  const auto listens = [&](RawClient& client) {
    client.get("/events");
    return client.read_head();
  };
  std::vector<std::unique_ptr<RawClient>> listeners;
  for (int i = 0; i < 32; ++i) {
    listeners.push_back(std::make_unique<RawClient>(server_->port()));
    ASSERT_EQ(listens(*listeners.back()).status, 200) << i;
  }
  const RawAnswer refused = get("/events");
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.fields.at("retry-after"), "60");
  EXPECT_NE(refused.body.find("too many event streams (at most 32)"), std::string::npos) << refused.body;
  EXPECT_EQ(get("/health").status, 200);
  listeners.pop_back();
  wait_until(
      [&] { return listens(*listeners.emplace_back(std::make_unique<RawClient>(server_->port()))).status == 200; });
}

// By the size of the pending events, long before the write timeout of 30 seconds.
TEST_F(SnapshotTest, DisconnectsListenerThatDoesNotRead) {
  ServerOptions o = held();
  o.tick_seconds = 0.005;
  for (int i = 0; i < 16; ++i)  // each snapshot contains all of them
    o.models.push_back({std::to_string(i) + std::string(1500, 'x'), "more", "1", scorer_});
  start(std::move(o));
  RawClient sleeps(server_->port(), 4096), reads(server_->port());
  sleeps.get("/events");
  reads.get("/events?interval=60s");  // a few bytes every fifteen ticks: never behind
  for (RawClient* client : {&sleeps, &reads}) ASSERT_EQ(client->read_head().status, 200);
  const auto open = [&] { return metric("brim_connections{state=\"busy\"}"); };  // this client and the listeners
  EXPECT_EQ(open(), 3);
  std::string piece;
  int pieces = 0;
  for (; pieces < 300 && open() == 3; ++pieces) ASSERT_TRUE(reads.read_chunk(piece));
  EXPECT_EQ(open(), 2) << "after " << 15 * pieces << " events";
}

TEST_F(SnapshotTest, ReadsGpuOfItsModels) {
  ::setenv("BRIM_NVML_LIBRARY", BRIM_NVML_STAND_IN, 1);
  ::setenv(
      "BRIM_NVML_SCENARIO",
      fmt::format("name=First,pci=65,temp=99,mem=7000/8000|name=Second,pci=b3,temp=40,power=123,mem=2000/8000,pid={}",
                  ::getpid())
          .c_str(),
      1);
  ServerOptions o = held();
  scorer_->gpu = "0000:B3:00.0";  // in CUDA's format; the second GPU of NVML
  start(std::move(o));
  const Json s = snapshot_with([](const Json& snapshot) { return !snapshot["device"]["gpu"].is_null(); });
  const Json health = Json::parse(get("/health").body);
  const std::string metrics = get("/metrics").body;
  start(held());  // on a CPU
  const Json beside = snapshot_with([](const Json& snapshot) { return !snapshot["device"]["gpu"].is_null(); });
  server_.reset();  // its threads also read the environment
  ::unsetenv("BRIM_NVML_LIBRARY");
  ::unsetenv("BRIM_NVML_SCENARIO");
  EXPECT_EQ(health["gpu"]["name"], "Second");
  EXPECT_EQ(health["gpu"]["temperature_c"], 40);
  EXPECT_EQ(health["gpu"]["vram_used_mb"], 2000);
  EXPECT_EQ(health["gpu"]["sm_clock_mhz"], 1755);
  EXPECT_EQ(health["gpu"]["healthy"], true);
  EXPECT_EQ(health["status"], "ok") << "warnings of the other GPU are ignored: " << health["warnings"];
  EXPECT_EQ(s["device"]["gpu"]["power_w"], 123);
  EXPECT_NE(metrics.find("brim_gpu_temperature_celsius{gpu=\"1\",uuid=\"GPU-2\",pci_bus_id=\"0000:b3:00.0\"} 40\n"),
            std::string::npos)
      << metrics;
  EXPECT_EQ(metrics.find("uuid=\"GPU-1\""), std::string::npos);
  EXPECT_NE(metrics.find("\nbrim_memory_held_bytes "), std::string::npos);
  EXPECT_EQ(beside["device"]["gpu"]["name"], "First") << "first GPU of the machine";
  EXPECT_NE(beside["warnings"].dump().find("99 °C"), std::string::npos);
}

TEST_F(SnapshotTest, LostGpuIsUnhealthyAndBusyGpuIsNot) {
  ::setenv("BRIM_NVML_LIBRARY", BRIM_NVML_STAND_IN, 1);
  for (const bool lost : {false, true}) {
    ::setenv("BRIM_NVML_SCENARIO", lost ? "name=A,pci=65,lose=0" : "name=A,pci=65,util=99,mem=100/8000", 1);
    ServerOptions o = held();
    scorer_->gpu = "0000:65:00.0";
    start(std::move(o));
    Json health;
    wait_until([&] {
      health = Json::parse(get("/health").body);
      return !health["warnings"].empty();
    });
    EXPECT_EQ(health["status"], lost ? "unhealthy" : "ok") << health;
    EXPECT_EQ(health["gpu"]["healthy"], !lost) << health;
    EXPECT_EQ(get("/health").status, lost ? 503 : 200);
    EXPECT_EQ(get("/health/ready").status, lost ? 503 : 200);
    const std::atomic<bool> stop{!lost};
    EXPECT_EQ(server_->run(stop), !lost) << "exits, so that a supervisor restarts it";
    server_.reset();
  }
  ::unsetenv("BRIM_NVML_LIBRARY");
  ::unsetenv("BRIM_NVML_SCENARIO");
}

TEST_F(SnapshotTest, SendsWarningsAsEvents) {
  ServerOptions o = held();
  LadderRules rules;
  rules.name = "ladder";
  rules.rungs = {{"held", std::nullopt}};
  o.ladders.push_back(std::make_shared<Ladder>(rules));
  start(std::move(o));
  RawClient listener(server_->port());
  listener.get("/events");
  EXPECT_EQ(listener.read_head().status, 200);
  EXPECT_EQ(post("/admin/models/held/unload", "").status, 200);
  std::string event;
  for (int i = 0; i < 60 && event.find("unloaded") == std::string::npos; ++i) ASSERT_TRUE(listener.read_chunk(event));
  EXPECT_TRUE(event.starts_with("event: warning") && event.find("unloaded") != std::string::npos) << event;
}

TEST_F(SnapshotTest, MeasuresGatesAndSpills) {
  ServerOptions o = held();
  o.models.push_back({"vader", "vader", "3", Scorer::open({.model = "vader"})});
  o.state_dir = (temp_.path() / "state").string();
  const std::string data = temp_ / "gate.csv";
  std::ofstream(data) << "text,label\nI love it,positive\nI hate it,negative\na table,neutral\n";
  LadderRules rules;
  rules.name = "mood/of the day";
  rules.rungs = {{"held", std::nullopt}, {"vader", std::nullopt}};
  rules.gate = {data, "text", "label", "vader", {}};
  rules.load = LoadRules{};
  o.ladders.push_back(std::make_shared<Ladder>(rules));
  LadderRules blind = rules;
  blind.name = "blind";
  blind.gate.data = temp_ / "none.csv";
  o.ladders.push_back(std::make_shared<Ladder>(blind));
  start(std::move(o));
  scorer_->set_load({.tokens = 50, .bulk_tokens = 20, .tokens_per_second = 100, .wait_seconds = 0.5});
  const Json s = snapshot_with([](const Json& snapshot) {
    return snapshot["ladders"][0]["rungs"][1]["gate"] == "passed" &&
           snapshot["warnings"].dump().find("blind") != std::string::npos;
  });
  EXPECT_EQ(s["ladders"][0]["rungs"][0]["gate"], "not measured");
  EXPECT_EQ(s["state"], "degraded");
  EXPECT_EQ(s["queue"]["tokens"], (Json{{"interactive", 30}, {"bulk", 20}}));
  const RawAnswer answer = post("/predict", R"({"inputs":"I love it"})");
  EXPECT_EQ(answer.fields.at("x-brim-reason"), "load");
  EXPECT_EQ(answer.fields.at("x-brim-model"), "vader@3");
  EXPECT_EQ(metric("brim_texts_total{model=\"vader\",class=\"interactive\",reason=\"load\"}"), 1);
  client_->post("/predict", R"({"inputs":"I love it","model":"blind"})");  // this rung was not measured
  scorer_->wait_held(1);
  scorer_->answer_all();
  EXPECT_EQ(client_->read().fields.at("x-brim-model"), "held@1");
  snapshot_with(
      [](const Json& snapshot) { return snapshot["switches"].dump().find("held is overloaded") != std::string::npos; });
  EXPECT_FALSE(std::filesystem::is_empty(temp_.path() / "state" / "gates"));
  EXPECT_EQ(metric("brim_gate_agreement_ratio{ladder=\"mood/of the day\",model=\"vader\"}"), 1);
  EXPECT_GE(metric("brim_ladder_switches_total{ladder=\"mood/of the day\",reason=\"load\"}"), 1);
  EXPECT_EQ(metric("te_predict_success"), 2);
}

TEST_F(SnapshotTest, CountsPinThatEndsBeforeNextSample) {
  ServerOptions o = tiny();
  o.tick_seconds = 3600;
  LadderRules rules;
  rules.name = "mood";
  rules.rungs = {{"cls", {}}, {"vader", {}}};
  o.ladders = {std::make_shared<Ladder>(rules)};
  start(std::move(o));
  snapshot_with([](const Json&) { return true; });  // the first and only sample
  EXPECT_EQ(post("/admin/ladders/mood/pin?rung=vader", "").status, 200);
  EXPECT_EQ(post("/admin/ladders/mood/unpin", "").status, 200);
  EXPECT_EQ(metric("brim_ladder_switches_total{ladder=\"mood\",reason=\"pinned\"}"), 1);
  EXPECT_EQ(metric("brim_ladder_switches_total{ladder=\"mood\",reason=\"default\"}"), 1);
}

TEST_F(SnapshotTest, RatesIncludeRunningBulkCall) {
  // Reports half of the texts, then waits.
  class HalfwayScorer final : public HeldScorer {
   public:
    Predictions score(std::span<const std::string_view> texts, std::stop_token stop,
                      const std::function<void(size_t)>& progress) override {
      if (progress) progress(texts.size() / 2);
      return HeldScorer::score(texts, std::move(stop), progress);
    }
  };
  const auto scorer = std::make_shared<HalfwayScorer>();
  scorer->hold_scores = true;
  ServerOptions o = serving("half", scorer);
  o.state_dir = (temp_.path() / "state").string();
  o.tick_seconds = 0.5;  // rates are over five ticks
  start(std::move(o));
  std::string rows;
  for (int i = 0; i < 200; ++i) rows += fmt::format("text {}\n", i);
  snapshot_with([](const Json& snapshot) { return snapshot["rates"]["texts_s"].is_number(); });  // the baseline
  EXPECT_EQ(post("/jobs?format=txt", rows).status, 201);
  const Json s = snapshot_with([](const Json& snapshot) {
    const Json& rate = snapshot["rates"]["texts_s"];
    return rate.is_number() && rate > 0;
  });
  EXPECT_EQ(s["totals"]["texts"], 0) << "counted at the end of the call";
  scorer->hold_scores = false;
  snapshot_with([](const Json& snapshot) { return snapshot["totals"]["texts"] == 200; });
}

// Two models that predict yes and no. The test controls whether the lower one is correct and whether it responds.
class GateReloadTest : public SnapshotTest {
 protected:
  struct Behavior {
    std::atomic<bool> right{true}, blocked{false};
    std::atomic<int> runs{0}, revision{1};
  };
  class YesNoScorer final : public HeldScorer {
   public:
    YesNoScorer(Behavior& behavior, bool right) : behavior_(behavior), right_(right) {}
    void submit(std::span<const Request> requests, Completion& completion) override {
      HeldScorer::submit(requests, completion);
      answer_all();
    }
    Predictions score(std::span<const std::string_view> texts, std::stop_token stop,
                      const std::function<void(size_t)>&) override {
      ++behavior_.runs;
      wait_until([&] { return !behavior_.blocked || stop.stop_requested(); });
      Predictions p;
      for (const std::string_view text : texts) p.labels.push_back(right_ && text.starts_with("yes") ? 1 : 0);
      return p;
    }

   private:
    Behavior& behavior_;
    const bool right_;
  };
  ServerOptions two_rungs() {
    ServerOptions o = loopback_options();
    o.tick_seconds = 0.02;
    o.state_dir = (temp_.path() / "state").string();
    put_file(temp_ / "gate.csv", "text,label\nyes 1,yes\nno 1,no\nyes 2,yes\nno 2,no\n");
    LadderRules rules;
    rules.name = "ladder";
    rules.rungs = {{"large", {}}, {"small", {}}};
    rules.gate = {temp_ / "gate.csv", "text", "label", "", {}};
    rules.load = LoadRules{};
    o.ladders.push_back(std::make_shared<Ladder>(rules));
    o.reopen = [this](const std::string& name, const Scorer*, bool) { return make_model(name); };
    o.revision_of = [this](const std::string& name) { return std::to_string(of(name).revision); };
    for (const char* name : {"large", "small"}) o.models.push_back(make_model(name));
    return o;
  }
  ServedModel make_model(const std::string& name) {
    Behavior& behavior = of(name);
    auto scorer = std::make_shared<YesNoScorer>(behavior, behavior.right);
    if (name == "large") scorer->set_load({.tokens = 50, .tokens_per_second = 100, .wait_seconds = 0.5});
    return {name, name, std::to_string(behavior.revision), std::move(scorer)};
  }
  Behavior& of(const std::string& name) { return name == "small" ? small_ : large_; }
  std::string gate(size_t rung) { return Json::parse(get("/health").body)["ladder"]["ladder"]["rungs"][rung]["gate"]; }
  std::string answering() { return post("/predict", R"({"inputs":"yes"})").fields["x-brim-model"]; }
  void wait_for(size_t rung, const std::string& verdict) {
    wait_until([&] { return gate(rung) == verdict; });
  }

  Behavior large_, small_;
};

TEST_F(GateReloadTest, MeasuresReplacedModelAgain) {
  start(two_rungs());
  wait_for(1, "passed");
  EXPECT_EQ(metric("brim_gate_accuracy_ratio{ladder=\"ladder\",model=\"small\"}"), 1);
  EXPECT_EQ(post("/admin/models/small/reload", "").status, 200);
  wait_for(1, "passed");
  EXPECT_EQ(small_.runs, 1) << "unchanged files: the cached figures are used";
  EXPECT_EQ(answering(), "small@1") << "by load";

  small_.right = false;
  small_.blocked = true;
  ++small_.revision;
  EXPECT_EQ(post("/admin/reload", "").status, 200);
  wait_until([&] { return small_.runs == 2; });
  EXPECT_EQ(gate(1), "not measured");
  EXPECT_EQ(answering(), "large@1");
  EXPECT_EQ(metric("brim_gate_accuracy_ratio{ladder=\"ladder\",model=\"small\"}"), -1);
  small_.blocked = false;
  wait_for(1, "refused");
  EXPECT_EQ(metric("brim_gate_accuracy_ratio{ladder=\"ladder\",model=\"small\"}"), 0.5);
}

TEST_F(GateReloadTest, RestartsMeasurementForReplacedModel) {
  small_.blocked = true;
  start(two_rungs());
  wait_until([&] { return small_.runs == 1; });
  small_.right = false;
  ++small_.revision;
  EXPECT_EQ(post("/admin/models/small/reload", "").status, 200);
  wait_until([&] { return small_.runs == 2; });
  small_.blocked = false;
  wait_for(1, "refused");
}

TEST_F(GateReloadTest, MeasuresRungLoadedLater) {
  large_.blocked = true;
  start(two_rungs());
  wait_until([&] { return large_.runs == 1; });
  EXPECT_EQ(post("/admin/models/small/unload", "").status, 200);
  large_.blocked = false;
  wait_for(0, "passed");
  EXPECT_EQ(get("/health").body.find("cannot measure small"), std::string::npos) << "it is reported as unloaded";
  EXPECT_EQ(gate(1), "not measured");
  EXPECT_EQ(post("/admin/models/small/load", "").status, 200);
  wait_for(1, "passed");
  wait_until([&] { return Json::parse(get("/health").body)["status"] == "ok"; });
}

}  // namespace
}  // namespace brim::serve
