// SPDX-License-Identifier: Apache-2.0
// Connections over real sockets: order, limits, timeouts and disconnects.
#include "http/http.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/test_files.h"
#include "http/raw_client.h"

namespace brim::http {
namespace {

// Echoes requests. /hold waits for release(), /large answers 8 MiB, /refuse is rejected by its head, /stream echoes
// each piece of the body and /slow pauses after each piece.
class EchoHandler final : public Handler {
 public:
  std::optional<Response> admit(Exchange& e) override {
    if (e.path() == "/refuse") return Response{.status = 403, .body = "no"};
    if (e.path() == "/stream" || e.path() == "/slow") e.stream_body();
    return std::nullopt;
  }
  void take(Exchange& e, std::string_view bytes) override {
    pieces_ += bytes.size();
    if (e.path() == "/slow") return hold_piece(e);
    if (bytes.front() == '!') {  // answered before the end of the body
      e.begin_answer({.status = 200, .body = "enough"}, std::nullopt);
      return e.end_answer();
    }
    if (bytes.front() == '?') return e.answer({.status = 422, .body = "invalid"});
    if (e.tag == 0) e.begin_answer({.content_type = "text/plain"}, std::nullopt);
    e.tag = 1;
    e.send(bytes);
  }
  void sent(Exchange&) override { ++sent_; }
  std::optional<uint64_t> body_limit(const RequestHead& head) const override {
    return head.target == "/stream" ? std::optional<uint64_t>(uint64_t{1} << 30) : std::nullopt;
  }
  void handle(Exchange& e) override {
    if (e.path() == "/hold") {
      std::lock_guard lock(mutex_);
      held_.push_back(&e);
      return;
    }
    if (e.path() == "/stream" && e.tag == 1) return e.end_answer();
    if (e.path() == "/slow") return e.answer({.body = std::to_string(pieces_)});
    if (e.path() == "/throw") fail(ErrorCode::internal, "thrown");
    if (e.path() == "/large") return e.answer({.body = std::string(8 << 20, 'x')});
    e.answer({.body = std::string(e.head().method) + " " + std::string(e.path()) + "?" + std::string(e.query()) + " " +
                      e.body(),
              .fields = "X-Remote: " + e.remote() + "\r\n"});
  }
  void gone(Exchange& e) noexcept override {
    std::lock_guard lock(mutex_);
    std::erase(held_, &e);
    ++gone_;
  }
  Response refused(int status, const std::string& problem) override { return {.status = status, .body = problem}; }
  void answered(Exchange&, int, size_t) noexcept override { ++answered_; }

  void wait_held(size_t n) {
    wait_until([&] {
      std::lock_guard lock(mutex_);
      return held_.size() == n;
    });
  }
  void wait_gone(int n) {
    wait_until([&] {
      std::lock_guard lock(mutex_);
      return gone_ == n;
    });
  }
  void release() {
    std::lock_guard lock(mutex_);
    for (Exchange* e : held_) server->post(e->thread(), [e] { e->answer({.body = "released"}); });
    held_.clear();
  }
  int answered() const { return answered_; }
  size_t pieces() const { return pieces_; }
  HttpServer* server = nullptr;  // for /hold and /slow

 private:
  void hold_piece(Exchange& e) {
    e.pause();
    server->post(e.thread(), [&e] { e.resume(); });
  }
  std::atomic<size_t> pieces_{0}, sent_{0};
  std::mutex mutex_;
  std::vector<Exchange*> held_;
  int gone_ = 0;
  std::atomic<int> answered_{0};
};

class HttpTest : public ::testing::Test {
 protected:
  HttpServer& start(HttpOptions options = {}, const std::string& address = "127.0.0.1:0") {
    server_ = std::make_unique<HttpServer>(parse_listen_address(address), options, echo_);
    echo_.server = server_.get();
    server_->start();
    return *server_;
  }
  uint16_t port() const { return server_->port(); }

