// SPDX-License-Identifier: Apache-2.0
// What `brim bench serve` counts, against a server that answers as the test says.
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

// A path of /429 is answered with that status, any other with 200 and its own body; one request is late.
class Stalling final : public Handler {
 public:
  std::optional<Response> admit(Exchange&) override { return std::nullopt; }
  void handle(Exchange& e) override {
    if (++requests == stalls_at) std::this_thread::sleep_for(std::chrono::milliseconds(200));  // and all others with it
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

// With one connection a single request meets the stall; those that were due meanwhile count it too.
TEST_F(LoadTest, AStallCannotHide) {
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

TEST_F(LoadTest, CountsEachKindOfAnswer) {
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

TEST_F(LoadTest, CountsWhatFails) {
  LoadResult r = run_load(of({request("/401")}));
  EXPECT_EQ(r.failed, static_cast<uint64_t>(handler_.requests));
  EXPECT_GT(r.failed, 0u);
  EXPECT_EQ(r.failed_status, 401);
  EXPECT_EQ(r.answered + r.refused, 0u);
  EXPECT_THROW(run_load(of({})), Error);
}

}  // namespace
}  // namespace brim::serve
