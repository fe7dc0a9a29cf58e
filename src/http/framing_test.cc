// SPDX-License-Identifier: Apache-2.0
#include "http/framing.h"

#include <gtest/gtest.h>

#include "base/fuzz_driver.h"

#define LLVMFuzzerTestOneInput fuzz_framing
#include "http/framing_fuzz.cc"
#undef LLVMFuzzerTestOneInput

namespace brim::http {
namespace {

using ReaderState = RequestReader::State;

// Status with which the request is rejected; 0 if it is accepted.
int status_of(const std::string& bytes, const FramingLimits& limits = {}) {
  RequestReader reader(limits);
  for (size_t at = 0;
       at < bytes.size() && reader.state() != ReaderState::complete && reader.state() != ReaderState::rejected;)
    at += reader.feed(std::string_view(bytes).substr(at));
  EXPECT_TRUE(reader.state() == ReaderState::complete || reader.state() == ReaderState::rejected) << bytes;
  return reader.status();
}

std::string post(const std::string& fields, const std::string& body = "", const std::string& version = "1.1") {
  return "POST /predict HTTP/" + version + "\r\nHost: a\r\n" + fields + "\r\n" + body;
}

TEST(FramingTest, ParsesAHeadAndABody) {
  RequestReader reader({});
  const std::string bytes =
      "POST /predict?x=1 HTTP/1.1\r\nHost: localhost:8080\r\ncontent-LENGTH:  4 \r\nA: \r\n\r\nabcdGET";
  size_t used = reader.feed(bytes);
  EXPECT_EQ(reader.state(), ReaderState::body);
  EXPECT_EQ(reader.head().method, "POST");
  EXPECT_EQ(reader.head().target, "/predict?x=1");
  EXPECT_EQ(reader.head().host, "localhost:8080");
  EXPECT_EQ(reader.head().find("Content-Length"), "4");
  EXPECT_TRUE(reader.head().keep_alive);
  used += reader.feed(std::string_view(bytes).substr(used));
  EXPECT_EQ(reader.state(), ReaderState::complete);
  EXPECT_EQ(reader.body(), "abcd");
  EXPECT_EQ(bytes.substr(used), "GET");
  reader.reset();
  EXPECT_FALSE(reader.begun());
}

TEST(FramingTest, ParsesTargetsInAbsoluteForm) {
  const auto read = [](const std::string& target) {
    RequestReader reader({});
    reader.feed("GET /before HTTP/1.1\r\nHost: before\r\n\r\n");
    reader.reset();
    reader.feed("GET " + target + " HTTP/1.1\r\nHost: field\r\n\r\n");
    EXPECT_EQ(reader.state(), ReaderState::complete) << target << " " << reader.problem();
    return std::string(reader.head().host) + " " + std::string(reader.head().target);
  };
  EXPECT_EQ(read("/a?b"), "field /a?b");
  EXPECT_EQ(read("//a/b"), "field //a/b") << "a path with an empty segment";
  EXPECT_EQ(read("http://a:80/b/c?d=http://e"), "a:80 /b/c?d=http://e");
  EXPECT_EQ(read("HTTPS://[::1]/"), "[::1] /");
  EXPECT_EQ(read("http://a"), "a /");
  EXPECT_EQ(read("https://a.example:8?b=c/d"), "a.example:8 /?b=c/d");
}

TEST(FramingTest, ParsesChunks) {
  RequestReader reader({});
  const std::string bytes = post("Transfer-Encoding: Chunked\r\n", "3\r\nabc\r\n0A\r\n0123456789\r\n0\r\n\r\n");
  for (const char c : bytes) ASSERT_EQ(reader.feed(std::string_view(&c, 1)), 1u);
  EXPECT_EQ(reader.state(), ReaderState::complete);
  EXPECT_EQ(reader.body(), "abc0123456789");
}

TEST(FramingTest, FollowsTheConnectionField) {
  const auto kept = [](const std::string& fields, const std::string& version) {
    RequestReader reader({});
    reader.feed(post(fields, "", version));
    EXPECT_EQ(reader.state(), ReaderState::complete);
    return reader.head().keep_alive;
  };
  EXPECT_TRUE(kept("", "1.1"));
  EXPECT_FALSE(kept("Connection: Close\r\n", "1.1"));
  EXPECT_FALSE(kept("Connection: keep-alive , close\r\n", "1.1"));
  EXPECT_FALSE(kept("", "1.0"));
  EXPECT_TRUE(kept("Connection: Keep-Alive\r\n", "1.0"));
}

TEST(FramingTest, RejectsRequestsThatAProxyMightParseDifferently) {
  EXPECT_EQ(status_of(post("Content-Length: 2\r\n", "{}")), 0);
  EXPECT_EQ(status_of(post("Content-Length: 2\r\nContent-Length: 2\r\n", "{}")), 400);
  EXPECT_EQ(status_of(post("Content-Length: 2, 2\r\n", "{}")), 400);
  EXPECT_EQ(status_of(post("Content-Length: +2\r\n", "{}")), 400);
  EXPECT_EQ(status_of(post("Content-Length: 0x2\r\n", "{}")), 400);
  EXPECT_EQ(status_of(post("Content-Length: \r\n")), 400);
  EXPECT_EQ(status_of(post("Content-Length: 99999999999999999999\r\n")), 400);
  EXPECT_EQ(status_of(post("Content-Length : 2\r\n", "{}")), 400);
  EXPECT_EQ(status_of(post("Transfer-Encoding: chunked\r\nContent-Length: 2\r\n", "0\r\n\r\n")), 400);
  EXPECT_EQ(status_of(post("Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n")), 400);
  EXPECT_EQ(status_of(post("Transfer-Encoding: gzip\r\nContent-Length: 2\r\n", "{}")), 400);
  EXPECT_EQ(status_of(post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n")), 400);
  EXPECT_EQ(status_of(post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n")), 400);
  EXPECT_EQ(status_of(post("Transfer-Encoding: chunked\r\n", "0\r\n\r\n", "1.0")), 400);
  EXPECT_EQ(status_of(post("Transfer-Encoding: chunked\r\n", "1;x=y\r\na\r\n0\r\n\r\n")), 400);
  EXPECT_EQ(status_of(post("Transfer-Encoding: chunked\r\n", "1 \r\na\r\n0\r\n\r\n")), 400);
  EXPECT_EQ(status_of(post("Transfer-Encoding: chunked\r\n", "1\na\r\n0\r\n\r\n")), 400);
  EXPECT_EQ(status_of(post("Transfer-Encoding: chunked\r\n", "1\r\nab\r\n0\r\n\r\n")), 400);
  EXPECT_EQ(status_of(post("Transfer-Encoding: chunked\r\n", "0\r\nX: y\r\n\r\n")), 400);
  EXPECT_EQ(status_of(post("Transfer-Encoding: chunked\r\n", "123456789\r\n")), 400);
  EXPECT_EQ(status_of(post("Host: b\r\n")), 400);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\n\r\n"), 400);  // no Host
  EXPECT_EQ(status_of("GET / HTTP/1.0\r\n\r\n"), 0);
  for (const char* host : {"a b", "", ":", ":80", "a:b", "a:65536", "a:1:2", "::1", "[::1", "[::1]a", "[::1].evil.com",
                           "[::1]:a", "[a]", "[]", "[127.0.0.1]", "127.0.0.1:evil.com", "a@b", "a/b"})
    EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: " + std::string(host) + "\r\n\r\n"), 400) << host;
  for (const char* host : {"a", "a.b-c_d", "a:", "a:65535", "127.0.0.1:80", "[::1]", "[::1]:80"})
    EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: " + std::string(host) + "\r\n\r\n"), 0) << host;
  EXPECT_EQ(status_of(post("A: b\r\n c\r\n")), 400);  // folded
  EXPECT_EQ(status_of(post("A b\r\n")), 400);
  EXPECT_EQ(status_of(post(": b\r\n")), 400);
  EXPECT_EQ(status_of(post("A: b\n")), 400);  // a bare line feed
  EXPECT_EQ(status_of(post(std::string("A: b\0c\r\n", 8))), 400);
  EXPECT_EQ(status_of(post("A: b\rc\r\n")), 400);
  for (const char* target :
       {"http://", "http:///a", "http://a b/", "http://u@a/", "http://a:b/", "ftp://a/", "http:/a", "a:80"})
    EXPECT_EQ(status_of("GET " + std::string(target) + " HTTP/1.1\r\nHost: a\r\n\r\n"), 400) << target;
  EXPECT_EQ(status_of("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET /\xC3\xA4 HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET  / HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(status_of("G@T / HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(status_of("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET / HTTP/2.0\r\nHost: a\r\n\r\n"), 505);
  EXPECT_EQ(status_of("GET / http/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(status_of(post("Expect: a-cake\r\n")), 417);
}

TEST(FramingTest, EnforcesItsLimits) {
  const FramingLimits limits{.line = 40, .head = 100, .fields = 3, .body = 10};
  const std::string end = " HTTP/1.1\r\n";
  EXPECT_EQ(status_of("GET /" + std::string(26, 'a') + end + "Host: a\r\n\r\n", limits), 0);
  EXPECT_EQ(status_of("GET /" + std::string(27, 'a') + end + "Host: a\r\n\r\n", limits), 414);
  EXPECT_EQ(status_of("GET /" + std::string(100, 'a'), limits), 414);  // before its end was received
  EXPECT_EQ(status_of(post("A: " + std::string(80, 'a')), limits), 431);
  EXPECT_EQ(status_of(post("A: b\r\nC: d\r\n"), limits), 0);
  EXPECT_EQ(status_of(post("A: b\r\nC: d\r\nE: f\r\n"), limits), 431);
  EXPECT_EQ(status_of(post("Content-Length: 10\r\n", "0123456789"), limits), 0);
  EXPECT_EQ(status_of(post("Content-Length: 11\r\n"), limits), 413);  // before its body was received
  EXPECT_EQ(status_of(post("Transfer-Encoding: chunked\r\n", "a\r\n0123456789\r\n0\r\n\r\n"), limits), 0);
  EXPECT_EQ(status_of(post("Transfer-Encoding: chunked\r\n", "a\r\n0123456789\r\n1\r\n"), limits), 413);
}

TEST(FramingTest, AgreesWithALenientParser) {
  const std::string p(1, '\3');
  drive_fuzz(fuzz_framing,
             {p + "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
              p + post("Content-Length: 5\r\n", "helloPOST / HTTP/1.0\r\n\r\n"),
              p + post("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: b\r\n\r\n"),
              p + post("Transfer-Encoding: gzip\r\nContent-Length: 3\r\n", "abc"),
              p + post("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n", "1;a=b\r\nx\r\n0\r\nT: v\r\n\r\n"),
              p + "GET / HTTP/1.1\nHost: a\n\n"},
             60'000);
}

}  // namespace
}  // namespace brim::http
