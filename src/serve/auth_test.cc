// SPDX-License-Identifier: Apache-2.0
#include "serve/auth.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>

#include "base/error.h"
#include "base/test_files.h"
#include "io/sha256.h"

namespace brim::serve {
namespace {

TEST(ApiKeys, RejectsAKeyFileThatEveryUserCanWrite) {
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
    EXPECT_EQ(error.problem(), "`api_key_file=" + file + "`: every user can write to it (mode 0646)");
    EXPECT_EQ(error.remedy(), "run chmod o-w " + file);
  }
}

}  // namespace
}  // namespace brim::serve
