// SPDX-License-Identifier: Apache-2.0
#include "http/access_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/test_files.h"

namespace brim::http {
namespace {

TEST(AccessLog, AppendsEveryLine) {
  const TempDir temp;
  const auto file = temp.path() / "log";
  std::string wanted;
  for (int run = 0; run < 2; ++run) {
    AccessLog log(file.string());
    for (int i = 0; i < 3000; ++i) {
      const std::string line = "run " + std::to_string(run) + " line " + std::to_string(i) + "\n";
      log.add(line);
      wanted += line;
    }
  }
  EXPECT_EQ(read_file(file), wanted);
  EXPECT_THROW(AccessLog((temp.path() / "none" / "log").string()), Error);
}

TEST(AccessLog, IsNotReadableByOtherUsers) {
  const TempDir temp;
  const mode_t before = ::umask(0);
  { AccessLog log((temp.path() / "log").string()); }
  ::umask(before);
  EXPECT_EQ(static_cast<int>(std::filesystem::status(temp.path() / "log").permissions()), 0640);
}

// A blocking write(2) would also block the shutdown of the server.
TEST(AccessLog, ClosesWhileItsPipeIsNotRead) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const std::string line(1000, 'x');
  size_t taken = 0;
  {
    AccessLog log("/dev/fd/" + std::to_string(ends[1]));
    for (int i = 0; i < 500; ++i) log.add(line);  // several times the capacity of a pipe
  }
  ::close(ends[1]);
  char bytes[4096];
  for (ssize_t n = 0; (n = ::read(ends[0], bytes, sizeof bytes)) > 0;) taken += static_cast<size_t>(n);
  ::close(ends[0]);
  EXPECT_GT(taken, 0u);
  EXPECT_LT(taken, 500 * line.size());
}

TEST(AccessLog, KeepsEveryLineForASlowReader) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  size_t taken = 0;
  std::thread reader([&] {
    char bytes[1000];
    for (ssize_t n = 0; (n = ::read(ends[0], bytes, sizeof bytes)) > 0;) taken += static_cast<size_t>(n);
  });
  {
    AccessLog log("/dev/fd/" + std::to_string(ends[1]));
    for (int i = 0; i < 500; ++i) log.add(std::string(1000, 'x'));
  }
  ::close(ends[1]);
  reader.join();
  ::close(ends[0]);
  EXPECT_EQ(taken, 500'000u);
}

}  // namespace
}  // namespace brim::http
