// SPDX-License-Identifier: Apache-2.0
#include "serve/proxies.h"

#include <fstream>

#include "io/sha256.h"
#include "serve/service_fixture.h"

namespace brim::serve {
namespace {

// What X-Forwarded-For says, field by field, as this peer brings it; "-" is the peer itself, "?" unclear.
std::string client_by(const TrustedProxies& proxies, std::string_view peer, std::vector<std::string_view> values) {
  RequestHead head;
  head.fields.push_back({"Host", "localhost"});
  for (const std::string_view value : values) head.fields.push_back({"X-Forwarded-FOR", value});
  const TrustedProxies::Client found = proxies.client_of(peer, head);
  EXPECT_FALSE(found.unclear && !found.address.empty());
  return found.unclear ? "?" : found.address.empty() ? "-" : found.address;
}

TEST(TrustedProxies, OnlyTheirWordIsTaken) {
  const TrustedProxies proxies("10.0.0.7, 192.168.0.0/16,fd00::/8,2001:db8::5");
  for (const char* peer : {"10.0.0.7", "::ffff:10.0.0.7", "192.168.255.1", "fd12::9", "2001:db8::5"}) {
    EXPECT_TRUE(proxies.trusts(peer)) << peer;
    EXPECT_EQ(client_by(proxies, peer, {"203.0.113.9"}), "203.0.113.9") << peer;
  }
  for (const char* peer : {"10.0.0.8", "192.169.0.1", "fe00::1", "2001:db8::6", "unix", "", "x", "127.0.0.1"}) {
    EXPECT_FALSE(proxies.trusts(peer)) << peer;
    EXPECT_EQ(client_by(proxies, peer, {"203.0.113.9"}), "?") << peer;
    EXPECT_EQ(client_by(proxies, peer, {}), "-") << peer;
  }
  EXPECT_EQ(client_by(TrustedProxies(), "127.0.0.1", {"203.0.113.9"}), "?");
  EXPECT_TRUE(TrustedProxies().empty());
  EXPECT_EQ(client_by(TrustedProxies("unix"), "unix", {"203.0.113.9"}), "203.0.113.9");
  EXPECT_EQ(client_by(TrustedProxies("unix"), "127.0.0.1", {"203.0.113.9"}), "?");
  EXPECT_TRUE(TrustedProxies("0.0.0.0/0").trusts("8.8.8.8"));
  EXPECT_FALSE(TrustedProxies("0.0.0.0/0").trusts("::1")) << "IPv4 alone";
  EXPECT_FALSE(TrustedProxies("::/0").trusts("8.8.8.8")) << "IPv6 alone";
  EXPECT_TRUE(TrustedProxies("10.1.0.0/17").trusts("10.1.127.255"));
  EXPECT_FALSE(TrustedProxies("10.1.0.0/17").trusts("10.1.128.0"));
}

TEST(TrustedProxies, TheLastThatIsNoneOfThemIsTheClient) {
  const TrustedProxies proxies("10.0.0.0/8");
  EXPECT_EQ(client_by(proxies, "10.0.0.1", {}), "-");
  EXPECT_EQ(client_by(proxies, "10.0.0.1", {"1.1.1.1, 2.2.2.2, 10.0.0.2"}), "2.2.2.2");
  EXPECT_EQ(client_by(proxies, "10.0.0.1", {"1.1.1.1", "2.2.2.2,10.0.0.3", "10.0.0.2"}), "2.2.2.2");
  EXPECT_EQ(client_by(proxies, "10.0.0.1", {"10.0.0.9, 10.0.0.2"}), "-");
  EXPECT_EQ(client_by(proxies, "10.0.0.1", {"what a client made up, 2.2.2.2"}), "2.2.2.2");
  for (const char* same : {"2001:db8::1", "[2001:db8::1]", "[2001:DB8:0::1]:443", " \t2001:db8::1 "})
    EXPECT_EQ(client_by(proxies, "10.0.0.1", {same}), "2001:db8::1") << same;
  for (const char* same : {"2.2.2.2", "2.2.2.2:1234", "::ffff:2.2.2.2", "[::ffff:2.2.2.2]:1"})
    EXPECT_EQ(client_by(proxies, "10.0.0.1", {same}), "2.2.2.2") << same;
  for (const char* unclear : {"", ",", "2.2.2.2,", "unknown", "_hidden", "2.2.2", "2.2.2.2:x", "2.2.2.2:99999", "[::1",
                              "[::1]x", "[::1]:", "2.2.2.2 3.3.3.3", "2.2.2.2, 10.0.0.2, -", "\"2.2.2.2\""})
    EXPECT_EQ(client_by(proxies, "10.0.0.1", {unclear}), "?") << unclear;
}

TEST(TrustedProxies, ListsAreReadStrictly) {
  for (const char* wrong : {"10.0.0", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/", "10.0.0.0/8x", "::/129", "name", ",",
                            "10.0.0.1,,10.0.0.2", "Unix", "10.0.0.0/8/8"})
    EXPECT_THROW(TrustedProxies{wrong}, Error) << wrong;
  try {
    TrustedProxies{"10.0.0.1/8"};
    FAIL() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_NE(error.remedy().find("10.0.0.0/8"), std::string::npos) << error.remedy();
  }
}

class ProxiesTest : public ServiceTest {
 protected:
  static std::string forwarded(const std::string& client) { return "X-Forwarded-For: " + client + "\r\n"; }
};

TEST_F(ProxiesTest, ClientsBehindOneTakeTurnsAndAreLogged) {
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
    EXPECT_EQ(seen[0] == seen[3], !trusted) << "what cannot be read names the proxy";
    scorer_->answer_all();
    for (const auto& client : clients) {
      EXPECT_EQ(client->read().status, 200);
      client->get("/ping");  // by whose answer the one before was logged
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

TEST_F(ProxiesTest, OthersAreNotOfThisMachineBecauseTheirProxyIs) {
  ServerOptions o = held();
  o.keys = ApiKeys::parse("web:score:" + io::sha256_hex("secret") + "\n", "keys");
  o.proxies = TrustedProxies("127.0.0.1");
  start(o);
  EXPECT_EQ(get("/metrics").status, 200) << "this machine's own";
  EXPECT_EQ(get("/metrics", forwarded("::1")).status, 200);
  EXPECT_EQ(get("/metrics", forwarded("1.1.1.1")).status, 401);
  EXPECT_EQ(get("/metrics", forwarded("127.0.0.1x")).status, 401);
  EXPECT_EQ(get("/metrics", forwarded("::1, 1.1.1.1")).status, 401);
  EXPECT_EQ(get("/metrics").status, 200) << "the next request of that connection";
  o.models = held().models;
  o.proxies = {};  // one that nobody named
  start(o);
  for (const char* field : {"X-Forwarded-For: 127.0.0.1", "Forwarded: for=1.1.1.1", "X-Real-IP: ::1", "via: 1.1 a"})
    EXPECT_EQ(get("/metrics", std::string(field) + "\r\n").status, 401) << field;
  EXPECT_EQ(get("/metrics").status, 200);
}

TEST_F(ProxiesTest, TheirConnectionsAreNotCountedAsOneClients) {
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
