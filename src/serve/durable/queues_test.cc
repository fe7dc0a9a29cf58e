// SPDX-License-Identifier: Apache-2.0
#include "serve/durable/queues.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <set>
#include <thread>

#include "base/test_syscalls.h"
#include "serve/durable/queue_testing.h"

namespace brim::serve {
namespace {

TEST(Queue, KeepsLabelsAfterRestart) {
  QueueBench bench({.flush_size = 5});
  const QueueJson request = {
      {"text", "aa"}, {"item", {{"id", "1"}}}, {"candidate_labels", {"x", "y"}}, {"hypothesis_template", "It is {}."}};
  EXPECT_EQ(bench.queue->score_or_queue(request, "").status, 202);
  bench.open();
  const QueueJson items = {{{"text", "aa"}, {"item", {{"id", "1"}}}}};
  EXPECT_EQ(bench.queue->flush_and_apply({{"items", items}}, "").body["items"].size(), 1u) << "it was waiting";
  EXPECT_EQ(bench.scorer.labels,
            (std::vector<std::string>{R"({"labels":["x","y"],"template":"It is {}.","multi_label":false})"}));
  // The stored result counts for the same labels only.
  QueueJson again = {{"items", items}, {"candidate_labels", "x,y"}, {"hypothesis_template", "It is {}."}};
  bench.queue->flush_and_apply(again, "");
  EXPECT_EQ(bench.scorer.labels.size(), 1u);
  again["candidate_labels"] = "x,z";
  bench.queue->flush_and_apply(again, "");
  EXPECT_EQ(bench.scorer.labels.size(), 2u);
  for (const QueueJson& bad : {QueueJson({"x", "x"}), QueueJson({1}), QueueJson::array()}) {
    again["candidate_labels"] = bad;
    EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { bench.queue->flush_and_apply(again, ""); }), "label");
  }
}

// tests/data/formats_0.1/README.md
TEST(Queue, ContinuesAJournalOfAnEarlierVersion) {
  QueueBench bench({.flush_size = 3});
  bench.queue.reset();
  std::filesystem::copy_file(std::filesystem::path(BRIM_SOURCE_DIR) / "tests/data/formats_0.1/server/news.journal",
                             bench.dir / "news.journal", std::filesystem::copy_options::overwrite_existing);
  bench.now = 1'002'000;
  bench.open();
  EXPECT_EQ(bench.queue->size(), 2u);
  const QueueJson items = QueueJson::parse(
      R"([{"z":1,"id":"x","sentiment_score":0.02,"sentiment_label":"positive","sentiment_confidence":0.5,"model":"small","reason":"default"},)"
      R"({"sentiment_error":"not a text"},)"
      R"({"n":3,"sentiment_score":0.03,"sentiment_label":"negative","sentiment_confidence":0.5,"model":"large","reason":"source"}])");
  EXPECT_EQ(bench.queue->flush(1)->at("items"), items);
  const QueueJson request = {{"text", "ccc"}, {"item", {{"n", 3}}}, {"source", "sec"}};
  EXPECT_EQ(bench.queue->score_or_queue(request, "key-1").body["items"], items) << "answered under this key before";
  EXPECT_TRUE(bench.scorer.seen.empty());
  const QueueJson flushed = bench.queue->flush_and_apply(QueueJson::object(), "").body["items"];
  EXPECT_EQ(bench.scorer.seen, (std::vector<std::string>{"waits", "Größe"}));
  ASSERT_EQ(flushed.size(), 2u);
  EXPECT_EQ(flushed[0]["id"], 7);
  EXPECT_EQ(flushed[1]["id"], "8");
}

