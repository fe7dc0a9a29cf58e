// SPDX-License-Identifier: Apache-2.0
// TLS over real sockets: responses of every size, certificate changes, and clients that break the protocol.
#include "http/tls.h"

#include <atomic>
#include <csignal>
#include <filesystem>
#include <memory>
#include <thread>

#include "base/error.h"
#include "base/test_files.h"
#include "http/http.h"
#include "http/raw_client.h"
#include "http/tls_client.h"

namespace brim::http {
namespace {

// GET /large answers 1 MiB, GET /huge 64 MiB; other requests get their own body.
class TlsHandler final : public Handler {
 public:
  std::optional<Response> admit(Exchange&) override { return std::nullopt; }
  void handle(Exchange& e) override {
    if (e.path() == "/large") return e.answer({.body = std::string(1 << 20, 'a')});
    if (e.path() != "/huge") return e.answer({.body = e.body()});
    // Not from within handle(), so that the server also reads while it writes.
    server->post(e.thread(), [&e] { e.answer({.body = std::string(64 << 20, 'a')}); });
  }
  void gone(Exchange&) noexcept override { ++disconnected; }
  Response refused(int status, const std::string& problem) override { return {.status = status, .body = problem}; }
  void answered(Exchange&, int, size_t) noexcept override { ++answers; }

  HttpServer* server = nullptr;
  std::atomic<int> disconnected{0}, answers{0};
};

class TlsTest : public ::testing::Test {
 protected:
  TlsTest() { std::signal(SIGPIPE, SIG_IGN); }  // OpenSSL writes to sockets that the server has closed

  std::string cert() const { return temp_.path() / "cert.pem"; }
  std::string key() const { return temp_.path() / "key.pem"; }

  HttpServer& start(HttpOptions options = {}, bool rsa = false) {
    make_certificate(temp_.path(), "first", nullptr, rsa);
    options.tls = TlsContext::load(cert(), key());
    server_ = std::make_unique<HttpServer>(parse_listen_address("127.0.0.1:0"), options, handler_);
    handler_.server = server_.get();
    server_->start();
    return *server_;
  }
  uint16_t port() const { return server_->port(); }

