// SPDX-License-Identifier: Apache-2.0
// Queues with damaged journals: no other record is lost, ids are not reused, and repair keeps the original.
#include "serve/durable/queue_repair.h"

#include <sys/stat.h>
#include <unistd.h>

#include <set>

#include "base/test_files.h"
#include "serve/durable/queues.h"

namespace brim::serve {
namespace {

namespace fs = std::filesystem;

class PlainScorer : public QueueScorer {
 public:
  std::vector<QueueScore> score(const QueueRules&, std::span<const QueueItem> items) override {
    return std::vector<QueueScore>(items.size(), QueueScore{.label = "neutral", .model = "plain"});
  }
};

struct RepairBench {
  explicit RepairBench(int64_t flush_size) : rules{.name = "news", .flush_size = flush_size} { open(); }
  void open() {
    queues.reset();
    state.reset();
    state.emplace(dir / "state");
    queues.emplace(*state, std::vector{rules}, scorer, Queue::Clock{[this] { return now; }, [this] { return now; }});
  }
  void close() {
    queues.reset();
    state.reset();
  }
  Queue& queue() { return *queues->find("news"); }
  QueueAnswer put(int id) {
    return queue().score_or_queue({{"text", "text " + std::to_string(id)}, {"item", {{"id", id}}}}, "");
  }
  void flip(size_t at) {
    std::string bytes = get_file(file);
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    put_file(file, bytes);
  }
  // Offset of the payload of the record at `index`.
  size_t payload_at(size_t index) {
    const std::string bytes = get_file(file);
    const auto records = QueueJournal::read(bytes).records;
    return static_cast<size_t>(records.at(index).data() - bytes.data());
  }

  TempDir dir;
  fs::path file = dir / "state/queues/news.journal";
  PlainScorer scorer;
  int64_t now = 1'000'000'000;
  QueueRules rules;
  std::optional<StateDir> state;
  std::optional<Queues> queues;
};

// Records of a queue that is filled, flushed in several ways, and filled again.
std::vector<QueueJson> some_records() {
  QueueState state;
  std::vector<QueueJson> records;
  const auto add = [&](QueueJson record) {
    state.apply(record);
    records.push_back(std::move(record));
  };
  const auto items = [](std::initializer_list<int> ids) {
    std::vector<QueueItem> made;
    for (const int id : ids) made.push_back({"t" + std::to_string(id), id % 2 == 0 ? "s" : "", {{"id", id}}});
    return made;
  };
  const auto flush = [&](size_t taken, std::initializer_list<int> ids, const UsedKey* key) {
    Flush made{5000, false, items(ids), {}};
    for (const QueueItem& item : made.items) made.results.push_back(item.item);
    add(flush_record(taken, made, key, {{"flush_id", state.next_flush}}, state.next_flush));
  };
  const UsedKey key{"k", 7};
  add(start_record("news", state));
  add(add_record(items({1}), 1000, nullptr, {}, state.next_flush));
  add(add_record(items({2, 3}), 1000, &key, {{"status", "queued"}}, state.next_flush));
  flush(3, {1, 2, 3}, nullptr);
  add(add_record(items({4}), 2000, nullptr, {}, state.next_flush));
  add(add_record(items({5}), 2000, nullptr, {}, state.next_flush));
  flush(1, {4, 6}, &key);
  flush(1, {5}, nullptr);
  add(add_record(items({7}), 3000, nullptr, {}, state.next_flush));
  add(add_record(items({8}), 3000, nullptr, {}, state.next_flush));
  return records;
}

// Format of versions without ids in records.
std::vector<QueueJson> older(std::vector<QueueJson> records) {
  for (QueueJson& record : records)
    if (record["record"] != "start") {
      record.erase("id");
      record.erase("next_flush");
    }
  return records;
}

QueueState replay(const std::string& bytes) {
  const auto content = QueueJournal::read(bytes);
  return replay_queue({content.records.begin(), content.records.end()}, content.damage, 9'000'000'000);
}

std::string framed(const std::vector<QueueJson>& records) {
  std::string bytes;
  for (const QueueJson& record : records) bytes += QueueJournal::frame(text_of(record));
  return bytes;
}

void add_ids(const QueueJson& items, std::set<int>& ids) {
  for (const QueueJson& json : items) ids.insert(json.at("item").at("id").get<int>());
}

// Flips each bit of the journal and checks all items and results of the other records.
void flip_every_bit(const std::vector<QueueJson>& records, bool exact_ids) {
  const std::string bytes = framed(records);
  const QueueState whole = replay(bytes);
  ASSERT_EQ(whole.next_flush, 4u);
  std::vector<size_t> ends;
  for (const QueueJson& record : records)
    ends.push_back((ends.empty() ? 0 : ends.back()) + QueueJournal::frame(text_of(record)).size());
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string bent = bytes;
    bent[bit / 8] = static_cast<char>(bent[bit / 8] ^ (1 << bit % 8));
    const size_t hit = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), bit / 8) - ends.begin());
    std::set<int> added, flushed, found;
    size_t flushes = 0;
    for (size_t i = 0; i < records.size(); ++i) {
      if (i == hit || records[i]["record"] == "start") continue;
      add_ids(records[i]["items"], records[i]["record"] == "add" ? added : flushed);
      if (records[i]["record"] == "flush") ++flushes;
    }
    const QueueState state = replay(bent);
    ASSERT_GE(state.next_flush, whole.next_flush) << bit << ": an id would be used twice";
    ASSERT_GE(state.flushes.size(), flushes) << bit;
    for (const auto& [id, flush] : state.flushes) {
      for (const QueueItem& item : flush.items) found.insert(item.item["id"].get<int>());
      if (exact_ids) {
        ASSERT_EQ(flush.results, whole.flushes.at(id).results) << bit;
      }
    }
    ASSERT_TRUE(std::ranges::includes(found, flushed)) << bit;
    for (const WaitingItem& item : state.waiting) {
      const int id = item.item["id"].get<int>();
      ASSERT_FALSE(flushed.contains(id)) << bit << ": " << id << " would be scored twice";
      found.insert(id);
    }
    ASSERT_TRUE(std::ranges::includes(found, added)) << bit;
  }
}