TEST(Queue, FlushesWhenBatchIsFull) {
  QueueBench bench({.flush_size = 3, .flush_age_ms = 2000});
  const QueueAnswer first = bench.put("aa", "", {{"z", 1}, {"id", "x"}});
  EXPECT_EQ(first.status, 202);
  EXPECT_EQ(text_of(first.body), R"({"status":"queued","queued":1,"flush_in_ms":2000})");
  bench.now += 500;
  EXPECT_EQ(text_of(bench.put("bad one").body), R"({"status":"queued","queued":2,"flush_in_ms":1500})");
  EXPECT_EQ(bench.queue->due_ms(), 1'002'000);
  const QueueAnswer third = bench.queue->score_or_queue({{"text", "ccc"}, {"item", {{"n", 3}}}, {"source", "sec"}}, "");
  EXPECT_EQ(third.status, 200);
  EXPECT_EQ(
      text_of(third.body),
      R"({"status":"scored","flush_id":1,"items":[)"
      R"({"z":1,"id":"x","sentiment_score":0.02,"sentiment_label":"positive","sentiment_confidence":0.5,"model":"small","reason":"default"},)"
      R"({"sentiment_error":"not a text"},)"
      R"({"n":3,"sentiment_score":0.03,"sentiment_label":"negative","sentiment_confidence":0.5,"model":"large","reason":"source"}]})");
  EXPECT_EQ(bench.queue->size(), 0u);
  EXPECT_EQ(bench.queue->due_ms(), std::nullopt);
  EXPECT_EQ(bench.queue->flush(1)->at("items"), third.body["items"]);
}

TEST(Queue, ReadsSourceNextToTextThenInItemThenOfRequest) {
  QueueBench bench({.immediate = true});
  const QueueAnswer answer = bench.queue->score_or_queue(QueueJson::parse(R"({"source":"reuters","items":[
      {"text":"a","item":{"source":"sec"}},
      {"text":"b","item":{"source":"reuters"},"source":"sec"},
      {"text":"c","item":{"source":""}},
      {"text":"d","item":{"n":1}}]})"),
                                                         "");
  const QueueJson& items = answer.body["items"];
  EXPECT_FALSE(items[0].contains("instead_of")) << "the item's source precedes the request's";
  EXPECT_FALSE(items[1].contains("instead_of"));
  EXPECT_EQ(items[2]["instead_of"], "largest");
  EXPECT_EQ(items[3]["instead_of"], "largest");
  const auto reason = [&](const char* request) {
    return bench.queue->score_or_queue(QueueJson::parse(request), "").body["items"][0]["reason"];
  };
  EXPECT_EQ(reason(R"({"text":"e","item":{"source":"blog"}})"), "source");
  EXPECT_EQ(reason(R"({"text":"f","item":{"source":7}})"), "default") << "not a string";
  const QueueJson flushed =
      bench.queue->flush_and_apply(QueueJson::parse(R"({"items":[{"text":"g","source":"blog"}]})"), "").body;
  EXPECT_EQ(flushed["items"][0]["reason"], "source") << "an item without a wrapper";
}

TEST(Queue, ItemsReportReplacedModel) {
  QueueBench bench;
  const auto flushed = [&](const QueueJson& item, const char* source) {
    return bench.queue->flush_and_apply({{"items", {{{"text", "a"}, {"item", item}, {"source", source}}}}}, "")
        .body["items"][0];
  };
  EXPECT_EQ(bench.queue->score_or_queue(QueueJson::parse(R"({"items":[{"text":"ab"},{"text":"bad"}]})"), "").status,
            202);
  const QueueJson both = bench.queue->flush_and_apply(QueueJson::object(), "").body["items"];
  EXPECT_EQ(both[0]["text"], "ab") << "queued without an item";
  EXPECT_EQ(both[0]["sentiment_score"].dump(), "0.02");
  EXPECT_EQ(both[1]["text"], "bad");
  const QueueJson item = flushed({{"id", 1}}, "reuters");
  EXPECT_EQ(item["reason"], "source");
  EXPECT_EQ(item["instead_of"], "largest");
  EXPECT_FALSE(flushed({{"id", 2}, {"instead_of", "largest"}}, "sec").contains("instead_of"))
      << "the field was from an earlier scoring";
  bench.open();
  EXPECT_EQ(flushed({{"id", 1}}, "reuters"), item) << "it is in the journal";
}

