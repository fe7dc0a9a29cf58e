// SPDX-License-Identifier: Apache-2.0
#include "io/compress.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include "base/fuzz_driver.h"
#include "base/test_files.h"
#include "io/atomic_file.h"

#define LLVMFuzzerTestOneInput fuzz_compress
#include "io/compress_fuzz.cc"
#undef LLVMFuzzerTestOneInput

namespace brim::io {
namespace {

// The given members, compressed and concatenated.
std::string packed(Compression compression, const std::vector<std::string>& members) {
  TempDir dir;
  AtomicFile file(dir / "x");
  auto sink = make_sink(file, compression);
  for (const std::string& member : members) {
    sink->write(member);
    sink->end_member();
    EXPECT_EQ(sink->position(), static_cast<int64_t>(file.position()));
  }
  file.commit();
  return get_file(dir / "x");
}

std::string read_all(ByteSource& source, size_t ask = 1000) {
  std::string out, buffer(ask, '\0');
  while (const size_t n = source.read(buffer.data(), ask)) out.append(buffer, 0, n);
  return out;
}

std::string unpacked(const std::string& name, const std::string& bytes, size_t piece = SIZE_MAX, size_t ask = 1000) {
  return read_all(*decompressed(memory_source(name, bytes, piece)), ask);
}

std::string noise(size_t bytes) {
  std::mt19937 random(7);
  std::string out(bytes, '\0');
  for (char& c : out) c = static_cast<char>("abcdefgh\n"[random() % 9]);
  return out;
}

const char* name_of(Compression compression) { return compression == Compression::gzip ? "x.gz" : "x.zst"; }

class Packed : public testing::TestWithParam<Compression> {};
INSTANTIATE_TEST_SUITE_P(Compress, Packed, testing::Values(Compression::gzip, Compression::zstd));

TEST_P(Packed, RoundTripsSeveralMembers) {
  const std::string big = noise(700'000);
  const std::string bytes = packed(GetParam(), {big, "", "two\n", std::string(100'000, '\0'), "end"});
  const std::string expected = big + "two\n" + std::string(100'000, '\0') + "end";
  EXPECT_EQ(unpacked(name_of(GetParam()), bytes), expected);
  EXPECT_EQ(unpacked("pipe", bytes, 1), expected);  // detected by the first bytes, regardless of the name
  EXPECT_EQ(unpacked("pipe", bytes, 3, 1), expected);
  EXPECT_LT(bytes.size(), big.size() / 2);
}

TEST_P(Packed, EmptyOutputIsAValidStream) {
  const std::string bytes = packed(GetParam(), {""});
  EXPECT_GT(bytes.size(), 0u);
  EXPECT_EQ(unpacked(name_of(GetParam()), bytes), "");
  EXPECT_EQ(packed(GetParam(), {"", "", ""}), bytes);
}

TEST_P(Packed, DetectsEveryTruncation) {
  const std::string first = packed(GetParam(), {"first member\n"}), bytes = first + packed(GetParam(), {noise(500)});
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    if (cut == first.size()) continue;  // a complete stream
    const std::string message =
        error_of(ErrorCode::bad_data, [&] { unpacked(name_of(GetParam()), bytes.substr(0, cut)); });
    EXPECT_HAS(message, name_of(GetParam()));
  }
  const std::string message =
      error_of(ErrorCode::bad_data, [&] { unpacked(name_of(GetParam()), bytes.substr(0, bytes.size() - 1)); });
  EXPECT_HAS(message, "truncated");
  EXPECT_HAS(message, "byte " + std::to_string(bytes.size() - 1));
}

TEST_P(Packed, DetectsCorruption) {
  const std::string bytes = packed(GetParam(), {noise(5000)});
  for (size_t at = 12; at < bytes.size(); at += 7) {
    std::string broken = bytes;
    broken[at] = static_cast<char>(broken[at] ^ 0x10);
    error_of(ErrorCode::bad_data, [&] { unpacked(name_of(GetParam()), broken); });
  }
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { unpacked(name_of(GetParam()), bytes + "garbage"); }), "byte");
}

TEST_P(Packed, TracksSkipAndPosition) {
  const std::string text = noise(300'000), bytes = packed(GetParam(), {text.substr(0, 100'000), text.substr(100'000)});
  for (int64_t skip : {0, 1, 99'999, 100'000, 250'000, 300'000}) {
    auto source = decompressed(memory_source("x", bytes, 777));
    source->skip(skip);
    EXPECT_EQ(read_all(*source), text.substr(static_cast<size_t>(skip)));
    EXPECT_EQ(source->position(), static_cast<int64_t>(bytes.size()));
    EXPECT_EQ(source->size(), static_cast<int64_t>(bytes.size()));
  }
  auto source = decompressed(memory_source("x", bytes));
  error_of(ErrorCode::bad_data, [&] { source->skip(300'001); });
}

TEST(Compress, AcceptsZeroPaddingAfterGzip) {
  const std::string bytes = packed(Compression::gzip, {"text"});
  EXPECT_EQ(unpacked("x.gz", bytes + std::string(1000, '\0')), "text");
  EXPECT_EQ(unpacked("x.gz", bytes + std::string(1000, '\0'), 1), "text");
}

TEST(Compress, SkipsZstdSkippableFrames) {
  const std::string skippable = std::string("\x5A\x2A\x4D\x18\x03\x00\x00\x00", 8) + "abc";
  const std::string bytes = packed(Compression::zstd, {"text"});
  EXPECT_EQ(unpacked("x.zst", skippable + bytes + skippable + bytes, 1), "texttext");
}

TEST(Compress, RejectsMisleadingNames) {
  EXPECT_HAS(error_of(ErrorCode::bad_data, [] { unpacked("x.gz", "plain text\n"); }), "not gzip data");
  EXPECT_HAS(error_of(ErrorCode::bad_data, [] { unpacked("x.zst", "plain text\n"); }), "not zstd data");
  EXPECT_EQ(unpacked("x.gz", packed(Compression::zstd, {"text"})),
            "text");  // detected by content although the name is wrong
  EXPECT_EQ(unpacked("x.txt", "\x1F"), "\x1F");
  EXPECT_EQ(unpacked("x.txt", "(\xB5/"), "(\xB5/");
}

TEST(Compress, ParsesNames) {
  EXPECT_EQ(compression_of("a.csv.gz"), Compression::gzip);
  EXPECT_EQ(compression_of("a.zst"), Compression::zstd);
  EXPECT_EQ(compression_of("-"), Compression::none);
  EXPECT_EQ(without_compression("a.csv.zst"), "a.csv");
}

TEST(Compress, SeeksInPlainFiles) {
  TempDir dir;
  put_file(dir / "a.txt", "0123456789");
  auto source = open_source((dir / "a.txt").string());
  source->skip(3);
  EXPECT_EQ(source->position(), 3);
  EXPECT_EQ(read_all(*source), "3456789");
  EXPECT_EQ(source->size(), 10);
  source = open_source((dir / "a.txt").string());
  source->skip(8);
  EXPECT_EQ(read_all(*source), "89");
}

TEST(Compress, Fuzz) {
  const std::string gz = packed(Compression::gzip, {"hello hello hello\n", noise(300)});
  const std::string zst = packed(Compression::zstd, {"hello hello hello\n", noise(300)});
  drive_fuzz(fuzz_compress,
             {"\x03" + gz, "\x01" + zst, "\x02" + gz, "\x05" + zst, "\x02plain", std::string("\x03\x1F\x8B", 3)},
             20000);
}

}  // namespace
}  // namespace brim::io
