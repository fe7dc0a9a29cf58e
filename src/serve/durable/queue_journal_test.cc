// SPDX-License-Identifier: Apache-2.0
#include "serve/durable/queue_journal.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <random>
#include <thread>

#include "base/fuzz_driver.h"
#include "base/log.h"
#include "base/test_files.h"
#include "base/test_syscalls.h"
#include "serve/durable/queue_repair.h"
#include "serve/durable/queue_state.h"
#include "serve/durable/queue_testing.h"

#define LLVMFuzzerTestOneInput fuzz_queue
#include "serve/durable/queue_fuzz.cc"
#undef LLVMFuzzerTestOneInput

namespace brim::serve {
namespace {

TEST(QueueJournal, KeepsCommittedRecords) {
  const TempDir dir;
  {
    QueueJournal journal(dir / "q", "first");
    EXPECT_EQ(journal.opened(), std::vector<std::string>{"first"});
    journal.append("two");
    journal.commit(journal.append(std::string("\0three\n", 7)));
    journal.append("never committed");
  }
  QueueJournal journal(dir / "q", "not written: there is a file");
  EXPECT_EQ(journal.opened(), (std::vector<std::string>{"first", "two", std::string("\0three\n", 7)}));
  EXPECT_FALSE(std::filesystem::exists(dir / "q.tail"));
  EXPECT_EQ(journal.bytes(), get_file(dir / "q").size());
}

TEST(QueueJournal, RewritesByRename) {
  const TempDir dir;
  QueueJournal journal(dir / "q", "first");
  const uint64_t waiting = journal.append("in the snapshot");
  journal.rewrite({"first", "in the snapshot"});
  journal.commit(waiting);  // already durable after the rewrite
  journal.commit(journal.append("after"));
  QueueJournal again(dir / "q", "");
  EXPECT_EQ(again.opened(), (std::vector<std::string>{"first", "in the snapshot", "after"}));
  EXPECT_EQ(again.bytes(), journal.bytes());
}

TEST(QueueJournal, TruncationLosesOnlyTornRecord) {
  std::string whole;
  std::vector<size_t> ends;
  for (int i = 0; i < 20; ++i) {
    whole += QueueJournal::frame(std::string(static_cast<size_t>(i), static_cast<char>('a' + i)));
    ends.push_back(whole.size());
  }
  for (size_t cut = 0; cut <= whole.size(); ++cut) {
    const auto content = QueueJournal::read(std::string_view(whole).substr(0, cut));
    const size_t expected = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), cut) - ends.begin());
    ASSERT_EQ(content.records.size(), expected) << cut;
    ASSERT_EQ(content.bytes, expected == 0 ? 0 : ends[expected - 1]);
  }
  EXPECT_TRUE(QueueJournal::read(std::string(64, '\0')).records.empty()) << "zeros are not a record";
}

struct Records {
  std::string bytes;
  std::vector<std::string> payloads;
  std::vector<size_t> starts;
};

Records make_records(size_t count) {
  Records made;
  for (size_t i = 0; i < count; ++i) {
    made.payloads.push_back(std::string(i, static_cast<char>('a' + i)));
    made.starts.push_back(made.bytes.size());
    made.bytes += QueueJournal::frame(made.payloads.back());
  }
  return made;
}

// The records without that at `index`.
std::vector<std::string> without(const Records& records, size_t index) {
  std::vector<std::string> left = records.payloads;
  left.erase(left.begin() + static_cast<std::ptrdiff_t>(index));
  return left;
}

std::vector<std::string> payloads_of(const QueueJournal::Content& content) {
  return {content.records.begin(), content.records.end()};
}