TEST(Queue, FlushAndApplyScoresWaitingAndGivenItemsOnce) {
  QueueBench bench;
  bench.put("first", "", {{"id", 1}});
  bench.put("second", "", {{"title", "no id"}});
  bench.put("third", "", {{"id", "3"}, {"text", "third"}});
  const QueueJson given = {{"items",
                            {{{"id", 1}, {"since", "changed"}},                     // waiting, matched by id
                             {{"text", "new"}, {"item", {{"id", 9}}}},              // not waiting
                             {{"text", "second"}, {"item", {{"title", "no id"}}}},  // waiting, matched by text and item
                             {{"id", "3"}, {"text", "third"}},                      // waiting, matched as an item
                             {{"id", 10}},                                          // nothing to score
                             {{"text", "second"}, {"item", {{"title", "another"}}}}}}};  // different item
  const QueueAnswer answer = bench.queue->flush_and_apply(given, "");
  EXPECT_EQ(bench.scorer.seen, (std::vector<std::string>{"first", "second", "third", "new", "second"}));
  ASSERT_EQ(answer.body["items"].size(), 6u);
  EXPECT_EQ(answer.body["items"][0]["id"], 1);
  EXPECT_EQ(answer.body["items"][3]["id"], 9);
  EXPECT_HAS(answer.body["items"][4]["sentiment_error"].get<std::string>(), "missing `text`");
  EXPECT_FALSE(answer.body["items"][4].contains("sentiment_score"));
  EXPECT_EQ(answer.body["items"][5]["title"], "another");

  // The same items with scores are not scored again, unless the text changed.
  bench.scorer.seen.clear();
  const QueueAnswer again = bench.queue->flush_and_apply(
      {{"items",
        {answer.body["items"][0], {{"text", "new"}, {"item", {{"id", 9}}}}, {{"text", "old"}, {"item", {{"id", 9}}}}}}},
      "");
  EXPECT_EQ(bench.scorer.seen, std::vector<std::string>{"old"});
  EXPECT_EQ(again.body["items"][0], answer.body["items"][0]);
  EXPECT_EQ(again.body["items"][1], answer.body["items"][3]);

  EXPECT_EQ(text_of(bench.queue->flush_and_apply(QueueJson::object(), "").body), R"({"flush_id":null,"items":[]})");
}

TEST(Queue, RepeatsResponseForKeyAfterRestart) {
  QueueBench bench({.flush_size = 2});
  const QueueAnswer queued = bench.put("a", "k1");
  EXPECT_EQ(text_of(bench.put("a", "k1").body), text_of(queued.body));
  EXPECT_EQ(bench.queue->size(), 1u);
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { bench.put("b", "k1"); }), "another request");
  const QueueAnswer scored = bench.put("b", "k2");
  EXPECT_EQ(scored.status, 200);
  const QueueAnswer empty = bench.queue->flush_and_apply(QueueJson::object(), "k3");
  bench.put("c");
  const QueueAnswer flushed = bench.queue->flush_and_apply({{"items", {{{"id", 5}}}}}, "k4");
  EXPECT_EQ(flushed.body["items"].size(), 2u);
  for (int restart = 0; restart < 2; ++restart) {
    EXPECT_EQ(text_of(bench.put("b", "k2").body), text_of(scored.body));
    EXPECT_EQ(bench.put("a", "k1").status, 202);
    EXPECT_EQ(text_of(bench.queue->flush_and_apply(QueueJson::object(), "k3").body), text_of(empty.body));
    EXPECT_EQ(text_of(bench.queue->flush_and_apply({{"items", {{{"id", 5}}}}}, "k4").body), text_of(flushed.body));
    bench.open();
  }
  EXPECT_EQ(bench.scorer.seen, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_TRUE(bench.queue->acknowledge(1));
  EXPECT_FALSE(bench.queue->acknowledge(1));
  EXPECT_EQ(bench.put("b", "k2").body["acknowledged"], true) << "not scored again";
}

TEST(Queue, KeepsFlushesByAgeUntilAcknowledged) {
  QueueBench bench({.flush_age_ms = 1000});
  bench.put("a");
  EXPECT_FALSE(bench.queue->flush_by_age());
  bench.now += 999;
  EXPECT_FALSE(bench.queue->flush_by_age());
  bench.now += 1;
  EXPECT_TRUE(bench.queue->flush_by_age());
  bench.open();
  EXPECT_EQ(text_of(bench.queue->flushes(0)),
            R"({"flushes":[{"flush_id":1,"done_ms":1001000,"items":1,"delivered":false}]})");
  EXPECT_EQ(bench.queue->flushes(1)["flushes"].size(), 0u);
  EXPECT_EQ(bench.queue->describe()["unseen_flushes"], 1);
  EXPECT_EQ(bench.queue->flush(1)->at("items")[0]["model"], "small");
  EXPECT_TRUE(bench.queue->acknowledge(1));
  bench.open();
  EXPECT_FALSE(bench.queue->flush(1));
  EXPECT_EQ(bench.queue->describe()["last_flush_id"], 1) << "numbers are not used again";
}

