// SPDX-License-Identifier: Apache-2.0
// Admission control, failing scorers and responses, and warnings, over real sockets.
#include <cmath>
#include <functional>
#include <map>

#include "io/sha256.h"
#include "serve/router.h"
#include "serve/service_fixture.h"

namespace brim::serve {
namespace {

// Scorer with configurable waits per client and configurable failures.
class OddScorer final : public HeldScorer {
 public:
  ClientWait wait_of(uint64_t client, int64_t, bool,
                     std::optional<std::chrono::steady_clock::time_point> deadline) const override {
    const auto& all = deadline && waits_when_due.contains(client) ? waits_when_due : waits;
    const auto found = all.find(client);
    return found == all.end() ? ClientWait{} : found->second;
  }
  const std::vector<std::string>& score_names() const override {
    if (names_fail) throw std::runtime_error("no names");
    return HeldScorer::score_names();
  }
  void submit(std::span<const Request> requests, Completion& completion) override {
    if (submit_fails) fail(ErrorCode::internal, "it takes nothing");
    HeldScorer::submit(requests, completion);
  }
  std::map<uint64_t, ClientWait> waits, waits_when_due;  // requests without a deadline, and with one
  std::atomic<bool> names_fail{false}, submit_fails{false};
};

class AdmissionTest : public ServiceTest {
 protected:
  AdmissionTest() { scorer_ = odd_; }
  ServerOptions odd() { return serving("odd", odd_); }
  static std::string with(const std::string& key) { return "Authorization: Bearer " + key + "\r\n"; }
  // A service without the thread that samples it every second.
  void start_bare() {
    parts_ = std::make_unique<ServerParts>(bare_options_, std::vector<ServedModel>{{"odd", "odd", "1", odd_}},
                                           Router::routes());
    router_ = std::make_unique<Router>(*parts_);
    http_ = std::make_unique<HttpServer>(parse_listen_address("127.0.0.1:0"), HttpOptions{}, *router_);
    parts_->attach(*http_);
    http_->start();
    client_ = std::make_unique<RawClient>(http_->port());
  }
  void TearDown() override {
    if (http_ != nullptr) http_->stop();
    parts_.reset();
  }

