// SPDX-License-Identifier: Apache-2.0
#include "http/listen.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/error.h"
#include "base/test_files.h"

namespace brim::http {
namespace {

TEST(ListenTest, AdoptsAnInheritedSocket) {
  const Listener listener(parse_listen_address("127.0.0.1:0"));
  const int descriptor = listener.descriptor();
  ::unsetenv("LISTEN_FDS");
  EXPECT_FALSE(inherited_socket(descriptor));
  ::setenv("LISTEN_FDS", "1", 1);
  ::setenv("LISTEN_PID", "1", 1);
  EXPECT_FALSE(inherited_socket(descriptor)) << "for another process";
  ::setenv("LISTEN_PID", std::to_string(::getpid()).c_str(), 1);
  const auto address = inherited_socket(descriptor);
  ASSERT_TRUE(address);
  EXPECT_EQ(address->text(), fmt::format("127.0.0.1:{}", listener.port()));
  EXPECT_TRUE(address->is_loopback());
  EXPECT_THROW(inherited_socket(STDIN_FILENO), Error);
  ::setenv("LISTEN_FDS", "2", 1);
  EXPECT_THROW(inherited_socket(descriptor), Error);
  TempDir dir;
  const Listener file(parse_listen_address("unix:" + (dir.path() / "brim.sock").string()));
  ::setenv("LISTEN_FDS", "1", 1);
  EXPECT_EQ(inherited_socket(file.descriptor())->unix_path, (dir.path() / "brim.sock").string());
  ::unsetenv("LISTEN_FDS");
  ::unsetenv("LISTEN_PID");
}

TEST(ListenTest, ParsesAddresses) {
  EXPECT_EQ(parse_listen_address("127.0.0.1:8080").text(), "127.0.0.1:8080");
  EXPECT_EQ(parse_listen_address("[::1]:80").text(), "[::1]:80");
  EXPECT_TRUE(parse_listen_address("[::1]:80").is_loopback());
  EXPECT_TRUE(parse_listen_address("localhost:80").is_loopback());
  EXPECT_TRUE(parse_listen_address("unix:/x").is_loopback());
  EXPECT_FALSE(parse_listen_address("0.0.0.0:80").is_loopback());
  EXPECT_FALSE(parse_listen_address(":80").is_loopback());
  for (const char* bad : {"", "8080", "a:b", "a:70000", "::1:80", "unix:", "127.0.0.1:", "127.0.0.1:80x"})
    EXPECT_THROW(parse_listen_address(bad), Error) << bad;
}

}  // namespace
}  // namespace brim::http