TEST(QueueRepair, FlippedBitLosesNoOtherRecord) { flip_every_bit(some_records(), true); }

TEST(QueueRepair, FlippedBitInOldJournalLosesNoOtherRecord) { flip_every_bit(older(some_records()), false); }

TEST(QueueRepair, ReadsOldJournals) {
  const auto text = [](const QueueState& state) {
    std::string all;
    for (const QueueJson& record : state.snapshot(5000, "news")) all += text_of(record) + "\n";
    return all;
  };
  EXPECT_EQ(text(replay(framed(older(some_records())))), text(replay(framed(some_records()))));
}

TEST(QueueRepair, FlippedBitLosesOneOfFortyItems) {
  RepairBench bench(100);
  for (int id = 0; id < 40; ++id) ASSERT_EQ(bench.put(id).status, 202);
  bench.close();
  bench.flip(bench.payload_at(6) + 30);
  for (int restart = 0; restart < 2; ++restart) {
    bench.open();
    EXPECT_EQ(bench.queue().size(), 39u);
    ASSERT_EQ(bench.queues->faults().size(), 1u) << "also after a restart";
    EXPECT_HAS(bench.queues->faults()[0], "queue news: 1 damaged record");
  }
  EXPECT_FALSE(fs::exists(bench.file.string() + ".tail"));
  const QueueAnswer flushed = bench.queue().flush_and_apply(QueueJson::object(), "");
  ASSERT_EQ(flushed.body["items"].size(), 39u);
  for (int i = 0; i < 39; ++i) EXPECT_EQ(flushed.body["items"][static_cast<size_t>(i)]["id"], i < 5 ? i : i + 1);
}

TEST(QueueRepair, IdsContinueAfterDamagedFlush) {
  RepairBench bench(2);
  for (int id = 0; id < 6; ++id) bench.put(id);
  bench.close();
  bench.flip(bench.payload_at(6) + 20);  // start, add, flush, add, flush, add, flush
  bench.open();
  EXPECT_EQ(bench.queue().describe()["last_flush_id"], 3) << "the last record was cut off, but its id is not reused";
  EXPECT_HAS(bench.queues->faults().at(0), "1 damaged record");
  EXPECT_TRUE(fs::exists(bench.file.string() + ".tail"));
  bench.open();
  EXPECT_EQ(bench.queue().describe()["last_flush_id"], 3) << "also after the damage is repaired";
  EXPECT_TRUE(bench.queues->faults().empty());
  EXPECT_EQ(bench.queue().size(), 1u) << "its result is lost, so its item waits again";
  EXPECT_EQ(bench.put(6).body["flush_id"], 4);
}

TEST(QueueRepair, IdsContinueAfterDamagedStart) {
  RepairBench bench(2);
  for (int id = 0; id < 1400; ++id) {
    QueueJson item = {{"id", id}, {"more", std::string(1000, 'x')}};
    const auto answer = bench.queue().score_or_queue({{"text", "a"}, {"item", item}}, "");
    if (answer.status == 200) bench.queue().acknowledge(answer.body["flush_id"].get<uint64_t>());
  }
  bench.close();
  const auto content = get_file(bench.file);
  const auto records = QueueJournal::read(content).records;
  ASSERT_EQ(parse_record(std::string(records[1])).at("record"), "start") << "compacted: counters are stored twice";
  bench.flip(bench.payload_at(0) + 20);
  bench.open();
  EXPECT_EQ(bench.queue().describe()["last_flush_id"], 700);
}