  TempDir temp_;
  TlsHandler handler_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(TlsTest, SendsResponsesOfEverySizeInOrder) {
  start();
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    TlsClient client(port(), version);
    ASSERT_TRUE(client.connected());
    EXPECT_EQ(client.version(), version == TLS1_2_VERSION ? "TLSv1.2" : "TLSv1.3");
    EXPECT_EQ(client.post("/", "short").second, "short");
    const std::string body(1 << 20, 'b');  // many TLS records in both directions
    EXPECT_EQ(client.post("/", body).second, body);
    EXPECT_EQ(client.get("/large").second.size(), size_t{1} << 20);
    const std::string get = "GET /empty HTTP/1.1\r\nHost: localhost\r\n\r\n";
    client.send(get + get);  // two requests in one record
    EXPECT_EQ(client.read().first, 200);
    EXPECT_EQ(client.read().first, 200);
    client.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
    EXPECT_EQ(client.read().first, 100);
    client.send("good");
    EXPECT_EQ(client.read().second, "good");
    EXPECT_EQ(client.post("/", "last", "Connection: close\r\n").second, "last");
    EXPECT_TRUE(client.closed_cleanly());
  }
}

TEST_F(TlsTest, UsesANewCertificateForNewConnections) {
  start();
  TlsClient old(port());
  EXPECT_EQ(old.certificate_name(), "first");
  make_certificate(temp_.path(), "second");
  server_->set_tls(TlsContext::load(cert(), key()));
  EXPECT_EQ(TlsClient(port()).certificate_name(), "second");
  EXPECT_EQ(old.post("/", "a").second, "a");
}

TEST_F(TlsTest, RejectsOtherProtocols) {
  start();
  EXPECT_FALSE(TlsClient(port(), TLS1_1_VERSION).connected());
  EXPECT_FALSE(TlsClient(port(), 0, "\x02h2").connected());
  RawClient plaintext(port());
  plaintext.get("/");
  const RawAnswer answer = plaintext.read();
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(answer.body.find("https://"), std::string::npos);
  EXPECT_TRUE(plaintext.at_end());
  for (const std::string_view bytes :
       {std::string_view("\x16\x03\x01\x00\x05hello", 10), std::string_view("\0\0", 2)}) {
    RawClient client(port());
    client.send(bytes);
    if (bytes.front() == '\0') client.send(std::string(100, '\0'));
    client.rest();  // until the server closes the connection
  }
  EXPECT_EQ(TlsClient(port()).post("/", "good").first, 200);
}

TEST_F(TlsTest, Tls12AllowsOnlyForwardSecrecyWithAuthenticatedEncryption) {
  const auto connects = [this](const char* ciphers) {
    return TlsClient(port(), TLS1_2_VERSION, "\x08http/1.1", ciphers).connected();
  };
  start();
  for (const char* good : {"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"})
    EXPECT_TRUE(connects(good)) << good;
  EXPECT_FALSE(connects("ECDHE-ECDSA-AES128-SHA:ECDHE-ECDSA-AES256-SHA384")) << "CBC";
  start({}, true);
  for (const char* good : {"ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-CHACHA20-POLY1305"})
    EXPECT_TRUE(connects(good)) << good;
  for (const char* bad : {"AES128-SHA", "AES128-GCM-SHA256", "ECDHE-RSA-AES128-SHA", "ECDHE-RSA-AES256-SHA384"})
    EXPECT_FALSE(connects(bad)) << bad;
}

TEST_F(TlsTest, ClosesAConnectionWhoseHandshakeTakesTooLong) {
  start({.tls_seconds = 0.1});
  {
    RawClient silent(port());
    silent.send("\x16");
    EXPECT_TRUE(silent.at_end());
  }
  bool connected = false;  // on a busy machine a correct client may also be too slow, so it retries
  for (int i = 0; i < 100 && !connected; ++i) {
    wait_until([&] { return server_->connections() == 0; });
    connected = TlsClient(port()).connected();
  }
  EXPECT_TRUE(connected);
}

TEST_F(TlsTest, ClosesAConnectionThatBreaksTheProtocol) {
  start({.answer_seconds = 600});
  TlsClient client(port());
  client.send("GET /huge HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_TRUE(client.receive());  // the rest does not fit into the socket buffers
  client.send_plaintext(std::string(100, '\0'));
  wait_until([&] { return server_->connections() == 0; });
  EXPECT_EQ(handler_.disconnected.load(), 1);
  EXPECT_EQ(handler_.answers.load(), 0);
}

TEST_F(TlsTest, DoesNotEncryptBeforeTheHandshake) {
  make_certificate(temp_.path(), "first");
  EXPECT_FALSE(TlsSession::begin(TlsContext::load(cert(), key()))->encrypt("too early"));
}

TEST_F(TlsTest, NamesTheInvalidFile) {
  const auto problem = [](const std::string& certificate, const std::string& private_key) -> std::string {
    try {
      TlsContext::load(certificate, private_key);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
      return error.what();
    }
    return "";
  };
  EXPECT_NE(problem(cert(), key()).find("`tls_cert="), std::string::npos);
  make_certificate(temp_.path(), "a", "secret");
  EXPECT_NE(problem(cert(), key()).find("`tls_key="), std::string::npos) << "OpenSSL must not ask for a passphrase";
  make_certificate(temp_.path(), "a");
  EXPECT_EQ(problem(cert(), key()), "");
  std::filesystem::permissions(key(), std::filesystem::perms::others_write, std::filesystem::perm_options::add);
  EXPECT_NE(problem(cert(), key()).find("every user can write to it"), std::string::npos) << problem(cert(), key());
  std::filesystem::permissions(key(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  std::filesystem::rename(cert(), temp_.path() / "other.pem");
  make_certificate(temp_.path(), "b");
  EXPECT_NE(problem(temp_.path() / "other.pem", key()).find("other.pem"), std::string::npos);
}

}  // namespace
}  // namespace brim::http
