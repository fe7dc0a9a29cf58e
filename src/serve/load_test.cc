// SPDX-License-Identifier: Apache-2.0
// Statistics of `brim bench serve`, with a server whose responses are set by the test.
#include "serve/load.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "jobs/spread.h"
#include "serve/http_names.h"

namespace brim::serve {
namespace {

// Responds to /429 with that status, to other paths with 200 and the request body; delays one request.
class Stalling final : public Handler {
 public:
  std::optional<Response> admit(Exchange&) override { return std::nullopt; }
  void handle(Exchange& e) override {
    if (++requests == stalls_at) std::this_thread::sleep_for(std::chrono::milliseconds(200));  // stalls all others too
    const int status = std::atoi(std::string(e.path().substr(1)).c_str());
    e.answer({.status = status > 0 ? status : 200, .body = e.body()});
  }
  void gone(Exchange&) noexcept override {}
  Response refused(int status, const std::string& problem) override { return {.status = status, .body = problem}; }
  void answered(Exchange&, int, size_t) noexcept override {}

  std::atomic<int> requests{0};
  int stalls_at = -1;
};

class LoadTest : public ::testing::Test {
 protected:
  LoadTest() { server_.start(); }
  static std::string request(const std::string& path, const std::string& body = "") {
    return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n\r\n" + body;
  }
  LoadOptions of(std::vector<std::string> requests) {
    LoadOptions o;
    o.port = server_.port();
    o.requests = std::move(requests);
    o.connections = 4;
    o.seconds = 0.2;
    return o;
  }

  Stalling handler_;
  HttpServer server_{parse_listen_address("127.0.0.1:0"), {}, handler_};
};

// With one connection only one request is stalled, but latencies of requests due during the stall include it.
TEST_F(LoadTest, CountsStallsFromScheduledTime) {
  handler_.stalls_at = 100;
  LoadOptions o = of({request("/a")});
  o.connections = 1;
  o.rate = 400;
  o.seconds = 1;
  const LoadResult r = run_load(o);
  EXPECT_EQ(r.answered, static_cast<uint64_t>(handler_.requests));
  EXPECT_GT(r.answered, 200u);
  EXPECT_EQ(r.refused + r.failed + r.wrong, 0u);
  const jobs::Spread ms = jobs::spread_of(r.ms);
  EXPECT_GE(ms.most, 200);
  EXPECT_GE(ms.p99, 150) << "a twentieth of them was due in the first 50 ms of the stall";
}

TEST_F(LoadTest, CountsResponsesByKind) {
  LoadOptions o = of({request("/a", "good"), request("/a", "bad"), request("/429"), request("/503")});
  o.check = [](size_t request, std::string_view body) {
    EXPECT_EQ(body, request == 0 ? "good" : "bad");
    return body == "good";
  };
  o.threads = 2;
  const LoadResult r = run_load(o);
  EXPECT_EQ(r.answered + r.refused, static_cast<uint64_t>(handler_.requests));
  EXPECT_EQ(r.failed, 0u);
  EXPECT_EQ(r.ms.size(), r.answered);
  EXPECT_EQ(r.refused_ms.size(), r.refused);
  EXPECT_GT(r.wrong, 0u);
  EXPECT_LT(r.wrong, r.answered);
  EXPECT_GT(r.refused, 0u);
  EXPECT_GT(r.seconds, 0.1);
}

TEST_F(LoadTest, CountsFailures) {
  LoadResult r = run_load(of({request("/401")}));
  EXPECT_EQ(r.failed, static_cast<uint64_t>(handler_.requests));
  EXPECT_GT(r.failed, 0u);
  EXPECT_EQ(r.failed_status, 401);
  EXPECT_EQ(r.answered + r.refused, 0u);
  EXPECT_THROW(run_load(of({})), Error);
}

}  // namespace
}  // namespace brim::serve