TEST(QueueJournal, FlippedBitLosesNoOtherRecord) {
  const Records records = make_records(20);
  for (size_t bit = 0; bit < records.bytes.size() * 8; ++bit) {
    const size_t at = bit / 8;
    std::string bent = records.bytes;
    bent[at] = static_cast<char>(bent[at] ^ (1 << bit % 8));
    const auto content = QueueJournal::read(bent);
    const size_t hit = static_cast<size_t>(std::upper_bound(records.starts.begin(), records.starts.end(), at) - 1 -
                                           records.starts.begin());
    const bool in_length = at - records.starts[hit] < 4;  // then this record is readable too
    ASSERT_EQ(payloads_of(content), in_length ? records.payloads : without(records, hit)) << bit;
    ASSERT_EQ(content.damage.size(), 1u) << bit;
    ASSERT_EQ(content.damage[0].recovered, in_length) << bit;
    ASSERT_EQ(content.damage[0].before, hit) << bit;
    ASSERT_EQ(content.damage[0].offset, records.starts[hit]) << bit;
    ASSERT_EQ(content.damage[0].records, 1u) << bit;
    ASSERT_EQ(content.damaged_tail, !in_length && hit == 19) << bit;
  }
}

TEST(QueueJournal, WrongLengthFieldHidesNoRecord) {
  const Records records = make_records(8);
  for (size_t hit = 0; hit < 8; ++hit)
    for (const uint32_t wrong : {0u, 1u, 30u, 200u, 0xffu, 0xffffu, 0x3fffffffu, 0x80000000u, 0xffffffffu}) {
      if (wrong == hit) continue;
      std::string bent = records.bytes;
      for (size_t i = 0; i < 4; ++i) bent[records.starts[hit] + i] = static_cast<char>(wrong >> (8 * i));
      ASSERT_EQ(payloads_of(QueueJournal::read(bent)), records.payloads) << hit << " " << wrong;
      bent[records.starts[hit] + 5] ^= 1;  // now unreadable
      ASSERT_EQ(payloads_of(QueueJournal::read(bent)), without(records, hit)) << hit << " " << wrong;
    }
}

TEST(QueueJournal, SkipsSeveralDamagedRecordsAndCountsThem) {
  const Records records = make_records(9);
  std::string bent = records.bytes;
  for (const size_t hit : {3, 4, 7}) bent[records.starts[hit] + 8] ^= 1;
  const auto content = QueueJournal::read(bent);
  EXPECT_EQ(content.records.size(), 6u);
  ASSERT_EQ(content.damage.size(), 2u);
  EXPECT_EQ(content.damage[0].records, 2u);
  EXPECT_EQ(content.damage[1].records, 1u);
  EXPECT_EQ(content.damage[1].bytes.size(), 8u + 7u);
}

// Every offset contains a plausible length: reading all of these payloads would take quadratic time.
TEST(QueueJournal, FindsRecordBehindManyPlausibleLengths) {
  const std::string good = QueueJournal::frame("good");
  std::string bytes;
  while (bytes.size() < (256 << 10)) bytes += std::string("\0\0\1\0", 4);
  const std::string file = bytes + good + good;
  const auto content = QueueJournal::read(file);
  EXPECT_EQ(payloads_of(content), (std::vector<std::string>{"good", "good"}));
  EXPECT_EQ(content.damage[0].bytes, bytes);
}

TEST(QueueJournal, HasTheFormatOfEarlierVersions) {
  const std::string written(
      "\x05\0\0\0\xab\x48\xcd\xf8"
      "first",
      13);
  EXPECT_EQ(QueueJournal::frame("first"), written);
  EXPECT_EQ(payloads_of(QueueJournal::read(written + written)), (std::vector<std::string>{"first", "first"}));
}

TEST(QueueJournal, OpenKeepsDamageBeforeIntactRecords) {
  const TempDir dir;
  const Records records = make_records(5);
  std::string bent = records.bytes;
  bent[records.starts[2] + 8] ^= 1;
  put_file(dir / "q", bent);
  {
    QueueJournal journal(dir / "q", "");
    EXPECT_EQ(journal.opened(), without(records, 2));
    EXPECT_EQ(journal.damage().size(), 1u);
    EXPECT_FALSE(journal.damage_removed());
    journal.commit(journal.append("next"));
  }
  EXPECT_EQ(get_file(dir / "q"), bent + QueueJournal::frame("next"));
  EXPECT_FALSE(std::filesystem::exists(dir / "q.tail"));
  QueueJournal journal(dir / "q", "");
  EXPECT_EQ(journal.opened().size(), 5u);
  journal.rewrite({"all"});
  EXPECT_EQ(get_file(dir / "q.damaged"), bent + QueueJournal::frame("next")) << "the original";
  journal.rewrite({"all"});
  EXPECT_FALSE(std::filesystem::exists(dir / "q.damaged.2"));
}

