// SPDX-License-Identifier: Apache-2.0
// API keys, host names, cross-origin requests and log contents, over real sockets.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/test_files.h"
#include "io/sha256.h"
#include "serve/router.h"
#include "serve/service_fixture.h"

namespace brim::serve {
namespace {

TEST_F(ServiceTest, ChecksKeysAndHosts) {
  ServerOptions o = held();
  o.keys = ApiKeys::parse(
      "web:score:" + io::sha256_hex("secret") + "\nops:metrics,admin:" + io::sha256_hex("other") + "\n", "keys");
  start(o);
  EXPECT_EQ(get("/ping").status, 200);
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(get("/metrics").status, 200) << "loopback";
  RawAnswer answer = get("/info");
  EXPECT_EQ(answer.status, 401);
  EXPECT_EQ(answer.fields["www-authenticate"], "Bearer");
  const RawAnswer unknown = get("/info", "Authorization: Bearer wrong\r\n");
  EXPECT_EQ(unknown.status, 401);
  EXPECT_NE(unknown.body.find("unknown API key"), std::string::npos);
  EXPECT_EQ(get("/info", "Authorization: Bearer secret\r\n").status, 200);
  const RawAnswer narrow = get("/info", "Authorization: Bearer other\r\n");
  EXPECT_EQ(narrow.status, 403);
  EXPECT_NE(narrow.body.find("API key 'ops' lacks scope 'score'"), std::string::npos) << narrow.body;
  EXPECT_EQ(get("/nothing").status, 401) << "routes are not disclosed";
  start(held());
  const auto by_host = [&](const std::string& host, const std::string& path) {
    RawClient client(server_->port());
    client.send("GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
    return client.read().status;
  };
  EXPECT_EQ(by_host("localhost:8080", "/info"), 200);
  EXPECT_EQ(by_host("127.0.0.1", "/info"), 200);
  EXPECT_EQ(by_host("[::1]:80", "/info"), 200);
  EXPECT_EQ(by_host("evil.example", "/info"), 403);
  for (const char* malformed : {"[::1].evil.com", "127.0.0.1:evil.com", "[::1]:evil.com", "[::1", "[evil.com]", ":80"})
    EXPECT_EQ(by_host(malformed, "/info"), 400) << malformed;
  EXPECT_EQ(by_host("10.0.0.7:80", "/info"), 200);
  EXPECT_EQ(by_host("pod.local", "/health/live"), 200);
  ServerOptions named = held();
  named.allowed_hosts = {"Brim.example"};
  start(named);
  EXPECT_EQ(by_host("brim.example:443", "/info"), 200);
  ServerOptions open = held();
  open.listen = "0.0.0.0:0";
  EXPECT_THROW(Server{open}, Error);
  open.insecure = true;
  Server allowed{open};
}

TEST_F(ServiceTest, KeyWithoutMetricsScopeReadsMetricsFromLoopback) {
  ServerOptions o = held();
  o.keys = ApiKeys::parse("web:score:" + io::sha256_hex("secret") + "\n", "keys");
  start(o);
  for (const char* path : {"/metrics", "/snapshot", "/history"}) {
    EXPECT_EQ(get(path).status, 200) << path;
    EXPECT_EQ(get(path, "Authorization: Bearer secret\r\n").status, 200) << path;
  }
  const std::string elsewhere = "X-Forwarded-For: 192.0.2.1\r\n";
  EXPECT_EQ(get("/metrics", elsewhere).status, 401);
  const RawAnswer narrow = get("/metrics", "Authorization: Bearer secret\r\n" + elsewhere);
  EXPECT_EQ(narrow.status, 403);
  EXPECT_NE(narrow.body.find("API key 'web' lacks scope 'metrics'"), std::string::npos) << narrow.body;
}

TEST_F(ServiceTest, HostOfAbsoluteTargetReplacesHostField) {
  start(held());
  const auto answer_to = [&](const std::string& target, const std::string& host) {
    RawClient client(server_->port());
    client.send("GET " + target + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
    return client.read();
  };
  EXPECT_EQ(answer_to("http://localhost:8080/info", "localhost:8080").status, 200);
  EXPECT_EQ(answer_to("HTTP://127.0.0.1/info?a=b", "evil.example").status, 200);
  EXPECT_EQ(answer_to("http://localhost?a=b", "localhost").status, 200) << "an empty path is /";
  const RawAnswer refused = answer_to("http://evil.example/info", "localhost");
  EXPECT_EQ(refused.status, 403);
  EXPECT_NE(refused.body.find("host 'evil.example' is not allowed (add it with `allowed_host`)"), std::string::npos)
      << refused.body;
}

TEST_F(ServiceTest, AllowsConfiguredOrigins) {
  ServerOptions o = held();
  o.keys = ApiKeys::parse("web:score,admin:" + io::sha256_hex("secret") + "\n", "keys");
  const auto preflight = [&](const std::string& origin, const std::string& path = "/predict") {
    client_->send("OPTIONS " + path + " HTTP/1.1\r\nHost: localhost\r\nOrigin: " + origin +
                  "\r\nAccess-Control-Request-Method: POST\r\n\r\n");
    return client_->read();
  };
  const std::string page = "Origin: https://a.example\r\nAuthorization: Bearer secret\r\n";
  start(o);
  EXPECT_EQ(preflight("https://a.example").status, 401) << "no origin is allowed";
  EXPECT_EQ(get("/info", page).fields.count("access-control-allow-origin"), 0u);
  o.models[0].scorer = std::make_shared<HeldScorer>();
  o.cors_origins = {"https://a.example", "http://b.example:8080"};
  start(o);
  RawAnswer allowed = preflight("https://a.example");
  EXPECT_EQ(allowed.status, 200) << "without a key, because browsers send none in preflights";
  EXPECT_EQ(allowed.fields["access-control-allow-methods"], "POST");
  EXPECT_NE(allowed.fields["access-control-allow-headers"].find("Authorization"), std::string::npos);
  EXPECT_EQ(allowed.fields["access-control-allow-origin"], "https://a.example");
  EXPECT_EQ(allowed.fields["vary"], "Origin");
  for (const char* other : {"https://c.example", "http://a.example", "https://a.example:444", "null"})
    EXPECT_EQ(preflight(other).fields.count("access-control-allow-origin"), 0u) << other;
  EXPECT_EQ(preflight("https://a.example", "/nothing").status, 401);
  RawAnswer answer = get("/info", page);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.fields["access-control-allow-origin"], "https://a.example");
  answer = get("/info", "Origin: https://a.example\r\n");
  EXPECT_EQ(answer.status, 401) << "keys are still required";
  EXPECT_EQ(answer.fields["access-control-allow-origin"], "https://a.example") << "so that the page can read the error";
  EXPECT_EQ(get("/info", "Authorization: Bearer secret\r\n").fields.count("access-control-allow-origin"), 0u)
      << "depends on this request only";
  EXPECT_EQ(post("/admin/nothing", "", page).status, 404) << "an allowed origin is not refused";
  client_->send(
      "OPTIONS /predict HTTP/1.1\r\nHost: localhost\r\nOrigin: https://a.example\r\n"
      "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: x-stainless-os\r\n\r\n");
  EXPECT_EQ(client_->read().fields["access-control-allow-headers"], "x-stainless-os");

  o = held();
  o.cors_origins = {"*"};
  start(o);
  EXPECT_EQ(preflight("https://c.example").status, 200) << "any origin may score";
  EXPECT_EQ(post("/admin/drain", "", "Origin: https://c.example\r\n").status, 403) << "admin routes still require keys";
  const RawAnswer foreign = get("/trace", "Sec-Fetch-Site: cross-site\r\n");
  EXPECT_EQ(foreign.status, 403) << "not as the URL of an image either";
  EXPECT_NE(foreign.body.find("cross-origin request refused"), std::string::npos) << foreign.body;
}

TEST_F(ServiceTest, LogsContainNoTexts) {
  const auto file = (temp_.path() / "access.log").string();
  ServerOptions o = tiny();
  o.access_log = file;
  start(o);
  good("/predict", R"({"inputs":"w6 w7 w8"})");
  get("/nothing/w6");
  get("/ping");  // the preceding responses are counted and logged by now
  server_.reset();
  std::ifstream stream(file);
  std::stringstream all;
  all << stream.rdbuf();
  std::string line;
  ASSERT_TRUE(std::getline(all, line));
  const Json entry = Json::parse(line);
  EXPECT_EQ(entry["route"], "POST /predict");
  EXPECT_EQ(entry["model"], "cls");
  EXPECT_EQ(entry["code"], 200);
  EXPECT_EQ(entry["texts"], 1);
  ASSERT_TRUE(std::getline(all, line));
  EXPECT_EQ(Json::parse(line)["code"], 404);
  EXPECT_EQ(all.str().find("w6"), std::string::npos) << all.str();
}

TEST(AuthTest, ReadsKeys) {
  const std::string hash = io::sha256_hex("k");
  const ApiKeys keys = ApiKeys::parse("# who\n\nweb:score,queue:" + hash + "\r\n", "keys");
  const ApiKey* key = keys.find("bearer k");
  ASSERT_NE(key, nullptr);
  EXPECT_EQ(key->name, "web");
  EXPECT_TRUE(key->allows(Scope::queue));
  EXPECT_FALSE(key->allows(Scope::admin));
  EXPECT_EQ(keys.find("Bearer "), nullptr);
  EXPECT_EQ(keys.find("k"), nullptr);
  for (const std::string& wrong : std::initializer_list<std::string>{
           "web:score", "web:all:" + hash, ":score:" + hash, "web:score:12",
           "web:score:" + hash + "\nweb:score:" + hash, "web:score:" + std::string(64, 'g')})
    EXPECT_THROW(ApiKeys::parse(wrong, "keys"), Error) << wrong;
}

}  // namespace
}  // namespace brim::serve