TEST(Queue, KeepsItemsThatCannotBeScored) {
  QueueBench bench({.flush_size = 2, .flush_age_ms = 100});
  bench.put("a");
  bench.scorer.broken = true;
  EXPECT_HAS(error_of(ErrorCode::device_lost, [&] { bench.put("b"); }), "gone");
  EXPECT_EQ(bench.queue->size(), 1u) << "the rejected item is not stored";
  bench.now += 200;
  error_of(ErrorCode::device_lost, [&] { bench.queue->flush_by_age(); });
  EXPECT_HAS(bench.queue->fault(), "cannot flush queue");
  EXPECT_FALSE(bench.queue->flush_by_age()) << "a little later";
  bench.scorer.broken = false;
  bench.now += 5000;
  EXPECT_TRUE(bench.queue->flush_by_age());
  EXPECT_EQ(bench.queue->fault(), "");
}

TEST(Queue, AppliesImmediateSourcesAndTokenLimits) {
  QueueBench immediate({.immediate = true});
  EXPECT_EQ(immediate.put("a").status, 200);
  QueueBench tokens({.flush_tokens = 30});
  EXPECT_EQ(tokens.put(std::string(40, 'x')).status, 202);
  EXPECT_EQ(tokens.put(std::string(80, 'x')).body["items"].size(), 2u);
}

// Items are not scored, but a flush is one record and one response.
TEST(Queue, BoundsSizeOfItems) {
  QueueBench bench({.flush_size = 100});
  const QueueJson large = {{"id", 1}, {"b", std::string(33 << 20, 'x')}};
  EXPECT_EQ(bench.put("a", "", large).status, 202);
  const QueueAnswer second = bench.put("b", "", {{"id", 2}, {"b", std::string(33 << 20, 'y')}});
  EXPECT_EQ(second.status, 200) << "both are flushed";
  EXPECT_EQ(second.body["items"].size(), 2u);
  const auto again = [&](size_t times) {
    QueueJson given = {{"items", QueueJson::array()}};
    for (size_t i = 0; i < times; ++i) given["items"].push_back({{"id", 1}});
    return bench.queue->flush_and_apply(given, "");
  };
  EXPECT_EQ(again(1).body["items"][0]["sentiment_label"], "negative");
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { again(2); }), "exceed");
  EXPECT_EQ(bench.put("c").status, 202) << "continues to accept items";
}

TEST(Queue, RejectsInvalidRequests) {
  QueueBench bench;
  const auto refusal = [&](const char* json) {
    return error_of(ErrorCode::bad_data, [&] { bench.queue->score_or_queue(QueueJson::parse(json), ""); });
  };
  EXPECT_HAS(refusal("[]"), "must be an object");
  EXPECT_HAS(refusal("{}"), "`text` must be a string");
  EXPECT_HAS(refusal(R"({"text":3})"), "`text` must be a string");
  EXPECT_HAS(refusal(R"({"text":"a","item":[]})"), "`item` must be an object");
  EXPECT_HAS(refusal(R"({"items":{}})"), "`items` must be a list");
  EXPECT_HAS(refusal(R"({"items":[]})"), "cannot be empty");
  EXPECT_HAS(refusal(R"({"items":[3]})"), "must be an object");
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { bench.put("a", std::string(257, 'k')); }), "256");
  EXPECT_EQ(bench.queue->size(), 0u);
}

