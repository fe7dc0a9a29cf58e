// SPDX-License-Identifier: Apache-2.0
#include "http/proxies.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/fuzz_driver.h"

#define LLVMFuzzerTestOneInput fuzz_proxies
#include "http/proxies_fuzz.cc"
#undef LLVMFuzzerTestOneInput

namespace brim::http {
namespace {

// The client of a request from `peer` with these X-Forwarded-For fields; "-": the peer itself, "?": unclear.
std::string client_by(const TrustedProxies& proxies, std::string_view peer, std::vector<std::string_view> values) {
  RequestHead head;
  head.fields.push_back({"Host", "localhost"});
  for (const std::string_view value : values) head.fields.push_back({"X-Forwarded-FOR", value});
  const TrustedProxies::Client found = proxies.client_of(peer, head);
  EXPECT_FALSE(found.unclear && !found.address.empty());
  return found.unclear ? "?" : found.address.empty() ? "-" : found.address;
}

TEST(TrustedProxies, ReadsForwardedForOnlyFromTrustedPeers) {
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
  EXPECT_FALSE(TrustedProxies("0.0.0.0/0").trusts("::1")) << "an IPv4 network";
  EXPECT_FALSE(TrustedProxies("::/0").trusts("8.8.8.8")) << "an IPv6 network";
  EXPECT_TRUE(TrustedProxies("10.1.0.0/17").trusts("10.1.127.255"));
  EXPECT_FALSE(TrustedProxies("10.1.0.0/17").trusts("10.1.128.0"));
}

TEST(TrustedProxies, TakesTheLastUntrustedAddressAsTheClient) {
  const TrustedProxies proxies("10.0.0.0/8");
  EXPECT_EQ(client_by(proxies, "10.0.0.1", {}), "-");
  EXPECT_EQ(client_by(proxies, "10.0.0.1", {"1.1.1.1, 2.2.2.2, 10.0.0.2"}), "2.2.2.2");
  EXPECT_EQ(client_by(proxies, "10.0.0.1", {"1.1.1.1", "2.2.2.2,10.0.0.3", "10.0.0.2"}), "2.2.2.2");
  EXPECT_EQ(client_by(proxies, "10.0.0.1", {"10.0.0.9, 10.0.0.2"}), "-");
  EXPECT_EQ(client_by(proxies, "10.0.0.1", {"invented by the client, 2.2.2.2"}), "2.2.2.2");
  for (const char* same : {"2001:db8::1", "[2001:db8::1]", "[2001:DB8:0::1]:443", " \t2001:db8::1 "})
    EXPECT_EQ(client_by(proxies, "10.0.0.1", {same}), "2001:db8::1") << same;
  for (const char* same : {"2.2.2.2", "2.2.2.2:1234", "::ffff:2.2.2.2", "[::ffff:2.2.2.2]:1"})
    EXPECT_EQ(client_by(proxies, "10.0.0.1", {same}), "2.2.2.2") << same;
  for (const char* unclear : {"", ",", "2.2.2.2,", "unknown", "_hidden", "2.2.2", "2.2.2.2:x", "2.2.2.2:99999", "[::1",
                              "[::1]x", "[::1]:", "2.2.2.2 3.3.3.3", "2.2.2.2, 10.0.0.2, -", "\"2.2.2.2\""})
    EXPECT_EQ(client_by(proxies, "10.0.0.1", {unclear}), "?") << unclear;
}

TEST(TrustedProxies, RejectsMalformedLists) {
  for (const char* wrong : {"10.0.0", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/", "10.0.0.0/8x", "::/129", "name", ",",
                            "10.0.0.1,,10.0.0.2", "Unix", "10.0.0.0/8/8"})
    EXPECT_THROW(TrustedProxies{wrong}, Error) << wrong;
  try {
    TrustedProxies{"10.0.0.1/8"};
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_NE(error.remedy().find("10.0.0.0/8"), std::string::npos) << error.remedy();
  }
}

TEST(TrustedProxies, NeverReturnsATrustedProxyAsTheClient) {
  drive_fuzz(
      fuzz_proxies,
      {"10.0.0.7, 192.168.0.0/16,fd00::/8,unix\n10.0.0.7\n203.0.113.9, 192.168.0.1", "unix\nunix\n[2001:db8::1]:443",
       "10.0.0.0/8\n192.0.2.1\n203.0.113.9", "10.0.0.0/8\n10.0.0.1\n1.1.1.1\n2.2.2.2:80,::ffff:10.0.0.2"},
      20'000);
}

}  // namespace
}  // namespace brim::http
