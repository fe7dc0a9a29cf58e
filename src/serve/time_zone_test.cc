// SPDX-License-Identifier: Apache-2.0
#include "serve/time_zone.h"

#include <fstream>
#include <sstream>

#include "base/fuzz_driver.h"
#include "base/test_files.h"

#define LLVMFuzzerTestOneInput fuzz_time_zone
#include "serve/time_zone_fuzz.cc"
#undef LLVMFuzzerTestOneInput

namespace brim::serve {
namespace {

std::string big_endian(int64_t value, int width) {
  std::string bytes;
  for (int i = width; i-- > 0;) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

struct MadeChange {
  int64_t at;
  int type;
};

std::string zone_block(char version, const std::vector<MadeChange>& changes, const std::vector<int>& offsets,
                       int width) {
  std::string block = std::string("TZif") + version + std::string(15, '\0');
  for (const size_t count : {size_t{0}, size_t{0}, size_t{0}, changes.size(), offsets.size(), size_t{4}})
    block += big_endian(static_cast<int64_t>(count), 4);
  for (const MadeChange& change : changes) block += big_endian(change.at, width);
  for (const MadeChange& change : changes) block += static_cast<char>(change.type);
  for (const int offset : offsets) block += big_endian(offset, 4) + std::string(2, '\0');
  return block + std::string("LMT\0", 4);
}

std::string zone_file(const std::string& rule, const std::vector<MadeChange>& changes = {},
                      const std::vector<int>& offsets = {0}) {
  return zone_block('2', {}, {0}, 4) + zone_block('2', changes, offsets, 8) + "\n" + rule + "\n";
}

TEST(TimeZone, FooterRulesMatchPython) {
  std::ifstream in(BRIM_SOURCE_DIR "/tests/data/serve/zone_rules.txt");
  std::string rule, last;
  int64_t moment = 0, offset = 0;
  std::optional<TimeZone> zone;
  int seen = 0;
  while (in >> rule >> moment >> offset) {
    if (rule != last) zone = TimeZone::parse(zone_file(rule), rule);
    last = rule;
    EXPECT_EQ(zone->offset_at(moment), offset) << rule << " at " << moment;
    ++seen;
  }
  EXPECT_GT(seen, 500);
}

TEST(TimeZone, SupportsZeroAndOneBasedDays) {
  // Day 59 from 0 is 1 March, or 29 February in a leap year; day 60 from 1 is always 1 March.
  const TimeZone from_zero = TimeZone::parse(zone_file("AAA0BBB,59/0,299/0"), "zero");
  EXPECT_EQ(from_zero.next_change(1672531200), 1677628800);  // 2023-03-01
  EXPECT_EQ(from_zero.next_change(1704067200), 1709164800);  // 2024-02-29
  const TimeZone from_one = TimeZone::parse(zone_file("AAA0BBB,J60/0,J300/0"), "one");
  EXPECT_EQ(from_one.next_change(1672531200), 1677628800);
  EXPECT_EQ(from_one.next_change(1704067200), 1709251200);  // 2024-03-01
}

TEST(TimeZone, ReadsNewYorkFromSystemFile) {
  if (!std::filesystem::exists("/usr/share/zoneinfo/America/New_York")) GTEST_SKIP() << "no tzdata";
  const TimeZone zone = TimeZone::load("America/New_York");
  EXPECT_EQ(zone.offset_at(-5'000'000'000), -17762);  // local mean time
  EXPECT_EQ(zone.offset_at(1710053999), -5 * 3600);   // 2024-03-10 01:59:59
  EXPECT_EQ(zone.offset_at(1710054000), -4 * 3600);
  EXPECT_EQ(zone.next_change(1704067200), 1710054000);
  EXPECT_EQ(zone.next_change(1710054000), 1730613600);
  EXPECT_EQ(zone.moments_of(1710037800 + 0).size(), 0u) << "02:30 on the day clocks go forward";
  EXPECT_EQ(zone.moments_of(1730597400), (std::vector<int64_t>{1730611800, 1730615400})) << "01:30 occurs twice";
  EXPECT_EQ(zone.moments_of(1720000000), (std::vector<int64_t>{1720014400}));
}

TEST(TimeZone, ListedChangesPrecedeRule) {
  const std::string bytes = zone_file("AAA-2", {{1000, 1}, {2000, 0}, {3000, 1}}, {3600, 7200});
  const TimeZone zone = TimeZone::parse(bytes, "made");
  EXPECT_EQ(zone.offset_at(999), 3600);
  EXPECT_EQ(zone.offset_at(1000), 7200);
  EXPECT_EQ(zone.offset_at(2999), 3600);
  EXPECT_EQ(zone.offset_at(1'000'000'000'000), 7200);
  EXPECT_EQ(zone.next_change(0), 1000);
  EXPECT_EQ(zone.next_change(3000), std::nullopt);
  // Version 1 has 32-bit times and no rule.
  const TimeZone old = TimeZone::parse(zone_block('\0', {{1000, 1}}, {3600, 7200}, 4), "old");
  EXPECT_EQ(old.offset_at(0), 3600);
  EXPECT_EQ(old.offset_at(5'000'000'000), 7200);
}

TEST(TimeZone, RejectsInvalidZones) {
  const auto refusal = [](const std::string& bytes) {
    return error_of(ErrorCode::bad_data, [&] { TimeZone::parse(bytes, "made"); });
  };
  const std::string good = zone_file("EST5EDT,M3.2.0,M11.1.0", {{1000, 1}, {2000, 0}}, {0, 3600});
  TimeZone::parse(good, "made");
  for (size_t length = 0; length < good.size(); ++length) refusal(good.substr(0, length));
  EXPECT_HAS(refusal("not a zone"), "missing TZif magic");
  EXPECT_HAS(refusal(zone_file("UTC0", {{2000, 0}, {1000, 0}})), "out of order");
  EXPECT_HAS(refusal(zone_file("UTC0", {{2000, 3}})), "invalid type index");
  EXPECT_HAS(refusal(zone_file("UTC0", {}, {100'000})), "26 hours");
  for (const char* rule :
       {"E5", "EST", "EST5EDT", "EST5EDT,M13.1.0,M11.1.0", "EST5EDT,M3.2.0", "EST5EDT,M3.2.0,M11.1.0x", "EST25",
        "<EST5", "EST5EDT,J0,J1", "EST5EDT,366,1", "EST5:60", "EST5EDT,M3.2.0/168,M11.1.0"})
    EXPECT_HAS(refusal(zone_file(rule)), "rule");
}

TEST(TimeZone, NamesCannotLeaveZoneDirectory) {
  const TempDir dir;
  put_file(dir / "zones/Here/There", zone_file("UTC0"));
  put_file(dir / "secret", zone_file("UTC0"));
  EXPECT_EQ(TimeZone::load("Here/There", dir / "zones").name(), "Here/There");
  for (const char* name : {"", "Here", "../secret", "/etc/passwd", "Here/../../secret", "No/Where", "a\nb"})
    EXPECT_HAS(error_of(ErrorCode::usage, [&] { TimeZone::load(name, dir / "zones"); }), "America/New_York");
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { TimeZone::load("UTC", dir / "none"); }), "install tzdata");
}

TEST(TimeZone, Fuzz) {
  drive_fuzz(fuzz_time_zone,
             {zone_file("EST5EDT,M3.2.0,M11.1.0", {{1000, 1}, {2000, 0}}, {0, 3600}), zone_file("XXX3EDT4,0/0,J365/23"),
              zone_file("<+0330>-3:30"), zone_block('\0', {{1000, 1}}, {3600, 7200}, 4)},
             20000);
}

}  // namespace
}  // namespace brim::serve
