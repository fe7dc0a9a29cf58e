// SPDX-License-Identifier: Apache-2.0
#include "io/hub_names.h"

#include <gtest/gtest.h>

namespace brim::io {
namespace {

TEST(HubNames, AcceptsNamesThatAreSafeInPaths) {
  for (const char* name : {"gpt2", "org/name", "Org-1/name_v2.0"}) EXPECT_TRUE(is_hub_name(name)) << name;
  for (const char* name : {"", "/", "a/", "/a", "a/b/c", "..", "a/..", "../a", "a..b", ".hidden", "a b", "a@b", "a\\b"})
    EXPECT_FALSE(is_hub_name(name)) << name;
}

TEST(HubNames, AcceptsRevisionsWithSlashes) {
  for (const char* name : {"main", "refs/pr/1", "v1.0"}) EXPECT_TRUE(is_hub_revision(name)) << name;
  for (const char* name : {"", "/main", "main/", "a//b", "a/../b", ".git"}) EXPECT_FALSE(is_hub_revision(name)) << name;
}

TEST(HubNames, NamesFoldersLikeHuggingFace) {
  EXPECT_EQ(hub_cache_folder("org/name"), "models--org--name");
  EXPECT_EQ(hub_cache_folder("gpt2"), "models--gpt2");
}

}  // namespace
}  // namespace brim::io
