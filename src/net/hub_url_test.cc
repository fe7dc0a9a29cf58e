// SPDX-License-Identifier: Apache-2.0
#include "net/hub_url.h"

#include <gtest/gtest.h>

#include "base/test_files.h"

namespace brim::net {
namespace {

TEST(RepositoryNameTest, SplitsNameAndRevision) {
  EXPECT_EQ(parse_repository("org/name").id, "org/name");
  EXPECT_EQ(parse_repository("org/name").revision, "main");
  EXPECT_EQ(parse_repository("gpt2@v1.0").id, "gpt2");
  EXPECT_EQ(parse_repository("org/name@refs/pr/3").revision, "refs/pr/3");
}

TEST(RepositoryNameTest, RejectsNamesThatLeaveTheCache) {
  for (const char* name :
       {"", "/", "org/", "/name", "../name", "org/..", "a/b/c", "org/na me", "org/name@", "org/name@/x",
        "org/name@../../x", "org/name@a//b", "org\\name", ".hidden/name", "https://hub/org/name"})
    EXPECT_HAS(error_of(ErrorCode::usage, [&] { parse_repository(name); }), "invalid repository name") << name;
}

TEST(FileNameTest, AcceptsRelativeNamesOnly) {
  for (const char* name : {"config.json", "1_Pooling/config.json", "a.b/c d.txt", "..a", "a..b"})
    EXPECT_TRUE(is_safe_file_name(name)) << name;
  for (const std::string& name :
       {std::string(), std::string("/etc/passwd"), std::string("../x"), std::string("a/../../x"), std::string("a//b"),
        std::string("a/"), std::string("./a"), std::string("a\\b"), std::string("a\nb"), std::string("a\0b", 3),
        std::string(300, 'a')})
    EXPECT_FALSE(is_safe_file_name(name)) << name;
}

TEST(UrlTest, IsSplitAndNormalized) {
  const Url url = parse_url("HTTPS://Hub.Example:443/api?x=1");
  EXPECT_EQ(url.host, "hub.example");
  EXPECT_EQ(to_text(url), "https://hub.example/api?x=1");
  EXPECT_EQ(encode_url("refs/pr 1", false), "refs%2Fpr%201");
  EXPECT_EQ(encode_url("a b/c", true), "a%20b/c");
  for (const char* bad :
       {"", "hub", "file:///etc/passwd", "ftp://hub/", "https://", "https://user@hub/", "https://hub/ x"})
    EXPECT_HAS(error_of(ErrorCode::usage, [&] { parse_url(bad); }), "invalid address") << bad;
}

TEST(UrlTest, ResolvesRedirects) {
  const Url from = parse_url("https://hub/a/b?c");
  EXPECT_EQ(to_text(resolve_location(from, "/x?y")), "https://hub/x?y");
  EXPECT_EQ(to_text(resolve_location(from, "//cdn/x")), "https://cdn/x");
  EXPECT_EQ(to_text(resolve_location(from, "http://cdn/x")), "http://cdn/x");
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { resolve_location(from, "x"); }), "unsupported redirect");
}

TEST(UrlTest, RecognizesLoopbackByTheWholeHost) {
  for (const char* url : {"http://localhost:80/x", "https://LOCALHOST", "http://127.0.0.1:9/", "http://127.8.0.2?x",
                          "http://[::1]:80/", "http://user@localhost/"})
    EXPECT_TRUE(is_loopback(url)) << url;
  for (const char* url : {"http://localhost.evil.com/", "http://127.evil.com/", "http://127.0.0.1.evil.com/",
                          "http://localhost@evil.com/", "http://[::1].evil.com@evil.com/", "http://[::2]/",
                          "http://evil.com/localhost", "http://1270.0.0.1/", "localhost"})
    EXPECT_FALSE(is_loopback(url)) << url;
}

TEST(TokenTest, IsSentOverHttpsToTheEndpointOnly) {
  const Url hub = parse_url("https://hub/");
  EXPECT_TRUE(may_send_token(hub, parse_url("https://hub:443/file")));
  EXPECT_FALSE(may_send_token(hub, parse_url("http://hub/file")));
  EXPECT_FALSE(may_send_token(hub, parse_url("https://hub:8443/file")));
  EXPECT_FALSE(may_send_token(hub, parse_url("https://hub.evil/file")));
  EXPECT_FALSE(may_send_token(parse_url("http://hub/"), parse_url("http://hub/file")));
}

}  // namespace
}  // namespace brim::net
