// SPDX-License-Identifier: Apache-2.0
#include "serve/key_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>

#include "base/error.h"
#include "base/log.h"
#include "base/test_files.h"
#include "io/sha256.h"
#include "serve/auth.h"

namespace brim::serve {
namespace {

// The log's lines while a file of this mode is checked.
std::string warnings_for(mode_t mode, KeyFile kind) {
  const TempDir temp;
  const std::string file = temp.path() / "key";
  put_file(file, "x");
  EXPECT_EQ(::chmod(file.c_str(), mode), 0);
  std::string lines;
  struct Sink {  // also removed if the check throws
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

TEST(KeyFile, RefusesAFileThatEveryUserCanWrite) {
  EXPECT_THROW(warnings_for(0602, KeyFile::secret), Error);
  EXPECT_THROW(warnings_for(0666, KeyFile::hashes), Error);
  EXPECT_NO_THROW(check_key_file("tls_key", "/dev/null", KeyFile::secret)) << "only files have such permissions";
}

TEST(KeyFile, ApiKeysAreNotReadFromAFileThatEveryUserCanWrite) {
  const TempDir temp;
  const std::string file = temp.path() / "keys";
  put_file(file, "web:score:" + io::sha256_hex("k") + "\n");
  ASSERT_EQ(::chmod(file.c_str(), 0644), 0);
  EXPECT_FALSE(ApiKeys::load(file).empty());
  ASSERT_EQ(::chmod(file.c_str(), 0646), 0);
  try {
    ApiKeys::load(file);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_EQ(error.problem(), "`api_key_file=" + file + "`: every user can write it (mode 0646)");
    EXPECT_EQ(error.remedy(), "run chmod o-w " + file);
  }
}

}  // namespace
}  // namespace brim::serve