// Otherwise the end of this record would be unknown after a later torn write.
TEST(QueueJournal, OpenCorrectsLengthOfLastRecord) {
  const TempDir dir;
  const Records records = make_records(5);
  std::string bent = records.bytes;
  bent[records.starts[4]] ^= 64;
  put_file(dir / "q", bent);
  {
    const SyscallLog log;
    QueueJournal journal(dir / "q", "");
    EXPECT_EQ(journal.opened(), records.payloads);
    EXPECT_EQ(journal.damage().size(), 1u);
    EXPECT_LT(find_call(log.calls(), "write", "/q"), log.calls().size());
    EXPECT_EQ(unsynced(log.calls(), SIZE_MAX, dir.path().string()), std::vector<std::string>{});
  }
  EXPECT_EQ(get_file(dir / "q"), records.bytes);
}

TEST(QueueJournal, OpenMovesTornTailToSeparateFile) {
  const TempDir dir;
  const std::string good = QueueJournal::frame("first") + QueueJournal::frame("second");
  const std::string torn = QueueJournal::frame("third").substr(0, 9);
  put_file(dir / "q", good + torn);
  {
    QueueJournal journal(dir / "q", "");
    EXPECT_EQ(journal.opened().size(), 2u);
    EXPECT_EQ(get_file(dir / "q.tail"), torn);
    journal.commit(journal.append("next"));
  }
  EXPECT_EQ(get_file(dir / "q"), good + QueueJournal::frame("next"));
}

TEST(QueueJournal, ReplacesFileWithoutIntactRecords) {
  const TempDir dir;
  for (const size_t length : {size_t{0}, size_t{5}}) {
    put_file(dir / "new", QueueJournal::frame("first").substr(0, length));
    QueueJournal journal(dir / "new", "first");
    EXPECT_TRUE(journal.opened().empty());
    EXPECT_EQ(journal.damage().size(), 1u);
    EXPECT_TRUE(journal.damage_removed());
    EXPECT_EQ(get_file(dir / "new"), QueueJournal::frame("first"));
  }
}

TEST(QueueJournal, DoesNotOverwriteSavedTails) {
  const TempDir dir;
  const std::string good = QueueJournal::frame("first");
  std::vector<std::string> lines;
  const LogSink before = set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  for (const char* torn : {"one", "another", "another"}) {
    put_file(dir / "q", good + torn);
    QueueJournal(dir / "q", "");
  }
  QueueJournal(dir / "q", "");
  set_log_sink(before);
  EXPECT_EQ(get_file(dir / "q.tail"), "one");
  EXPECT_EQ(get_file(dir / "q.tail.2"), "another");
  EXPECT_FALSE(std::filesystem::exists(dir / "q.tail.3")) << "the same bytes once";
  ASSERT_EQ(lines.size(), 3u) << "once for each removed tail";
  EXPECT_HAS(lines[1], "7 bytes");
  EXPECT_HAS(lines[1], (dir / "q.tail.2").string());
}

TEST(QueueJournal, ConcurrentCommitsHaveOneOrder) {
  const TempDir dir;
  std::vector<std::string> appended;
  {
    QueueJournal journal(dir / "q", "first");
    std::mutex order;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < 50; ++i) {
          const std::string record = std::to_string(t) + ":" + std::to_string(i);
          std::unique_lock lock(order);
          const uint64_t ticket = journal.append(record);
          appended.push_back(record);
          lock.unlock();
          journal.commit(ticket);
        }
      });
    for (std::thread& thread : threads) thread.join();
  }
  QueueJournal journal(dir / "q", "");
  appended.insert(appended.begin(), "first");
  EXPECT_EQ(journal.opened(), appended);
}

// A file size limit simulates a full disk.
class SmallDisk {
 public:
  explicit SmallDisk(rlim_t bytes) {
    before_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SmallDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, before_handler_);
  }

 private:
  rlimit before_{};
  void (*before_handler_)(int);
};