  EchoHandler echo_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpTest, AnswersRequestsInSequence) {
  start();
  RawClient client(port());
  client.get("/a?b=c");
  RawAnswer answer = client.read();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "GET /a?b=c ");
  EXPECT_EQ(answer.fields["x-remote"], "127.0.0.1");
  EXPECT_TRUE(answer.fields.count("date"));
  client.post("/b", "hello");
  EXPECT_EQ(client.read().body, "POST /b? hello");
  client.send("HEAD /c HTTP/1.1\r\nHost: a\r\n\r\n");
  answer = client.read(false);
  EXPECT_EQ(answer.fields["content-length"], "9");
  client.send("GET /d HTTP/1.0\r\n\r\n");
  answer = client.read();
  EXPECT_EQ(answer.body, "GET /d? ");
  EXPECT_EQ(answer.fields["connection"], "close");
  EXPECT_TRUE(client.at_end());
  EXPECT_EQ(echo_.answered(), 4);
}

TEST_F(HttpTest, StreamsBodiesAndResponses) {
  HttpOptions options;
  options.framing.body = 1000;
  start(options);
  RawClient client(port());
  std::string large;
  for (int i = 0; i < 200'000; ++i) large += std::to_string(i);
  std::thread sending([&] { client.post("/stream", large); });
  RawAnswer answer = client.read();
  sending.join();
  EXPECT_EQ(answer.fields["transfer-encoding"], "chunked");
  EXPECT_EQ(answer.body, large);
  client.send("POST /stream HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
  client.send("2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(client.read().body, "abcde");
  client.post("/slow", std::string(900, 'x'));
  const std::string taken = client.read().body;  // first, because the order of operands is unspecified
  EXPECT_EQ(taken, std::to_string(echo_.pieces()));
  client.post("/a", "next");
  EXPECT_EQ(client.read().body, "POST /a? next");
  client.send("POST /stream HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n!");
  EXPECT_EQ(client.read().body, "enough");
  EXPECT_TRUE(client.at_end()) << "the rest of the body is discarded";
  for (const bool later : {false, true}) {  // in the same write, or after the response
    RawClient refused(port());
    const std::string rest = "GET /in-the-body HTTP/1.1\r\nHost: a\r\n\r\n";
    refused.send("POST /stream HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n?" + (later ? "" : rest));
    answer = refused.read();
    EXPECT_EQ(answer.status, 422);
    EXPECT_EQ(answer.fields["connection"], "close");
    if (later) refused.send(rest);
    EXPECT_TRUE(refused.at_end()) << "bytes of the body must not be parsed as a request";
  }
  RawClient old(port());
  old.send("POST /stream HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi");
  EXPECT_EQ(old.read().fields["connection"], "close");
  EXPECT_EQ(old.rest(), "hi");
  RawClient leaving(port());
  leaving.send("POST /stream HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\nsome");
  EXPECT_EQ(leaving.read_head().status, 200);
  leaving.close();
  echo_.wait_gone(1);
  RawClient wrong(port());
  wrong.send("POST /stream HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
  EXPECT_EQ(wrong.read_head().status, 200);
  wrong.send("zz\r\n");  // too late for an error status
  echo_.wait_gone(2);
}

TEST_F(HttpTest, KeepsTheOrderOfPipelinedRequests) {
  start({.threads = 2});
  RawClient client(port());
  std::string all;
  for (int i = 0; i < 200; ++i)
    all += "POST /" + std::to_string(i) +
           " HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
  std::thread sender([&] { client.send(all); });
  for (int i = 0; i < 200; ++i) ASSERT_EQ(client.read().body, "POST /" + std::to_string(i) + "? abc");
  sender.join();
}

TEST_F(HttpTest, ProcessesRequestsAfterARejection) {
  start();
  RawClient client(port());
  const std::string refused = "GET /refuse HTTP/1.1\r\nHost: a\r\n\r\n", next = "GET /next HTTP/1.1\r\nHost: a\r\n\r\n";
  client.send(refused + refused + next);
  EXPECT_EQ(client.read().status, 403);
  EXPECT_EQ(client.read().status, 403);
  EXPECT_EQ(client.read().body, "GET /next? ");
  client.send(refused + next.substr(0, 7));
  EXPECT_EQ(client.read().status, 403);
  client.send(next.substr(7));
  EXPECT_EQ(client.read().body, "GET /next? ");
}

TEST_F(HttpTest, ParsesARequestByteByByte) {
  start();
  RawClient client(port());
  for (const char c : std::string("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"))
    ASSERT_TRUE(client.send(std::string_view(&c, 1)));
  EXPECT_EQ(client.read().body, "POST /x? abc");
}

TEST_F(HttpTest, SendsContinueOnRequest) {
  start();
  RawClient client(port());
  client.send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.read().status, 100);
  client.send("abc");
  EXPECT_EQ(client.read().body, "POST /x? abc");
  client.send("POST /refuse HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.read().status, 403);
  EXPECT_TRUE(client.at_end());
}

TEST_F(HttpTest, RejectsMalformedRequestsAndCloses) {
  HttpOptions options;
  options.framing.body = 1000;
  start(options);
  for (const auto& [bytes, status] : std::vector<std::pair<std::string, int>>{
           {"GET / HTTP/1.1\r\n\r\n", 400},
           {"nonsense\r\n", 400},
           {"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", 400},
           {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n", 413}}) {
    RawClient client(port());
    client.send(bytes);
    RawAnswer answer = client.read();
    EXPECT_EQ(answer.status, status) << bytes;
    EXPECT_EQ(answer.fields["connection"], "close");
    EXPECT_TRUE(client.at_end());
  }
}

TEST_F(HttpTest, LetsARejectedClientReadTheResponse) {
  start();
  RawClient client(port());
  const std::string body(300'000, 'x');  // more than the socket buffers hold
  client.post("/refuse", body);
  EXPECT_EQ(client.read().status, 403);
}

TEST_F(HttpTest, TimesOutSlowRequests) {
  HttpOptions options;
  options.head_seconds = options.body_seconds = options.idle_seconds = 0.2;
  options.least_bytes_per_second = 1e9;
  start(options);
  RawClient head(port()), body(port()), idle(port());
  head.send("GET / HT");
  body.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabc");
  EXPECT_EQ(head.read().status, 408);
  EXPECT_EQ(body.read().status, 408);
  EXPECT_TRUE(idle.at_end());
  EXPECT_TRUE(head.at_end());
}

TEST_F(HttpTest, ClosesAConnectionThatDoesNotReadItsResponse) {
  HttpOptions options;
  options.answer_seconds = 0.2;
  options.least_bytes_per_second = 1e9;
  start(options);
  RawClient client(port(), 4096);
  client.get("/large");
  echo_.wait_gone(1);  // polling busy() could miss the request, which lasts no longer than the timeout
  wait_until([&] { return server_->connections() == 0; });
  EXPECT_EQ(echo_.answered(), 0);
}

TEST_F(HttpTest, SendsLargeResponses) {
  start();
  RawClient client(port());
  client.get("/large");
  EXPECT_EQ(client.read().body.size(), size_t{8} << 20);
  client.get("/a");
  EXPECT_EQ(client.read().body, "GET /a? ");
}

TEST_F(HttpTest, RejectsConnectionsWhileAllAreBusy) {
  HttpOptions options;
  options.connections = 2;
  start(options);
  RawClient a(port()), b(port());
  a.get("/hold");
  b.get("/hold");
  echo_.wait_held(2);
  RawClient c(port());
  EXPECT_EQ(c.read().status, 503);
  EXPECT_EQ(server_->refused_connections(), 1u);
  a.close();
  wait_until([&] { return server_->connections() != 2; });
  RawClient d(port());
  d.get("/");
  EXPECT_EQ(d.read().status, 200);
}

TEST_F(HttpTest, ClosesTheLongestIdleConnectionWhenFull) {
  HttpOptions options;
  options.connections = 3;
  start(options);
  RawClient busy(port()), idle(port());
  busy.get("/hold");
  echo_.wait_held(1);
  idle.get("/");
  EXPECT_EQ(idle.read().status, 200);
  for (int i = 0; i < 50; ++i) {
    RawClient later(port());
    later.get("/");
    EXPECT_EQ(later.read().status, 200);
    idle.get("/");  // so that it never waits longest
    EXPECT_EQ(idle.read().status, 200);
    RawClient newest(port());
    newest.get("/");
    EXPECT_EQ(newest.read().status, 200);
    EXPECT_TRUE(later.at_end());
    idle.get("/");
    EXPECT_EQ(idle.read().status, 200);
  }
  EXPECT_EQ(server_->refused_connections(), 0u);
  echo_.release();
  EXPECT_EQ(busy.read().body, "released");
}

TEST_F(HttpTest, SilentConnectionsDoNotBlockOthers) {
  HttpOptions options;
  options.threads = 2;  // an idle connection and the one that replaces it may belong to different threads
  options.connections = 64;
  options.head_seconds = options.idle_seconds = 600;
  start(options);
  std::vector<std::unique_ptr<RawClient>> silent;
  for (int i = 0; i < 200; ++i) {
    silent.push_back(std::make_unique<RawClient>(port()));
    if (i % 2 == 1) silent.back()->send("GET / HT");  // an incomplete head
  }
  for (int i = 0; i < 8; ++i) {
    RawClient client(port());
    client.get("/health");
    EXPECT_EQ(client.read().status, 200);
  }
  EXPECT_LE(server_->connections(), 64u);
  EXPECT_EQ(server_->refused_connections(), 0u);
}

TEST_F(HttpTest, ClosesAConnectionThatSendsNoFirstRequest) {
  HttpOptions options;
  options.head_seconds = 0.2;
  options.idle_seconds = 600;
  start(options);
  RawClient used(port()), silent(port());
  used.get("/a");
  EXPECT_EQ(used.read().status, 200);
  EXPECT_TRUE(silent.at_end());
  used.get("/b");
  EXPECT_EQ(used.read().status, 200) << "idle_seconds apply between requests";
}

TEST_F(HttpTest, LimitsConnectionsPerAddress) {
  HttpOptions options;
  options.connections_per_address = 1;
  start(options);
  RawClient a(port());
  a.get("/");
  EXPECT_EQ(a.read().status, 200);
  RawClient b(port());
  EXPECT_EQ(b.read().status, 503);
}

// Without free file descriptors clients wait in the backlog until there are some.
TEST_F(HttpTest, AcceptsAgainOnceDescriptorsAreFree) {
  start();
  RawClient early(port());
  early.get("/");
  EXPECT_EQ(early.read().status, 200);
  rlimit normal{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &normal), 0);
  const int next = ::dup(STDERR_FILENO);  // for the client only
  ::close(next);
  rlimit scarce = normal;
  scarce.rlim_cur = static_cast<rlim_t>(next) + 1;
  std::atomic<bool> warned{false};
  const LogSink before = set_log_sink([&](LogLevel, std::string_view message) {
    if (message.find("cannot accept connections") != std::string_view::npos) warned = true;
  });
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &scarce), 0);
  RawClient client(port());
  client.get("/a");
  early.get("/b");
  const RawAnswer meanwhile = early.read();
  wait_until([&] { return warned.load(); });
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &normal), 0);
  set_log_sink(before);
  EXPECT_EQ(meanwhile.status, 200) << "open connections are still served";
  EXPECT_EQ(client.read().body, "GET /a? ");
}

TEST_F(HttpTest, LimitsTheBytesOfAllBodies) {
  HttpOptions options;
  options.body_bytes = 1000;
  start(options);
  RawClient a(port());
  a.post("/hold", std::string(900, 'x'));
  echo_.wait_held(1);
  RawClient b(port());
  b.post("/x", std::string(200, 'x'));
  EXPECT_EQ(b.read().status, 503);
  echo_.release();
  EXPECT_EQ(a.read().body, "released");
  RawClient c(port());
  c.post("/x", std::string(900, 'x'));
  EXPECT_EQ(c.read().status, 200);
}

TEST_F(HttpTest, CountsUnreadResponsesAgainstTheLimitOfBodies) {
  HttpOptions options;
  options.body_bytes = 1 << 20;
  start(options);
  auto unreading = std::make_unique<RawClient>(port());
  unreading->get("/large");
  const auto status = [&] {
    RawClient client(port());
    client.post("/x", "x");
    return client.read().status;
  };
  wait_until([&] { return status() == 503; });
  unreading.reset();
  wait_until([&] { return status() == 200; });
}

TEST_F(HttpTest, SendsResponsesPostedByAnotherThread) {
  start({.threads = 2});
  RawClient a(port()), b(port());
  a.get("/hold");
  b.get("/hold");
  a.get("/next");
  echo_.wait_held(2);
  EXPECT_EQ(server_->busy(), 2u);
  echo_.release();
  EXPECT_EQ(a.read().body, "released");
  EXPECT_EQ(b.read().body, "released");
  EXPECT_EQ(a.read().body, "GET /next? ");
}

TEST_F(HttpTest, ReportsADisconnect) {
  start();
  RawClient a(port());
  a.get("/hold");
  echo_.wait_held(1);
  a.close();
  echo_.wait_gone(1);
  RawClient b(port());  // with a second request already sent
  b.get("/hold");
  b.get("/next");
  echo_.wait_held(1);
  b.close();
  echo_.wait_gone(2);
}

TEST_F(HttpTest, AnswersWith500IfTheHandlerThrows) {
  start();
  RawClient client(port());
  client.get("/throw");
  EXPECT_EQ(client.read().status, 500);
  client.get("/a");
  EXPECT_EQ(client.read().status, 200);
}

TEST_F(HttpTest, DrainsAndStops) {
  start();
  RawClient busy(port()), idle(port());
  idle.get("/a");
  EXPECT_EQ(idle.read().status, 200);
  busy.get("/hold");
  echo_.wait_held(1);
  server_->close_after_answers();
  server_->stop_listening();
  EXPECT_TRUE(idle.at_end());
  echo_.release();
  RawAnswer answer = busy.read();
  EXPECT_EQ(answer.body, "released");
  EXPECT_EQ(answer.fields["connection"], "close");
  EXPECT_TRUE(busy.at_end());
  server_->stop();
}

TEST_F(HttpTest, StopsWithUnfinishedRequests) {
  start({.threads = 2});
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<RawClient>(port()));
    clients.back()->get("/hold");
  }
  echo_.wait_held(8);
  server_->stop();
  echo_.wait_gone(8);
  for (auto& client : clients) EXPECT_TRUE(client->at_end());
}

TEST_F(HttpTest, ListensOnAUnixSocket) {
  TempDir dir;
  const std::string path = (dir.path() / "brim.sock").string();
  start({}, "unix:" + path);
  {
    RawClient client(path);
    client.get("/a");
    RawAnswer answer = client.read();
    EXPECT_EQ(answer.fields["x-remote"], "unix");
  }
  EXPECT_THROW(HttpServer(parse_listen_address("unix:" + path), {}, echo_), Error);  // already in use
  server_.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace brim::http
