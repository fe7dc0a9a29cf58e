// SPDX-License-Identifier: Apache-2.0
// Requests with many texts, which helper threads tokenize.
#include <fmt/format.h>

#include <atomic>
#include <new>

#include "serve/service_fixture.h"

namespace brim::serve {
namespace {

// Blocks tokenization until released by the test, or fails.
class SlowScorer final : public HeldScorer {
 public:
  void submit(std::span<const Request> requests, Completion& completion) override {
    const bool large = requests.size() > 1;
    if (large) ++begun;
    if (large && fails == 1) fail(ErrorCode::bad_data, "no such text");
    if (large && fails == 2) throw std::bad_alloc();
    if (large) wait_until([&] { return !waits.load(); });
    for (const Request& request : requests) texts.emplace_back(request.text);
    HeldScorer::submit(requests, completion);
  }
  std::atomic<bool> waits{false};
  std::atomic<int> begun{0}, fails{0};
  std::vector<std::string> texts;
};

class SubmitTest : public ServiceTest {
 protected:
  void start_slow() {
    slow_ = std::make_shared<SlowScorer>();
    ServerOptions o = serving("slow", slow_);
    o.io_threads = 1;
    start(std::move(o));
  }
  static std::string text(int i) { return fmt::format("{} {}", i, std::string(1000, 'x')); }
  static std::string large(int count) {
    Json inputs = Json::array();
    for (int i = 0; i < count; ++i) inputs.push_back(Json::array({text(i)}));
    return Json{{"inputs", inputs}}.dump();
  }
  std::shared_ptr<SlowScorer> slow_;
};

TEST_F(SubmitTest, LargeRequestDoesNotBlockOtherConnections) {
  start_slow();
  slow_->waits = true;
  client_->post("/predict", large(40));
  wait_until([&] { return slow_->begun == 1; });
  RawClient other(server_->port());  // on the same, single I/O thread
  other.get("/health/live");
  EXPECT_EQ(other.read().status, 200);
  slow_->waits = false;
  slow_->wait_held(40);
  slow_->answer_all();
  const RawAnswer answer = client_->read();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(Json::parse(answer.body).size(), 40u);
  ASSERT_EQ(slow_->texts.size(), 40u);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(slow_->texts[static_cast<size_t>(i)], text(i)) << "the body is freed by then";
}

TEST_F(SubmitTest, ReportsErrorsOfHelpers) {
  start_slow();
  EXPECT_EQ(post("/predict", large(40) + "]").status, 400);
  EXPECT_EQ(post("/predict", "[" + std::string(40'000, ' ') + "]").status, 422) << "no object";
  slow_->fails = 1;
  EXPECT_EQ(post("/predict", large(40)).status, 422);
  slow_->fails = 2;
  EXPECT_EQ(post("/predict", large(40)).status, 424);
  slow_->fails = 0;
  client_->post("/predict", large(40));
  slow_->wait_held(40);
  slow_->answer_all();
  EXPECT_EQ(client_->read().status, 200);
}

TEST_F(SubmitTest, LimitsValuesInBody) {
  start_slow();
  const auto values = [](int n) {  // the object, its list and the elements
    std::string body = R"({"inputs":[1)";
    for (int i = 3; i < n; ++i) body += ",1";
    return body + "]}";
  };
  bad("/embed", values(600'001), 422, "Validation", "more than 600000 values");
  bad("/predict", values(600'000), 422, "Validation", "list of lists");  // parsed, but contains no texts
}

TEST_F(SubmitTest, CountsHelperTimeAsTokenization) {
  start_slow();
  slow_->waits = true;
  client_->post("/predict", large(40));
  wait_until([&] { return slow_->begun == 1; });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  slow_->waits = false;
  slow_->wait_held(40);
  slow_->answer_all();
  const RawAnswer answer = client_->read();
  ASSERT_EQ(answer.status, 200);
  EXPECT_GE(std::stod(answer.fields.at("x-tokenization-time")), 20);
}

TEST_F(SubmitTest, CancelsTextsOfDisconnectedClient) {
  start_slow();
  slow_->waits = true;
  {
    RawClient leaving(server_->port());
    leaving.post("/predict", large(40));
    wait_until([&] { return slow_->begun == 1; });
  }
  slow_->waits = false;
  slow_->wait_held(40);
  wait_until([&] { return slow_->all_stopped(); });
  slow_->answer_all();
  client_->get("/health/live");
  EXPECT_EQ(client_->read().status, 200);
}

TEST_F(SubmitTest, LargeRequestMatchesSmallRequests) {
  start(tiny());
  Json inputs = Json::array();
  for (int i = 0; i < 60; ++i) {
    std::string words;
    for (int w = 0; w < 200; ++w) words += fmt::format("w{} ", 6 + (i + w) % 8);
    inputs.push_back(Json::array({words}));
  }
  for (const char* model : {"cls", "vader"}) {
    const RawAnswer all = post("/predict", Json{{"inputs", inputs}, {"model", model}}.dump());
    ASSERT_EQ(all.status, 200) << all.body;
    const Json scores = Json::parse(all.body);
    for (size_t i : {size_t{0}, size_t{31}, size_t{59}}) {
      const RawAnswer one = post("/predict", Json{{"inputs", Json::array({inputs[i]})}, {"model", model}}.dump());
      ASSERT_EQ(one.status, 200) << one.body;
      const Json alone = Json::parse(one.body)[0];
      ASSERT_EQ(alone.size(), scores[i].size());
      for (size_t k = 0; k < alone.size(); ++k) {
        EXPECT_EQ(alone[k]["label"], scores[i][k]["label"]);
        EXPECT_NEAR(alone[k]["score"].get<double>(), scores[i][k]["score"].get<double>(), 1e-6);
      }
    }
  }
}

}  // namespace
}  // namespace brim::serve
