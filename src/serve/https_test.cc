// SPDX-License-Identifier: Apache-2.0
// The server with TLS: scoring, jobs, metrics and certificate reloads.
#include <csignal>
#include <fstream>

#include "http/tls_client.h"
#include "serve/service_fixture.h"

namespace brim::serve {
namespace {

using http::TlsClient;

class HttpsTest : public ServiceTest {
 protected:
  HttpsTest() { std::signal(SIGPIPE, SIG_IGN); }  // OpenSSL writes to sockets that the server has closed

  ServerOptions with_tls() {
    http::make_certificate(temp_.path(), "first");
    ServerOptions o = loopback_options();
    o.tls_cert = temp_.path() / "cert.pem";
    o.tls_key = temp_.path() / "key.pem";
    o.models.push_back({"vader", "vader", "1", Scorer::open({.model = "vader"})});
    return o;
  }
};

TEST_F(HttpsTest, ScoresLargeRequests) {
  start(with_tls());
  EXPECT_TRUE(server_->address().starts_with("https://"));
  TlsClient client(server_->port());
  ASSERT_TRUE(client.connected());
  EXPECT_EQ(client.post("/predict", R"({"inputs":"I love it"})").first, 200);
  Json texts = Json::array();
  for (int i = 0; i < 1000; ++i) texts.push_back(std::string(1000, 'a') + " good");
  const auto [status, body] = client.post("/classify", Json{{"input", texts}}.dump());
  EXPECT_EQ(status, 200);
  ASSERT_GT(body.size(), 100u << 10);
  EXPECT_EQ(Json::parse(body)["data"].size(), 1000u);
  EXPECT_EQ(client.post("/predict", "{", "Connection: close\r\n").first, 400);
  EXPECT_TRUE(client.closed_cleanly());
}

TEST_F(HttpsTest, AnswersARequestAfterTheOutputOfAJob) {
  ServerOptions o = with_tls();
  o.state_dir = temp_.path() / "state";
  start(o);
  TlsClient client(server_->port());
  const std::string id = Json::parse(client.post("/jobs?format=txt", "I love it\n").second)["id"];
  wait_until([&] { return Json::parse(client.get("/jobs/" + id).second)["status"] == "completed"; });
  EXPECT_NE(client.get("/jobs/" + id + "/output").second.find("positive"), std::string::npos);
  EXPECT_EQ(client.get("/health/live").first, 200);
}

TEST_F(HttpsTest, ReloadsTheCertificate) {
  start(with_tls());
  TlsClient old(server_->port());
  EXPECT_EQ(old.certificate_name(), "first");
  http::make_certificate(temp_.path(), "second");
  EXPECT_EQ(old.post("/admin/reload", "").first, 200);
  EXPECT_EQ(TlsClient(server_->port()).certificate_name(), "second");
  std::ofstream(temp_.path() / "cert.pem") << "no certificate";
  const auto [status, body] = old.post("/admin/reload", "");  // the old connection stays usable
  EXPECT_EQ(status, 424);
  EXPECT_NE(body.find("cert.pem"), std::string::npos) << body;
  EXPECT_EQ(TlsClient(server_->port()).certificate_name(), "second");
}

TEST_F(HttpsTest, MeasuresAPlaintextRequestFromItsFirstByte) {
  start(with_tls());
  EXPECT_EQ(get("/ping").status, 400);
  EXPECT_TRUE(client_->at_end());  // the metrics are updated before the connection is closed
  TlsClient client(server_->port());
  const std::string metrics = client.get("/metrics").second;
  const std::string sum = "brim_request_duration_seconds_sum{route=\"\"} ";
  const size_t at = metrics.find(sum);
  ASSERT_NE(at, std::string::npos) << metrics;
  EXPECT_LT(std::stod(metrics.substr(at + sum.size())), 60) << "measured from the start of the monotonic clock";
}

TEST_F(HttpsTest, NeedsACertificateAndAKey) {
  ServerOptions o = with_tls();
  o.tls_key.clear();
  EXPECT_THROW(Server{o}, Error);
}

}  // namespace
}  // namespace brim::serve