TEST(Queue, IsReadOnlyWhileDiskIsFull) {
  QueueBench bench({.flush_size = 1000});
  bench.put("kept", "k");
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{64 << 10, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string full = error_of(ErrorCode::cannot_write, [&] { bench.put(std::string(100 << 10, 'x'), "big"); });
  const std::string after = error_of(ErrorCode::cannot_write, [&] { bench.put("small"); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_HAS(full, "queue news is read-only");
  EXPECT_HAS(after, "queue news is read-only");
  EXPECT_HAS(bench.queue->fault(), "read-only");
  EXPECT_EQ(bench.queue->describe()["read_only"], true);
  error_of(ErrorCode::cannot_write, [&] { bench.put("too early"); });
  bench.now += 5000;
  EXPECT_EQ(bench.put(std::string(100 << 10, 'x'), "big").status, 202) << "its key was never answered";
  EXPECT_EQ(bench.queue->fault(), "");
  EXPECT_EQ(bench.queue->flush_and_apply(QueueJson::object(), "").body["items"].size(), 2u);
}

TEST(Queue, CompactsJournal) {
  QueueBench bench({.flush_size = 2});
  const std::string text(2000, 'x');
  for (int i = 0; i < 600; ++i) {
    bench.put(text, "", {{"id", i}});
    if (i % 2 == 1) bench.queue->acknowledge(static_cast<uint64_t>(i) / 2 + 1);
  }
  EXPECT_LT(get_file(bench.dir / "news.journal").size(), (size_t{1} << 20) + 20'000);
  bench.put("last");
  bench.open();
  EXPECT_EQ(bench.queue->size(), 1u);
  EXPECT_EQ(bench.queue->describe()["last_flush_id"], 300);
}

// A symlink in its place allows writing the new journal but not opening it.
TEST(Queue, RetriesCompactionThatCannotReopen) {
  QueueBench bench({.flush_size = 2});
  bench.put(std::string(1 << 20, 'x'));
  const auto journal = bench.dir / "news.journal", behind = bench.dir / "behind";
  std::filesystem::rename(journal, behind);
  std::filesystem::create_symlink(behind, journal);
  EXPECT_EQ(bench.put("b", "k").status, 200) << "its records were written before";
  EXPECT_HAS(bench.queue->fault(), "queue news is read-only");
  EXPECT_HAS(error_of(ErrorCode::cannot_write, [&] { bench.put("c"); }), "queue news is read-only");
  std::filesystem::rename(behind, journal);
  bench.now += 5000;
  EXPECT_EQ(bench.put("c").status, 202);
  EXPECT_EQ(bench.queue->fault(), "");
  EXPECT_EQ(bench.put("b", "k").body["items"].size(), 2u);
  bench.open();
  EXPECT_EQ(bench.queue->size(), 1u);
}

TEST(Queue, ResultsAreReadableAfterSync) {
  QueueBench bench({.flush_size = 2});
  bench.put("a");
  std::vector<std::string> early;
  {
    SyscallLog log;
    log.before_sync([&](const std::string&) {
      early.push_back(bench.queue->flush(1) ? "readable" : "hidden");
      early.push_back(text_of(bench.queue->flushes(0)));
      early.push_back(text_of(bench.queue->describe()["last_flush_id"]));
      early.push_back(bench.queue->acknowledge(1) ? "acknowledged" : "unknown");
    });
    EXPECT_EQ(bench.put("b").status, 200);
  }
  EXPECT_EQ(early, (std::vector<std::string>{"hidden", R"({"flushes":[]})", "null", "unknown"}));
  EXPECT_TRUE(bench.queue->flush(1));
  EXPECT_EQ(bench.queue->flushes(0)["flushes"].size(), 1u);
  EXPECT_EQ(bench.queue->describe()["last_flush_id"], 1);
}

TEST(Queue, FlushAgeIgnoresClockSetBack) {
  QueueBench bench({.flush_age_ms = 2000});
  bench.put("a");
  bench.set_clock(-600'000);
  bench.now += 500;
  EXPECT_EQ(bench.put("b").body["flush_in_ms"], 1500);
  EXPECT_EQ(bench.queue->describe()["oldest_ms"], 500);
  EXPECT_FALSE(bench.queue->flush_by_age());
  bench.now += 1500;
  EXPECT_TRUE(bench.queue->flush_by_age());
  EXPECT_EQ(bench.queue->size(), 0u);
  bench.put("c");
  bench.now += 2000;
  EXPECT_TRUE(bench.queue->flush_by_age()) << "later items do not wait longer either";
}

TEST(Queue, FlushAgeIgnoresClockSetForward) {
  QueueBench bench({.flush_age_ms = 2000});
  bench.put("a");
  bench.set_clock(3'600'000);
  EXPECT_FALSE(bench.queue->flush_by_age());
  bench.now += 2000;
  EXPECT_TRUE(bench.queue->flush_by_age());
}

TEST(Queue, TreatsFutureItemsAsNewAfterRestart) {
  QueueBench bench({.flush_age_ms = 2000});
  bench.put("a");
  bench.set_clock(-600'000);
  bench.open();
  EXPECT_EQ(bench.queue->describe()["oldest_ms"], 0);
  bench.now += 2000;
  EXPECT_TRUE(bench.queue->flush_by_age());
  bench.put("b");
  bench.now += 1999;
  bench.open();
  EXPECT_FALSE(bench.queue->flush_by_age()) << "age before the restart counts";
  bench.now += 1;
  EXPECT_TRUE(bench.queue->flush_by_age());
}

TEST(Queue, RetriesIgnoreClockSetBack) {
  QueueBench bench({.flush_age_ms = 100});
  bench.put("a");
  bench.scorer.broken = true;
  bench.now += 100;
  error_of(ErrorCode::device_lost, [&] { bench.queue->flush_by_age(); });
  bench.scorer.broken = false;
  bench.set_clock(-600'000);
  bench.now += 5000;
  EXPECT_TRUE(bench.queue->flush_by_age());
}

// A call may hold the queue for long, as for a journal rewrite; health must not wait for it.
TEST(Queue, ReportsStateDuringCall) {
  const TempDir dir;
  LengthScorer scorer;
  std::unique_ptr<Queue> queue;
  std::vector<size_t> looks;
  const auto look = [&] {
    if (queue) {
      EXPECT_EQ(queue->fault(), "");
      looks.push_back(queue->size());
    }
    return int64_t{1'000'000};
  };
  queue = std::make_unique<Queue>(QueueRules{.name = "news"}, dir / "news.journal", scorer, Queue::Clock{look, look});
  queue->score_or_queue({{"text", "a"}}, "");
  queue->score_or_queue({{"text", "b"}}, "");
  ASSERT_FALSE(looks.empty());
  EXPECT_EQ(looks.front(), 0u);
  EXPECT_EQ(std::set<size_t>(looks.begin(), looks.end()), (std::set<size_t>{0, 1})) << "as of the last change";
  EXPECT_EQ(queue->size(), 2u);
}

TEST(Queue, SupportsConcurrentCalls) {
  QueueBench bench({.flush_size = 7});
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::vector<int> scored;
  const auto collect = [&](const QueueJson& body) {
    if (!body.contains("items")) return;
    const std::lock_guard lock(mutex);
    for (const QueueJson& item : body["items"]) scored.push_back(item["id"].get<int>());
  };
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 40; ++i) {
        const int id = t * 1000 + i;
        const auto answer = bench.put("x", "key " + std::to_string(id), {{"id", id}});
        const auto again = bench.put("x", "key " + std::to_string(id), {{"id", id}});
        EXPECT_EQ(answer.body, again.body);
        collect(answer.body);
        if (i % 16 == 0) collect(bench.queue->flush_and_apply(QueueJson::object(), "").body);
        bench.queue->describe();
      }
    });
  for (std::thread& thread : threads) thread.join();
  collect(bench.queue->flush_and_apply(QueueJson::object(), "").body);
  std::sort(scored.begin(), scored.end());
  std::vector<int> expected;
  for (int t = 0; t < 4; ++t)
    for (int i = 0; i < 40; ++i) expected.push_back(t * 1000 + i);
  EXPECT_EQ(scored, expected);
  EXPECT_EQ(bench.scorer.seen.size(), expected.size());
}

TEST(Queues, DamagedJournalDoesNotAffectOthers) {
  const TempDir dir;
  LengthScorer scorer;
  const StateDir state(dir / "state");
  EXPECT_HAS(error_of(ErrorCode::cannot_write, [&] { StateDir again(dir / "state"); }), "another server");
  put_file(dir / "state/queues/bad.journal", QueueJournal::frame(R"({"record":"start","version":9})"));
  int64_t now = 0;
  Queues queues(state, {{.name = "bad"}, {.name = "good", .flush_age_ms = 10}}, scorer,
                {[&] { return now; }, [&] { return now; }});
  EXPECT_EQ(queues.find("bad"), nullptr);
  ASSERT_EQ(queues.names(), std::vector<std::string>{"good"});
  ASSERT_EQ(queues.faults().size(), 1u);
  EXPECT_HAS(queues.faults()[0], "version 9");
  queues.find("good")->score_or_queue({{"text", "a"}}, "");
  EXPECT_EQ(queues.due_ms(), 10);
  scorer.broken = true;
  now = 10;
  queues.flush_by_age();
  EXPECT_EQ(queues.faults().size(), 2u);
  scorer.broken = false;
  now = 6000;
  queues.flush_by_age();
  EXPECT_EQ(queues.faults().size(), 1u);
  EXPECT_EQ(queues.find("good")->size(), 0u);
}

}  // namespace
}  // namespace brim::serve
