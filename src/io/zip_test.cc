// SPDX-License-Identifier: Apache-2.0
#include "io/zip.h"

#include <gtest/gtest.h>

#include "base/fuzz_driver.h"
#include "base/test_files.h"
#include "io/zip_maker.h"

#define LLVMFuzzerTestOneInput fuzz_zip
#include "io/zip_fuzz.cc"
#undef LLVMFuzzerTestOneInput

namespace brim::io {
namespace {

std::string zip_error(const std::string& file) {
  return error_of(ErrorCode::bad_model, [&] { parse_zip(as_bytes(file), "m.bin"); });
}

ZipMaker two() {
  ZipMaker zip;
  zip.members.push_back({.name = "a/one", .bytes = "first"});
  zip.members.push_back({.name = "a/two", .bytes = ""});
  return zip;
}

TEST(Zip, ReadsMembers) {
  for (int variant = 0; variant < 8; ++variant) {
    ZipMaker zip = two();
    zip.zip64_end = (variant & 1) != 0;
    zip.members[0].zip64 = (variant & 2) != 0;
    zip.comment = (variant & 4) != 0 ? std::string(65535, 'c') : "";
    const std::string file = zip.make();
    EXPECT_TRUE(looks_like_zip(as_bytes(file)));
    const auto members = parse_zip(as_bytes(file), "m");
    ASSERT_EQ(members.size(), 2u);
    EXPECT_EQ(members[0].name, "a/one");
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(members[0].bytes.data()), members[0].bytes.size()), "first");
    EXPECT_TRUE(members[1].bytes.empty());
    check_crc(members[0], "m");
  }
}

TEST(Zip, RejectsInconsistentArchives) {
  const std::string whole = two().make();
  for (size_t n = 0; n < whole.size(); ++n) zip_error(whole.substr(0, n));
  EXPECT_HAS(zip_error(""), "end record not found");
  auto with = [](auto&& change) {
    ZipMaker zip = two();
    change(zip.members[0]);
    return zip.make();
  };
  EXPECT_HAS(zip_error(with([](auto& m) { m.method = 8; })), "'a/one' is compressed (method 8)");
  EXPECT_HAS(zip_error(with([](auto& m) { m.flags = 1; })), "encrypted");
  EXPECT_HAS(zip_error(with([](auto& m) { m.wrong_offset = 7; })), "not found at its directory offset 7");
  EXPECT_HAS(zip_error(with([](auto& m) { m.wrong_offset = 0x7FFFFFFF; })), "outside the file");
  EXPECT_HAS(zip_error(with([](auto& m) {
               m.zip64 = true;
               m.wrong_offset = INT64_MAX;
             })),
             "outside the file");
  EXPECT_HAS(zip_error(with([](auto& m) { m.wrong_bytes = 1000; })), "outside the file");
  EXPECT_HAS(zip_error(with([](auto& m) { m.wrong_bytes = 6; })), "overlaps");
  EXPECT_HAS(zip_error(with([](auto& m) {
               m.zip64 = true;
               m.wrong_bytes = INT64_MAX;
             })),
             "outside the file");
  ZipMaker twice = two();
  twice.members[1] = {.name = "a/one", .bytes = "x", .wrong_offset = 0};
  EXPECT_HAS(zip_error(twice.make()), "overlaps");
  const std::string bad_sum = with([](auto& m) { m.wrong_crc = 1; });
  const auto members = parse_zip(as_bytes(bad_sum), "m");
  EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { check_crc(members[0], "m"); }), "checksum");
}

TEST(ZipFuzz, NeverCrashes) {
  ZipMaker large = two();
  large.zip64_end = large.members[0].zip64 = true;
  drive_fuzz(fuzz_zip, {two().make(), large.make()}, 10000);
}

}  // namespace
}  // namespace brim::io
