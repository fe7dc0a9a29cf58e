// SPDX-License-Identifier: Apache-2.0
#include "io/sha256.h"

#include <gtest/gtest.h>

namespace brim::io {
namespace {

TEST(Sha256Test, MatchesTheStandard) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex(std::string(1000, 'a')), "41edece42d63e8d9bf515a9ba6932e1c20cbc9f5a5d134645adb5db1b9737ea3");
  EXPECT_EQ(sha256_hex(std::string(64, 'a')), "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
}

TEST(Sha1Test, MatchesKnownDigests) {
  const auto sha1 = [](std::string_view text) {
    Sha1 hash;
    hash.update(text);
    return hex_text(hash.finish());
  };
  EXPECT_EQ(sha1(""), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
  EXPECT_EQ(sha1("abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
  EXPECT_EQ(sha1(std::string(1'000'000, 'a')), "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
}

TEST(Sha256Test, DoesNotDependOnThePiecesOfItsInput) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 7);
  for (size_t length : {0u, 1u, 55u, 56u, 63u, 64u, 65u, 119u, 120u, 128u, 300u})
    for (size_t piece : {1u, 3u, 63u, 64u, 65u, 200u}) {
      Sha256 hash;
      for (size_t at = 0; at < length; at += piece)
        hash.update(std::string_view(text).substr(at, std::min(piece, length - at)));
      EXPECT_EQ(hex_text(hash.finish()), sha256_hex(text.substr(0, length))) << length << " in pieces of " << piece;
    }
}

}  // namespace
}  // namespace brim::io
