// SPDX-License-Identifier: Apache-2.0
// brim queue repair: reports damage, writes only with --apply, keeps the original.
#include "cli/program.h"

namespace brim {
namespace {

// Journal records: u32 length, u32 crc32, payload.
std::string journal() {
  static const std::pair<std::string, uint32_t> kRecords[] = {
      {R"({"record":"start","version":1,"queue":"news","next_number":1,"next_flush":1})", 0xa65a2d27},
      {R"({"record":"add","ms":1000,"next_flush":1,"items":[{"text":"a","item":{"id":1}}]})", 0x4a91cb18},
      {R"({"record":"add","ms":1000,"next_flush":1,"items":[{"text":"b","item":{"id":2}}]})", 0x762f332b},
      {R"({"record":"add","ms":1000,"next_flush":1,"items":[{"text":"c","item":{"id":3}}]})", 0xd4959905}};
  std::string bytes;
  for (const auto& [payload, checksum] : kRecords) {
    for (const size_t value : {payload.size(), static_cast<size_t>(checksum)})
      for (int i = 0; i < 4; ++i) bytes += static_cast<char>(value >> (8 * i));
    bytes += payload;
  }
  return bytes;
}

class QueueVerb : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    if (brim({"help", "queue"}).code != 0) GTEST_SKIP() << "built without the server";
    std::filesystem::create_directories(folder_ / "state/queues");
  }
};

TEST_F(QueueVerb, RepairReportsDamageAndWritesWithApply) {
  std::string damaged = journal();
  damaged[damaged.size() / 2 + 30] ^= 1;  // in the payload of the second item
  put("state/queues/news.journal", damaged);
  const Outcome dry = brim({"queue", "repair", "state"});
  EXPECT_EQ(dry.code, 3) << dry.err;
  for (const char* part : {"news.journal", "3 intact records, 1 damaged", "2 waiting items", "--apply"})
    EXPECT_NE(dry.out.find(part), std::string::npos) << dry.out;
  EXPECT_EQ(get("state/queues/news.journal"), damaged);
  EXPECT_FALSE(exists("state/lock"));
  const std::string applied = must({"queue", "repair", "state", "--apply"});
  EXPECT_NE(applied.find("news.journal.damaged"), std::string::npos) << applied;
  EXPECT_EQ(get("state/queues/news.journal.damaged"), damaged);
  const std::string clean = must({"queue", "repair", "state"});
  EXPECT_NE(clean.find("0 damaged"), std::string::npos) << clean;
  EXPECT_NE(clean.find("2 waiting items"), std::string::npos) << clean;
}

TEST_F(QueueVerb, RejectsDirectoryWithoutQueues) {
  refused(2, {"no queues found", "state directory"}, {"queue", "repair", "nothing"});
  refused(2, {"repair"}, {"queue"});
}

}  // namespace
}  // namespace brim