TEST(QueueJournal, FullDiskFailsCommitWithoutLoss) {
  const TempDir dir;
  QueueJournal journal(dir / "q", "first");
  journal.commit(journal.append("second"));
  std::string message;
  {
    const SmallDisk disk(64 << 10);
    const uint64_t ticket = journal.append(std::string(100 << 10, 'x'));
    message = error_of(ErrorCode::cannot_write, [&] { journal.commit(ticket); });
    error_of(ErrorCode::cannot_write, [&] { journal.append("later"); });
    error_of(ErrorCode::cannot_write, [&] { journal.rewrite({"first"}); });
  }
  EXPECT_HAS(message, "cannot write");
  EXPECT_EQ(get_file(dir / "q"), QueueJournal::frame("first") + QueueJournal::frame("second"));
  QueueJournal again(dir / "q", "");
  EXPECT_EQ(again.opened().size(), 2u);
  EXPECT_FALSE(std::filesystem::exists(dir / "q.tail"));
}

TEST(QueueJournal, FailedRewriteKeepsFile) {
  const TempDir dir;
  QueueJournal journal(dir / "q", "first");
  {
    const SmallDisk disk(64 << 10);
    error_of(ErrorCode::cannot_write, [&] { journal.rewrite({std::string(1 << 20, 'x')}); });
    // Small writes are buffered until the commit.
    error_of(ErrorCode::cannot_write, [&] { journal.rewrite({std::string(100 << 10, 'x')}); });
  }
  EXPECT_FALSE(journal.failed());
  journal.commit(journal.append("second"));
  EXPECT_EQ(QueueJournal(dir / "q", "").opened(), (std::vector<std::string>{"first", "second"}));
}

TEST(QueueState, CompactionPreservesState) {
  QueueState state;
  const UsedKey key{"k", 7};
  state.apply(start_record("q", state));
  state.apply(add_record({{"a", "", {{"id", 1}}}, {"b", "reuters", QueueJson::object()}}, 1000, nullptr, {}));
  state.apply(add_record({{"c", "", QueueJson::object()}}, 2000, &key, {{"status", "queued"}}));
  Flush flush{3000, true, {{"a", "", {{"id", 1}}}, {"b", "", QueueJson::object()}}, {{{"id", 1}}, QueueJson::object()}};
  const UsedKey other{"f", 8};
  state.apply(flush_record(2, flush, &other, {{"flush_id", 1}}));
  flush.delivered = false;
  state.apply(flush_record(0, flush, nullptr, {}));
  ASSERT_EQ(state.waiting.size(), 1u);
  EXPECT_EQ(state.waiting[0].text, "c");
  EXPECT_EQ(state.waiting[0].number, 3u);
  EXPECT_EQ(state.keys.at("k").status, 202);
  EXPECT_EQ(state.keys.at("f").flush, 1u);

  QueueState again;
  for (const QueueJson& record : state.snapshot(3000, "q")) again.apply(record);
  EXPECT_EQ(again.waiting[0].number, 3u);
  EXPECT_EQ(again.waiting[0].queued_ms, 2000);
  EXPECT_EQ(again.next_flush, 3u);
  EXPECT_EQ(again.flushes.size(), 2u);
  EXPECT_EQ(again.keys.at("k").status, 202);
  EXPECT_EQ(again.keys.at("f").flush, 1u);
  EXPECT_EQ(again.flushed.at("id 1").first, 2u) << "the newest";
  QueueState later;
  for (const QueueJson& record : state.snapshot(3000 + kKeepMs + 1, "q")) later.apply(record);
  EXPECT_EQ(later.flushes.size(), 1u) << "unread results are kept";
  EXPECT_TRUE(later.keys.empty());
  EXPECT_EQ(later.waiting.size(), 1u);
  QueueState narrow;
  for (const QueueJson& record : state.snapshot(3000, "q", 10)) narrow.apply(record);
  EXPECT_EQ(narrow.flushes.size(), 1u) << "unread results are kept";
  EXPECT_TRUE(narrow.flushes.contains(2));
  EXPECT_TRUE(narrow.keys.empty());
  EXPECT_EQ(narrow.waiting.size(), 1u);
  again.apply(acknowledge_record(2));
  EXPECT_FALSE(again.flushed.contains("id 1"));
}

