// SPDX-License-Identifier: Apache-2.0
// Routes without a socket: requests go to the router, and responses and posted work are collected.
#include "serve/router.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/test_files.h"

namespace brim::serve {
namespace {

using Json = nlohmann::json;

class CollectedExchange final : public Exchange {
 public:
  explicit CollectedExchange(const std::string& head, const std::string& body) : Exchange({}, 0) {
    reader_.feed(head);
    const std::string_view target = reader_.head().target;
    const size_t question = std::min(target.find('?'), target.size());
    path_ = target.substr(0, question);
    query_ = target.substr(std::min(target.size(), question + 1));
    remote_ = "127.0.0.1";
    reader_.feed(body);
  }
  void answer(Response&& response) override { answered = std::move(response); }
  void pause() override {}
  void resume() override {}
  void begin_answer(Response&& head, std::optional<uint64_t>) override { answered = std::move(head); }
  void send(std::string_view bytes) override { answered->body += bytes; }
  void end_answer() override {}
  size_t unsent() const override { return 0; }
  void drop() override {}

  std::optional<Response> answered;
};

class RouterTest : public ::testing::Test {
 protected:
  RouterTest() {
    parts_.attach({.count = 1, .post = [this](int, std::function<void()> work) {
                     std::lock_guard lock(mutex_);
                     posted_.push_back(std::move(work));
                     changed_.notify_all();
                   }});
  }
  // Passes a request to its route and runs posted work until there is a response.
  Response request(const std::string& method, const std::string& target, const std::string& body = "",
                   const std::string& type = "application/json") {
    const std::string fields = body.empty() ? "" : fmt::format("Content-Type: {}\r\n", type);
    CollectedExchange exchange(fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\n{}Content-Length: {}\r\n\r\n", method,
                                           target, fields, body.size()),
                               body);
    if (std::optional<Response> refused = router_.admit(exchange)) {
      router_.answered(exchange, refused->status, 0);
      return *refused;
    }
    router_.handle(exchange);
    while (!exchange.answered) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !posted_.empty(); });
      const auto work = std::move(posted_.front());
      posted_.pop_front();
      lock.unlock();
      work();
    }
    router_.answered(exchange, exchange.answered->status, 0);
    return *exchange.answered;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> posted_;
  const ServerOptions options_;
  ServerParts parts_{options_, std::vector<ServedModel>{{"vader", "vader", "1", Scorer::open({.model = "vader"})}},
                     Router::routes()};
  Router router_{parts_};
};

TEST_F(RouterTest, AnswersScoringRoutesWithoutSockets) {
  const Response labels = request("POST", "/classify", R"({"input":["I love it","I hate it"]})");
  EXPECT_EQ(labels.status, 200);
  const Json json = Json::parse(labels.body);
  EXPECT_EQ(json["data"][0][0]["label"], "positive");
  EXPECT_EQ(json["data"][1][0]["label"], "negative");
  EXPECT_NE(labels.fields.find("X-Brim-Model: vader@1\r\n"), std::string::npos) << labels.fields;
  EXPECT_EQ(request("POST", "/ner", R"({"inputs":"a"})").status, 424);
  EXPECT_TRUE(parts_.state.idle());
}

TEST_F(RouterTest, RejectsRequestsByTheirHead) {
  EXPECT_EQ(request("GET", "/predcit").status, 404);
  EXPECT_NE(request("GET", "/predcit").body.find("did you mean /predict?"), std::string::npos);
  const Response method = request("GET", "/predict");
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.fields.find("Allow: POST\r\n"), 0u);
  EXPECT_EQ(request("POST", "/predict", "{}", "text/plain").status, 415);
  EXPECT_EQ(request("GET", "/jobs").status, 404) << "no state directory";
}

TEST_F(RouterTest, CountsRequestsAndReportsDraining) {
  for (int i = 0; i < 3; ++i) EXPECT_EQ(request("GET", "/health").status, 200);
  const std::string metrics = request("GET", "/metrics").body;
  EXPECT_NE(metrics.find("brim_requests_total{route=\"/health\",model=\"\",code=\"200\"} 3\n"), std::string::npos);
  EXPECT_EQ(metrics.find("brim_connections"), std::string::npos) << "no server";
  parts_.begin_drain();
  EXPECT_EQ(request("GET", "/health").status, 503);
  EXPECT_EQ(request("GET", "/health/ready").status, 503);
  EXPECT_EQ(request("GET", "/health/live").status, 200);
}

TEST(ServerPartsTest, FinishesBlockingWorkBeforeItIsDestroyed) {
  const TempDir temp;
  ServerOptions options;
  options.state_dir = (temp.path() / "state").string();
  auto parts = std::make_unique<ServerParts>(
      options, std::vector<ServedModel>{{"vader", "vader", "1", Scorer::open({.model = "vader"})}}, Router::routes());
  std::atomic<bool> begun{false}, found{false};
  parts->durable->disk().call([&, &server = *parts] {
    begun = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the server is being destroyed by then
    found = server.durable != nullptr;                            // as in requests for jobs and queues
  });
  wait_until([&] { return begun.load(); });
  parts.reset();
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace brim::serve