  const std::shared_ptr<OddScorer> odd_ = std::make_shared<OddScorer>();
  const ServerOptions bare_options_;
  std::unique_ptr<ServerParts> parts_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<HttpServer> http_;
};

TEST_F(AdmissionTest, RejectsClientByItsOwnWaitingTexts) {
  const auto id = [](std::string_view name) { return std::hash<std::string_view>()(name); };
  odd_->waits[id("much")] = {.own_tokens = 5000, .begin_seconds = 5, .end_seconds = 6};
  odd_->waits[id("little")] = {.own_tokens = 100, .begin_seconds = 0.5, .end_seconds = 1.5};
  odd_->waits_when_due[id("little")] = {.own_tokens = 100, .begin_seconds = 0.1, .end_seconds = 0.2};
  odd_->waits[id("none")] = {.own_tokens = 0, .begin_seconds = 0.5, .end_seconds = 20};
  odd_->waits[id("crowded")] = {.own_tokens = 0, .begin_seconds = 1.5, .end_seconds = 1.6};
  scorer_->set_load({.texts = 100, .tokens = 5000, .tokens_per_second = 1000, .wait_seconds = 7});
  std::string keys;
  for (const char* name : {"much", "little", "none", "crowded"})
    keys += fmt::format("{}:score,metrics:{}\n", name, io::sha256_hex(name));
  ServerOptions o = odd();
  o.keys = ApiKeys::parse(keys, "keys");
  start(std::move(o));
  const auto refused = [&](const std::string& key, const std::string& more = "") {
    RawAnswer answer = post("/predict", R"({"inputs":"a")" + more + "}", with(key));
    EXPECT_EQ(answer.status, 429) << key << answer.body;
    const Json json = Json::parse(answer.body);
    EXPECT_GT(json["queue_ms"], json["limit_ms"]) << key << answer.body;
    return answer.fields["retry-after"] + " s, " + json["queue_ms"].dump() + " of " + json["limit_ms"].dump() + " ms";
  };
  EXPECT_EQ(refused("much"), "5 s, 5000 of 1000 ms");
  EXPECT_EQ(refused("little"), "1 s, 1500 of 1000 ms") << "the new text exceeds its limit";
  EXPECT_EQ(refused("crowded"), "2 s, 1500 of 1000 ms") << "only other clients exceed the limit";
  EXPECT_EQ(refused("none", R"(,"timeout_ms":10000)"), "1 s, 20000 of 10000 ms") << "its deadline could not be met";
  for (const char* more : {R"(,"timeout_ms":30000)", ""}) {
    client_->post("/predict", R"({"inputs":"a")" + std::string(more) + "}", with("none"));
    scorer_->wait_held(1);
    scorer_->answer_all();
    EXPECT_EQ(client_->read().status, 200) << "only texts of other clients wait";
  }
  odd_->waits_when_due[id("much")] = {.own_tokens = 5000, .begin_seconds = 0.1, .end_seconds = 0.2};
  for (const char* name : {"little", "much"}) {
    client_->post("/predict", R"({"inputs":"a","timeout_ms":500})", with(name));
    scorer_->wait_held(1);
    scorer_->answer_all();
    EXPECT_EQ(client_->read().status, 200) << "requests with a deadline precede its other requests: " << name;
  }
  EXPECT_NE(get("/metrics", with("none")).body.find("brim_queue_wait_seconds{model=\"odd\"} 7\n"), std::string::npos)
      << "the gauge covers all clients";
  // The total size of waiting texts is bounded too.
  client_->post("/predict", R"({"inputs":"a"})", with("none"));
  scorer_->wait_held(1);
  scorer_->answer_all(Error(ErrorCode::busy, "waiting texts hold 256 MiB"));
  RawAnswer answer = client_->read();
  EXPECT_EQ(answer.status, 429);
  EXPECT_EQ(answer.fields["retry-after"], "7");
  EXPECT_EQ(Json::parse(answer.body)["error"], "Model is overloaded: waiting texts hold 256 MiB");
  EXPECT_FALSE(Json::parse(answer.body).contains("queue_ms")) << "no wait was compared";
}

TEST_F(AdmissionTest, ReportsFractionalLimit) {
  ServerOptions o = odd();
  o.max_queue_ms = 1.6;
  start(std::move(o));
  odd_->waits[std::hash<std::string_view>()("127.0.0.1")] = {1, 0.0017, 0.0017};
  const Json json = Json::parse(post("/predict", R"({"inputs":"a"})").body);
  EXPECT_EQ(json["queue_ms"], 2);
  EXPECT_EQ(json["limit_ms"], 1.6);
}

TEST_F(AdmissionTest, ReportsUnboundedWait) {
  start(odd());
  odd_->waits[std::hash<std::string_view>()("127.0.0.1")] = {1, HUGE_VAL, HUGE_VAL};
  RawAnswer answer = post("/predict", R"({"inputs":"a"})");
  EXPECT_EQ(answer.fields["retry-after"], "86400");
  EXPECT_GT(Json::parse(answer.body)["queue_ms"], 1e9);
}

TEST_F(AdmissionTest, RespondsIfSubmitFails) {
  start_bare();
  odd_->submit_fails = true;
  EXPECT_EQ(post("/predict", R"({"inputs":[["a"],["b"]]})").status, 424);
  EXPECT_EQ(parts_->state.texts, 0u);
  odd_->submit_fails = false;
  client_->post("/predict", R"({"inputs":"a"})");
  scorer_->wait_held(1);
  EXPECT_EQ(parts_->state.texts, 1u);
  scorer_->answer_all();
  EXPECT_EQ(client_->read().status, 200);
  EXPECT_EQ(parts_->state.texts, 0u);
}

TEST_F(AdmissionTest, FailingResponseDoesNotBlockOthers) {
  start_bare();
  RawClient other(http_->port());
  odd_->names_fail = true;
  client_->post("/predict", R"({"inputs":"a"})");
  other.post("/predict", R"({"inputs":"b"})");
  scorer_->wait_held(2);
  scorer_->answer_all();
  EXPECT_EQ(client_->read().status, 500);
  EXPECT_EQ(other.read().status, 500);
  odd_->names_fail = false;
  client_->post("/predict", R"({"inputs":"a"})");
  scorer_->wait_held(1);
  scorer_->answer_all();
  EXPECT_EQ(client_->read().status, 200);
}

TEST_F(AdmissionTest, SendsWarningWhenItStarts) {
  start_bare();
  RawClient listener(http_->port());
  listener.get("/events");
  EXPECT_EQ(listener.read_head().status, 200);
  std::string event;
  ASSERT_TRUE(listener.read_chunk(event));
  const auto warned = [&](std::vector<Warning> warnings) {
    parts_->telemetry.set_gpu({.warnings = std::move(warnings)});
    parts_->telemetry.sample(std::nullopt);
    std::string texts;
    while (listener.read_chunk(event) && !event.starts_with("event: snapshot"))
      if (event.starts_with("event: warning")) texts += event.substr(event.find("\"text\""));
    return texts;
  };
  EXPECT_NE(warned({{"0 temperature", "86 degrees"}}).find("86 degrees"), std::string::npos);
  EXPECT_EQ(warned({{"0 temperature", "87 degrees"}}), "") << "same warning with a different value";
  EXPECT_NE(get("/snapshot").body.find("87 degrees"), std::string::npos);
  const std::string second = warned({{"0 temperature", "88 degrees"}, {"1 temperature", "90 degrees"}});
  EXPECT_NE(second.find("90 degrees"), std::string::npos);
  EXPECT_EQ(second.find("88 degrees"), std::string::npos);
  EXPECT_EQ(warned({}), "");
  EXPECT_NE(warned({{"0 temperature", "86 degrees"}}).find("86 degrees"), std::string::npos)
      << "the warning started again";
}

TEST_F(AdmissionTest, ReadinessDependsOnDefaultModel) {
  ServerOptions o = tiny();
  std::rotate(o.models.begin(), o.models.begin() + 2, o.models.end());  // embedder first
  o.models.erase(o.models.begin() + 1);                                 // without VADER
  start(std::move(o));
  EXPECT_EQ(post("/admin/models/emb/unload", "").status, 200);
  EXPECT_EQ(get("/health/ready").status, 200) << "the classifier is available";
  EXPECT_EQ(post("/predict", R"({"inputs":"w6"})").status, 200);
  EXPECT_EQ(post("/admin/models/cls/unload", "").status, 200);
  EXPECT_EQ(get("/health/ready").status, 503);
}

}  // namespace
}  // namespace brim::serve