TEST(QueueRepair, ReportsEmptyJournalAndDoesNotReuseIds) {
  RepairBench bench(1);
  for (int id = 0; id < 3; ++id) bench.put(id);
  bench.close();
  put_file(bench.file, "");
  bench.open();
  EXPECT_HAS(bench.queues->faults().at(0), "queue news: 1 damaged record");
  bench.open();
  EXPECT_TRUE(bench.queues->faults().empty());
  EXPECT_GT(bench.put(3).body["flush_id"].get<uint64_t>(), 3u);
}

TEST(QueueRepair, DryRunWritesNothing) {
  RepairBench bench(2);
  for (int id = 0; id < 7; ++id) bench.put(id);
  bench.close();
  bench.flip(bench.payload_at(1) + 40);
  const std::string before = get_file(bench.file);
  const auto reports = repair_queues(bench.dir / "state", false, bench.now);
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].journal.filename(), "news.journal");
  EXPECT_EQ(reports[0].records, 7u);
  EXPECT_EQ(count_damaged(reports[0].damage), 1u);
  EXPECT_EQ(reports[0].waiting, 1u);
  EXPECT_EQ(reports[0].flushes, 3u);
  EXPECT_EQ(reports[0].next_flush, 4u);
  EXPECT_TRUE(reports[0].kept.empty());
  EXPECT_EQ(get_file(bench.file), before);
  EXPECT_EQ(std::distance(fs::directory_iterator(bench.file.parent_path()), {}), 1);
}

TEST(QueueRepair, RepairsJournalAndKeepsOriginal) {
  RepairBench bench(2);
  for (int id = 0; id < 7; ++id) bench.put(id);
  bench.close();
  bench.flip(bench.payload_at(2) + 20);  // the first flush, whose item waits again
  const std::string before = get_file(bench.file);
  const auto reports = repair_queues(bench.dir / "state", true, bench.now);
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].kept, bench.file.string() + ".damaged");
  EXPECT_EQ(get_file(reports[0].kept), before);
  EXPECT_TRUE(repair_queues(bench.dir / "state", true, bench.now)[0].kept.empty()) << "nothing left to repair";
  bench.open();
  EXPECT_TRUE(bench.queues->faults().empty());
  EXPECT_EQ(bench.queue().describe()["last_flush_id"], 3);
  EXPECT_EQ(bench.queue().flushes(0)["flushes"].size(), 2u);
  EXPECT_EQ(bench.queue().size(), 2u);
  bench.close();
  bench.flip(bench.payload_at(3) + 20);
  EXPECT_EQ(repair_queues(bench.dir / "state", true, bench.now)[0].kept, bench.file.string() + ".damaged.2");
}

TEST(QueueRepair, RepairByRootKeepsTheOwnerAndTheMode) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  RepairBench bench(2);
  for (int id = 0; id < 3; ++id) bench.put(id);
  bench.close();
  bench.flip(bench.payload_at(1) + 20);
  ASSERT_EQ(::chmod(bench.file.c_str(), 0640), 0);
  ASSERT_EQ(::chown(bench.file.c_str(), 12345, 12346), 0);
  EXPECT_EQ(repair_queues(bench.dir / "state", true, bench.now)[0].problem, "");
  for (const fs::path& file : {fs::path(bench.file), fs::path(bench.file.string() + ".damaged")}) {
    struct stat info {};
    ASSERT_EQ(::stat(file.c_str(), &info), 0) << file;
    EXPECT_EQ(info.st_uid, 12345u) << file;
    EXPECT_EQ(info.st_gid, 12346u) << file;
    EXPECT_EQ(info.st_mode & 07777, 0640u) << file;
  }
}

TEST(QueueRepair, FailsWhileServerHoldsLock) {
  RepairBench bench(2);
  bench.put(1);
  for (const bool apply : {false, true}) {
    const std::string refusal =
        error_of(ErrorCode::cannot_write, [&] { repair_queues(bench.dir / "state", apply, bench.now); });
    EXPECT_HAS(refusal, "another server");
    EXPECT_HAS(refusal, "stop that server first");
  }
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { repair_queues(bench.dir / "none", true, bench.now); }),
             "no queues found");
  EXPECT_FALSE(fs::exists(bench.dir / "none"));
}

TEST(QueueRepair, ReportsAndKeepsJournalOfLaterVersion) {
  RepairBench bench(2);
  bench.close();
  const std::string later = QueueJournal::frame(R"({"record":"start","version":9})");
  put_file(bench.dir / "state/queues/later.journal", later);
  const auto reports = repair_queues(bench.dir / "state", true, bench.now);
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_HAS(reports[0].problem, "version 9");
  EXPECT_EQ(reports[1].problem, "");
  EXPECT_EQ(get_file(bench.dir / "state/queues/later.journal"), later);
}

}  // namespace
}  // namespace brim::serve
