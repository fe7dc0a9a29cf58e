// SPDX-License-Identifier: Apache-2.0
#include "http/key_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>

#include "base/error.h"
#include "base/log.h"
#include "base/test_files.h"

namespace brim::http {
namespace {

// Log lines of a check of a file with this mode.
std::string warnings_for(mode_t mode, KeyFile kind) {
  const TempDir temp;
  const std::string file = temp.path() / "key";
  put_file(file, "x");
  EXPECT_EQ(::chmod(file.c_str(), mode), 0);
  std::string lines;
  struct Sink {  // restores the sink if the check throws
    explicit Sink(std::string& to) : before(set_log_sink([&to](LogLevel, std::string_view line) { to += line; })) {}
    ~Sink() { set_log_sink(before); }
    const LogSink before;
  } const sink(lines);
  check_key_file("tls_key", file, kind);
  return lines;
}

TEST(KeyFile, WarnsIfOthersCanReadASecret) {
  EXPECT_EQ(warnings_for(0600, KeyFile::secret), "");
  EXPECT_EQ(warnings_for(0400, KeyFile::secret), "");
  EXPECT_NE(warnings_for(0640, KeyFile::secret).find("other users can read this key (mode 0640)"), std::string::npos);
  EXPECT_NE(warnings_for(0604, KeyFile::secret).find("chmod 600"), std::string::npos);
  EXPECT_EQ(warnings_for(0644, KeyFile::hashes), "");
}

TEST(KeyFile, RejectsAFileThatEveryUserCanWrite) {
  EXPECT_THROW(warnings_for(0602, KeyFile::secret), Error);
  EXPECT_THROW(warnings_for(0666, KeyFile::hashes), Error);
  EXPECT_NO_THROW(check_key_file("tls_key", "/dev/null", KeyFile::secret)) << "not a regular file";
}

}  // namespace
}  // namespace brim::http
