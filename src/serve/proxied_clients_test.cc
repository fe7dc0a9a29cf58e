// SPDX-License-Identifier: Apache-2.0
// Clients behind trusted proxies: scheduling, access log, access rights and connection limits.
#include <algorithm>
#include <fstream>

#include "io/sha256.h"
#include "serve/service_fixture.h"

namespace brim::serve {
namespace {

class ProxiedClientsTest : public ServiceTest {
 protected:
  static std::string forwarded(const std::string& client) { return "X-Forwarded-For: " + client + "\r\n"; }
};

TEST_F(ProxiedClientsTest, SchedulesAndLogsEachClientSeparately) {
  const auto log = [&] { return (temp_.path() / "access.log").string(); };
  for (const bool trusted : {true, false}) {
    ServerOptions o = held();
    if (trusted) o.proxies = TrustedProxies("127.0.0.1");
    o.access_log = log();
    start(std::move(o));
    std::vector<std::unique_ptr<RawClient>> clients;
    for (const char* client : {"1.1.1.1", "2.2.2.2", "9.9.9.9, 1.1.1.1", "nonsense"}) {
      clients.push_back(std::make_unique<RawClient>(server_->port()));
      clients.back()->post("/predict", R"({"inputs":"a"})", forwarded(client));
      scorer_->wait_held(clients.size());
    }
    const std::vector<uint64_t> seen = scorer_->clients();
    EXPECT_EQ(seen[0], seen[2]);
    EXPECT_EQ(seen[0] == seen[1], !trusted);
    EXPECT_EQ(seen[0] == seen[3], !trusted) << "an unreadable field counts as the proxy";
    scorer_->answer_all();
    for (const auto& client : clients) {
      EXPECT_EQ(client->read().status, 200);
      client->get("/ping");  // its response implies that the previous request was logged
      client->read();
    }
    server_.reset();
    std::ifstream lines(log());
    std::string line;
    std::vector<std::string> remotes;
    while (std::getline(lines, line)) {
      const Json entry = Json::parse(line);
      if (entry["route"] != "POST /predict") continue;
      remotes.push_back(entry["remote"]);
      EXPECT_EQ(entry.contains("proxy"), remotes.back() != "127.0.0.1") << line;
    }
    std::sort(remotes.begin(), remotes.end());
    const std::vector<std::string> each = {"1.1.1.1", "1.1.1.1", "127.0.0.1", "2.2.2.2"};
    EXPECT_EQ(remotes, trusted ? each : std::vector<std::string>(4, "127.0.0.1"));
    std::filesystem::remove(log());
  }
}

TEST_F(ProxiedClientsTest, AreNotLocalIfOnlyTheirProxyIs) {
  ServerOptions o = held();
  o.keys = ApiKeys::parse("web:score:" + io::sha256_hex("secret") + "\n", "keys");
  o.proxies = TrustedProxies("127.0.0.1");
  start(o);
  EXPECT_EQ(get("/metrics").status, 200) << "a local client without a proxy";
  EXPECT_EQ(get("/metrics", forwarded("::1")).status, 200);
  EXPECT_EQ(get("/metrics", forwarded("1.1.1.1")).status, 401);
  EXPECT_EQ(get("/metrics", forwarded("127.0.0.1x")).status, 401);
  EXPECT_EQ(get("/metrics", forwarded("::1, 1.1.1.1")).status, 401);
  EXPECT_EQ(get("/metrics").status, 200) << "the next request on the same connection";
  o.models = held().models;
  o.proxies = {};  // the proxy is not trusted
  start(o);
  for (const char* field : {"X-Forwarded-For: 127.0.0.1", "Forwarded: for=1.1.1.1", "X-Real-IP: ::1", "via: 1.1 a"})
    EXPECT_EQ(get("/metrics", std::string(field) + "\r\n").status, 401) << field;
  EXPECT_EQ(get("/metrics").status, 200);
}

TEST_F(ProxiedClientsTest, DoNotShareAConnectionLimit) {
  for (const bool trusted : {true, false}) {
    ServerOptions o = held();
    o.connections_per_address = 1;
    if (trusted) o.proxies = TrustedProxies("127.0.0.0/8");
    start(std::move(o));
    EXPECT_EQ(get("/ping").status, 200);
    RawClient second(server_->port());
    second.get("/ping");
    EXPECT_EQ(second.read().status, trusted ? 200 : 503);
  }
}

TEST_F(ProxiedClientsTest, AreIdentifiedThroughAUnixSocket) {
  ServerOptions o = held();
  o.listen = "unix:" + (temp_.path() / "brim.sock").string();
  o.proxies = TrustedProxies("unix");
  o.keys = ApiKeys::parse("web:score:" + io::sha256_hex("secret") + "\n", "keys");
  server_ = std::make_unique<Server>(std::move(o));
  server_->start();
  RawClient proxy((temp_.path() / "brim.sock").string());
  proxy.get("/metrics", forwarded("1.1.1.1"));
  EXPECT_EQ(proxy.read().status, 401);
  proxy.get("/metrics", forwarded("127.0.0.1"));
  EXPECT_EQ(proxy.read().status, 200);
}

}  // namespace
}  // namespace brim::serve