TEST(QueueState, RejectsInvalidRecords) {
  for (const char* bad :
       {"[]", "{}", "3", "{\"record\":\"x\"}", "{\"record\":\"start\",\"version\":2}", "{\"record\":\"add\"}",
        "{\"record\":\"flush\",\"taken\":1,\"ms\":1,\"delivered\":true,\"items\":[],\"results\":[]}",
        "{\"record\":\"flush\",\"taken\":-1}", "{\"record\":\"add\",\"ms\":1e300,\"items\":[]}",
        "{\"record\":\"add\",\"ms\":1,\"items\":[{\"text\":\"a\",\"item\":[]}]}", "not json"}) {
    QueueState state;
    error_of(ErrorCode::bad_data, [&] { state.apply(parse_record(bad)); });
  }
}

// Found by the fuzz target: restarted numbering would give the same id to two flushes.
TEST(QueueState, RejectsStartAfterOtherRecords) {
  QueueState state;
  state.apply(start_record("q", state));
  state.apply(start_record("q", state));
  const QueueJson start = start_record("q", state);
  state.apply(flush_record(0, {}, nullptr, {}));
  error_of(ErrorCode::bad_data, [&] { state.apply(start); });
  EXPECT_EQ(state.next_flush, 2u);
}

TEST(QueueState, Fuzz) {
  QueueState state;
  const UsedKey key{"k", 7};
  const Flush flush{3000, true, {{"a", "", {{"id", 1}}}}, {{{"id", 1}, {"label", "x"}}}};
  const std::vector<std::string> records = {
      text_of(start_record("q", state)),
      text_of(add_record({{"a", "s", {{"id", 1}}}}, 1000, &key, {{"status", "queued"}})),
      text_of(flush_record(1, flush, &key, {{"flush_id", 1}})), text_of(key_record(key, 5, {{"items", {1, 2}}})),
      text_of(acknowledge_record(1))};
  std::string framed, lines;
  for (const std::string& record : records) {
    framed += QueueJournal::frame(record);
    lines += record + "\n";
  }
  drive_fuzz(fuzz_queue, {framed, lines, records[0] + "\n" + records[1], "[[[[", lines + framed}, 5000);
}

// Item ids of a queue in order: flushed, then waiting.
struct ItemIds {
  std::vector<int> flushed, waiting;
  bool operator==(const ItemIds&) const = default;
};

ItemIds ids_in(const QueueState& state) {
  ItemIds ids;
  for (const auto& [number, flush] : state.flushes)
    for (const QueueJson& item : flush.results) ids.flushed.push_back(item["id"].get<int>());
  for (const WaitingItem& item : state.waiting) ids.waiting.push_back(item.item["id"].get<int>());
  return ids;
}

