// SPDX-License-Identifier: Apache-2.0
// Responses are sent after the data they acknowledge is on disk: order of writes, syncs and responses. Damage of that
// data is reported.
#include "base/test_syscalls.h"
#include "serve/service_fixture.h"

namespace brim::serve {
namespace {

class Durability : public ServiceTest {
 protected:
  void start_with_queue(int flush_size = 2) {
    ServerOptions o = serving("vader", Scorer::open({.model = "vader"}));
    o.state_dir = state_.string();
    o.queues.push_back({.name = "news", .model = "vader", .flush_size = flush_size});
    start(std::move(o));
  }
  // All data written for a response with this status is synced before it is sent, and some was written.
  void expect_durable_answer(const SyscallLog& log, const std::string& status, const std::string& written) {
    const auto calls = log.calls();
    const size_t answer = find_call(calls, "send", "HTTP/1.1 " + status);
    ASSERT_LT(answer, calls.size()) << "no response " << status;
    EXPECT_LT(find_call(calls, "write", written), answer);
    EXPECT_EQ(unsynced(calls, answer, state_.string()), std::vector<std::string>{});
  }
  const std::filesystem::path state_ = temp_.path() / "state";
};

TEST_F(Durability, SyncsQueuedItemBeforeResponse) {
  start_with_queue();
  const SyscallLog log;
  EXPECT_EQ(post("/queues/news/score_or_queue", R"({"text":"a"})").status, 202);
  expect_durable_answer(log, "202", "news.journal");
}

TEST_F(Durability, SyncsFlushBeforeResponse) {
  start_with_queue();
  EXPECT_EQ(post("/queues/news/score_or_queue", R"({"text":"a"})").status, 202);
  const SyscallLog log;
  EXPECT_EQ(post("/queues/news/score_or_queue", R"({"text":"b"})").status, 200);
  expect_durable_answer(log, "200", "news.journal");
}

TEST_F(Durability, SyncsAcknowledgementBeforeResponse) {
  start_with_queue();
  EXPECT_EQ(post("/queues/news/flush_and_apply", R"({"items":[{"text":"a"}]})").status, 200);
  const SyscallLog log;
  EXPECT_EQ(del("/queues/news/flushes/1").status, 200);
  expect_durable_answer(log, "200", "news.journal");
}

TEST_F(Durability, SyncsNewJournalAndDirectoriesBeforeFirstResponse) {
  const SyscallLog log;
  start_with_queue();
  EXPECT_EQ(post("/queues/news/score_or_queue", R"({"text":"a"})").status, 202);
  const auto calls = log.calls();
  EXPECT_LT(find_call(calls, "mkdir", "/queues"), calls.size());
  expect_durable_answer(log, "202", "news.journal");
}

TEST_F(Durability, DamagedJournalDegradesHealth) {
  start_with_queue(10);
  for (const char* text : {"first", "second", "third"})
    EXPECT_EQ(post("/queues/news/score_or_queue", Json{{"text", text}}.dump()).status, 202);
  EXPECT_EQ(Json::parse(get("/health").body)["status"], "ok");
  server_.reset();
  const auto journal = state_ / "queues/news.journal";
  std::string bytes = get_file(journal);
  const size_t at = bytes.find("second");
  ASSERT_NE(at, std::string::npos);
  bytes[at] ^= 1;
  put_file(journal, bytes);

  start_with_queue(10);
  const RawAnswer answer = get("/health");
  EXPECT_EQ(answer.status, 200) << "the other items are served";
  const Json health = Json::parse(answer.body);
  EXPECT_EQ(health["status"], "degraded");
  EXPECT_EQ(health["warnings"],
            Json::array({"queue news: 1 damaged record in its journal; stop the server and run `brim queue repair`"}));
  EXPECT_EQ(good("/queues/news/flush_and_apply", "{}")["items"].size(), 2u);
}

TEST_F(Durability, SyncsJobBeforeResponse) {
  ServerOptions o = serving("vader", Scorer::open({.model = "vader"}));
  o.state_dir = state_.string();
  start(std::move(o));
  const SyscallLog log;
  EXPECT_EQ(post("/jobs?text_column=text", "text\nI love it\n").status, 201);
  const auto calls = log.calls();
  const size_t record = find_call(calls, "rename", "/job.json"), answer = find_call(calls, "send", "HTTP/1.1 201");
  ASSERT_LT(record, answer);
  ASSERT_LT(answer, calls.size());
  EXPECT_LT(find_call(calls, "rename", "/input.csv"), record);
  // The job may start immediately and rewrite its record, so check the directories individually.
  const std::string jobs = (state_ / "jobs").string();
  EXPECT_EQ(unsynced(calls, record, state_.string()), std::vector<std::string>{jobs});
  EXPECT_LT(find_call(calls, "fsync", std::filesystem::path(calls[record].target).parent_path().string(), record),
            answer);
  EXPECT_LT(find_call(calls, "fsync", jobs, record), answer);
}

}  // namespace
}  // namespace brim::serve