// Each prefix of a journal must contain the items and results acknowledged by then, and open as a working queue.
TEST(Queue, TruncatedJournalLosesNothingAcknowledged) {
  QueueBench bench({.flush_size = 4});
  struct Point {
    size_t bytes;
    ItemIds ids;
    uint64_t last_flush;
  };
  std::vector<Point> points;
  ItemIds ids;
  uint64_t flushes = 0;
  const auto mark = [&] { points.push_back({get_file(bench.dir / "news.journal").size(), ids, flushes}); };
  const auto flushed = [&] {
    ids.flushed.insert(ids.flushed.end(), ids.waiting.begin(), ids.waiting.end());
    ids.waiting.clear();
    ++flushes;
  };
  mark();
  for (int i = 0; i < 11; ++i) {
    const auto answer =
        bench.put("text " + std::to_string(i), i % 3 == 0 ? "key " + std::to_string(i) : "", {{"id", i}});
    ids.waiting.push_back(i);
    if (answer.status == 200) flushed();
    mark();
    if (i == 6) {
      bench.queue->flush_and_apply({{"items", {{{"text", "given"}, {"item", {{"id", 100}}}}}}}, "flush");
      ids.waiting.push_back(100);
      flushed();
      mark();
    }
    if (i == 9) {
      bench.queue->acknowledge(1);
      ids.flushed.erase(ids.flushed.begin(), ids.flushed.begin() + 4);
      mark();
    }
  }
  ASSERT_EQ(flushes, 3u);
  ASSERT_EQ(ids, (ItemIds{{4, 5, 6, 100, 7, 8, 9, 10}, {}}));
  const std::string whole = get_file(bench.dir / "news.journal");
  size_t at = 0;
  for (size_t cut = points[0].bytes; cut <= whole.size(); ++cut) {
    while (at + 1 < points.size() && points[at + 1].bytes <= cut) ++at;
    const std::string bytes = whole.substr(0, cut);
    const auto content = QueueJournal::read(bytes);
    ASSERT_TRUE(content.damage.empty()) << cut;
    const QueueState state = replay_queue({content.records.begin(), content.records.end()}, {}, 0);
    ASSERT_EQ(ids_in(state), points[at].ids) << cut;
    ASSERT_EQ(state.next_flush, points[at].last_flush + 1) << cut;
    if (cut % 41 != 0 && cut != points[at].bytes) continue;
    // Opened from the file: the same items, and a working queue.
    put_file(bench.dir / "cut.journal", bytes);
    Queue queue(bench.rules_, bench.dir / "cut.journal", bench.scorer, bench.clock());
    ASSERT_EQ(queue.damage(), "") << cut;
    const QueueAnswer rest = queue.flush_and_apply({{"items", {{{"text", "new"}, {"item", {{"id", 200}}}}}}}, "");
    std::vector<int> waited;
    for (const QueueJson& item : rest.body["items"]) waited.push_back(item["id"].get<int>());
    std::vector<int> expected = points[at].ids.waiting;
    expected.push_back(200);
    ASSERT_EQ(waited, expected) << cut;
    ASSERT_EQ(rest.body["flush_id"], points[at].last_flush + 1) << cut;
  }
}

// A child queues and flushes with keys and reports each response; it is killed at a random moment.
int run_child(const std::filesystem::path& file, int from, int report) {
  LengthScorer scorer;
  Queue queue({.name = "news", .flush_size = 4}, file, scorer, fixed_clock(1000));
  for (int i = from;; ++i) {
    const std::string text = "text " + std::to_string(i);
    queue.score_or_queue({{"text", text}, {"item", {{"id", i}}}}, "key " + std::to_string(i));
    if (::write(report, &i, sizeof i) != sizeof i) return 1;
  }
}

TEST(Queue, KillLosesOrRepeatsNothingAcknowledged) {
  const TempDir dir;
  std::mt19937 random(7);
  int acknowledged = -1;
  for (int round = 0; round < 60; ++round) {
    int pipe_ends[2];
    ASSERT_EQ(::pipe(pipe_ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(pipe_ends[0]);
      // Repeat the item whose response may have been lost, with the same key.
      ::_exit(run_child(dir / "news.journal", acknowledged + 1, pipe_ends[1]));
    }
    ::close(pipe_ends[1]);
    ::usleep(random() % 8000);
    ::kill(child, SIGKILL);
    int last = 0, status = 0;
    while (::read(pipe_ends[0], &last, sizeof last) == sizeof last) acknowledged = last;
    ::close(pipe_ends[0]);
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child was not killed: " << status;
  }
  LengthScorer scorer;
  Queue queue({.name = "news", .flush_size = 4}, dir / "news.journal", scorer, fixed_clock(1000));
  std::vector<int> ids;
  for (uint64_t id = 1; const auto flush = queue.flush(id); ++id)
    for (const QueueJson& item : flush->at("items")) ids.push_back(item["id"].get<int>());
  const QueueAnswer rest = queue.flush_and_apply(QueueJson::object(), "");
  for (const QueueJson& item : rest.body["items"]) ids.push_back(item["id"].get<int>());
  ASSERT_GE(static_cast<int>(ids.size()), acknowledged + 1);
  for (int i = 0; i < static_cast<int>(ids.size()); ++i) ASSERT_EQ(ids[static_cast<size_t>(i)], i) << "in order, once";
}

}  // namespace
}  // namespace brim::serve
