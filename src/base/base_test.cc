// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <new>
#include <thread>

#include "base/bounded_queue.h"
#include "base/cache_file.h"
#include "base/error.h"
#include "base/escape.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/progress.h"
#include "base/test_files.h"
#include "base/thread_pool.h"
#include "base/timeline.h"
#include "base/units.h"
#include "base/utf8.h"

// Allocations made by the calling thread, for tests of code that must not allocate. noinline, because the compiler
// otherwise sees mismatched new and delete.
thread_local int64_t allocations_here = 0;
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations_here;
  if (void* data = std::malloc(bytes)) return data;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* data) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, size_t) noexcept { std::free(data); }

namespace brim {
namespace {

TEST(Log, SinkMayLog) {
  std::vector<std::string> logged;
  const LogSink before = set_log_sink([&](LogLevel level, std::string_view text) {
    logged.emplace_back(text);
    if (level == LogLevel::warning) log_info("after {}", text);
  });
  log_warning("first");
  set_log_sink(before);
  EXPECT_EQ(logged, (std::vector<std::string>{"first", "after first"}));
}

TEST(Error, SeparatesProblemAndRemedy) {
  const Error plain(ErrorCode::usage, "no such file");
  EXPECT_STREQ(plain.what(), "no such file");
  EXPECT_EQ(plain.remedy(), "");
  try {
    fail(ErrorCode::bad_data, Remedy{"set `long_text=truncate`"}, "the text has {} tokens", 900);
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "the text has 900 tokens; set `long_text=truncate`");
    EXPECT_EQ(error.problem(), "the text has 900 tokens");
    EXPECT_EQ(error.remedy(), "set `long_text=truncate`");
  }
}

TEST(Error, CopiesShareNoState) {
  const Error first(ErrorCode::busy, "too much is waiting");
  const Error second = first;
  EXPECT_STREQ(second.what(), first.what());
  EXPECT_NE(static_cast<const void*>(second.what()), static_cast<const void*>(first.what()));
}

TEST(Error, ExitCodesMatchTheDocumentation) {
  EXPECT_EQ(exit_code(ErrorCode::internal), 1);
  EXPECT_EQ(exit_code(ErrorCode::usage), 2);
  EXPECT_EQ(exit_code(ErrorCode::bad_data), 3);
  EXPECT_EQ(exit_code(ErrorCode::bad_model), 4);
  EXPECT_EQ(exit_code(ErrorCode::does_not_fit), 5);
  EXPECT_EQ(exit_code(ErrorCode::device_lost), 6);
  EXPECT_EQ(exit_code(ErrorCode::cannot_write), 7);
  EXPECT_EQ(exit_code(ErrorCode::diverged), 8);
  EXPECT_EQ(exit_code(ErrorCode::interrupted), 130);
}

TEST(Error, CheckReportsConditionAndValues) {
  try {
    BRIM_CHECK(1 == 2, "{} against {}", 1, 2);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::internal);
    EXPECT_NE(std::string(e.what()).find("1 == 2"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("1 against 2"), std::string::npos);
  }
}

TEST(Utf8, EscapesControlCharactersForATerminal) {
  EXPECT_EQ(escape_controls("plain text\n\tcaf\xC3\xA9 \xE2\x96\x88"), "plain text\n\tcaf\xC3\xA9 \xE2\x96\x88");
  EXPECT_EQ(escape_controls("a\x1b[2Jb\rc\x7f" + std::string(1, '\0')), "a\\x1b[2Jb\\x0dc\\x7f\\x00");
  EXPECT_EQ(escape_controls("\xC2\x9B"
                            "31m"),
            "\\u009b31m")
      << "the C1 form of ESC [";
  EXPECT_EQ(escape_controls("\x9B"
                            "31m"),
            "\\x9b31m")
      << "and as a single byte";
  EXPECT_EQ(escape_controls("\xE2\x80\xAE"
                            "txt\xE2\x81\xA9"),
            "\\u202etxt\\u2069");
  EXPECT_EQ(escape_controls("\xC2\xA0\xE2\x80\xA8"), "\xC2\xA0\xE2\x80\xA8");
  EXPECT_EQ(escape_controls(""), "");
}

// Expected values: Python's bytes.decode("utf-8", errors="replace").
TEST(Utf8, InvalidBytesBecomeReplacementCharactersAsInPython) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(replace_invalid_utf8("plain"), "plain");
  EXPECT_EQ(replace_invalid_utf8("\xC3\xA9"), "\xC3\xA9");
  EXPECT_EQ(replace_invalid_utf8("a\xFFz"), "a" + r + "z");
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF"), r + r);  // overlong
  EXPECT_EQ(replace_invalid_utf8("\xE2\x82"), r);      // cut short: one for the maximal subpart
  EXPECT_EQ(replace_invalid_utf8("\xE2\x82x"), r + "x");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), r + r + r);  // surrogate
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x98"), r);
  EXPECT_EQ(replace_invalid_utf8("\xF4\x90\x80\x80"), r + r + r + r);  // past U+10FFFF
  EXPECT_EQ(replace_invalid_utf8(std::string("a\0b", 3)), std::string("a\0b", 3));
  EXPECT_FALSE(is_valid_utf8("aaaaaaaa\x80"));
  EXPECT_TRUE(is_valid_utf8("\xF0\x9F\x98\x80"));
}

TEST(Utf8, EncodingInvertsDecoding) {
  for (char32_t c : {U'\x1', U'\x7F', U'\x80', U'\x7FF', U'\x800', U'\xFFFD', U'\x10000', U'\x10FFFF'}) {
    std::string s;
    append_utf8(s, c);
    EXPECT_TRUE(is_valid_utf8(s));
    EXPECT_EQ(decode_valid(s, 0).value, c);
    EXPECT_EQ(decode_valid(s, 0).bytes, static_cast<int>(s.size()));
  }
}

TEST(Units, ParsesCommonByteNotations) {
  EXPECT_EQ(parse_bytes("6GiB"), int64_t{6} << 30);
  EXPECT_EQ(parse_bytes("6 GB"), 6'000'000'000);
  EXPECT_EQ(parse_bytes("512m"), int64_t{512} << 20);
  EXPECT_EQ(parse_bytes("1.5KiB"), 1536);
  EXPECT_EQ(parse_bytes("1EiB"), int64_t{1} << 60);
  EXPECT_EQ(parse_bytes("123"), 123);
  EXPECT_EQ(parse_bytes("-1GiB"), -(int64_t{1} << 30));
  for (const char* bad : {"", "GiB", "6 apples", "1e400GiB", "nan", "90%"})
    EXPECT_EQ(parse_bytes(bad), std::nullopt) << bad;
  EXPECT_EQ(with_unit("0.98"), "98%");
  EXPECT_EQ(with_unit("6"), "6GiB");
  EXPECT_EQ(with_unit("1048576 "), "1048576B");
  for (const char* whole : {"6GiB", "98%", "5 B", "auto"}) EXPECT_EQ(with_unit(whole), "") << whole;
  EXPECT_EQ(format_bytes(6442450944), "6.00 GiB");
  EXPECT_EQ(format_count(-1234567), "-1,234,567");
  EXPECT_EQ(nearest_name("lerning_rate", {"learning_rate", "seed"}), "learning_rate");
  EXPECT_EQ(nearest_name("zzz", {"learning_rate", "seed"}), "");
  EXPECT_EQ(nearest_name("1", {"a", "b"}), "");  // no letters in common
  EXPECT_EQ(some_names({}), "");
  EXPECT_EQ(some_names({"a", "b"}), "a, b");
  EXPECT_EQ(some_names({"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9");
  EXPECT_EQ(some_names(std::vector<std::string>(961, "x")), "x, x, x, x, x, x, x, x, x, x, … (961 in total)");
  EXPECT_EQ(nearest_name("MODLE", {"MODE", "MODEL", "MODELS"}), "MODEL");
  EXPECT_EQ(nearest_name("vaderr", {"VADER"}), "VADER");
  EXPECT_EQ(nearest_name("memory_limits", {"memory_limit"}, 1), "memory_limit");
  EXPECT_EQ(nearest_name("memory_limited", {"memory_limit"}, 1), "");
  EXPECT_EQ(nearest_name("ab", {"abcdefgh", "abcd"}), "");
  EXPECT_TRUE(same_word("VADER", "vader"));
}

TEST(Units, NearestNameGivesUpOnTooManyOrTooLongNames) {
  std::vector<std::string> known(4096, "unrelated");
  known.back() = "seed";
  EXPECT_EQ(nearest_name("sede", known), "seed");
  known.push_back("unrelated");
  EXPECT_EQ(nearest_name("sede", known), "");
  const std::string longest(160, 'a');
  EXPECT_EQ(nearest_name(longest, {longest.substr(1)}), longest.substr(1));
  EXPECT_EQ(nearest_name(longest + "a", {longest}), "");
}

TEST(MappedFile, RejectsEverythingButRegularFiles) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  const auto refused = [&](const std::filesystem::path& path) {
    return error_of(ErrorCode::bad_model, [&] { MappedFile file(path); });
  };
  EXPECT_HAS(refused(dir / "pipe"), "pipe: is a named pipe, not a regular file");
  EXPECT_HAS(refused(dir.path()), "is a directory, not a regular file");
  EXPECT_HAS(refused("/dev/null"), "is a device, not a regular file");
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { read_file(dir / "pipe", ErrorCode::bad_data); }), "named pipe");
  std::filesystem::create_symlink(dir / "pipe", dir / "link");
  EXPECT_HAS(refused(dir / "link"), "named pipe");
  put_file(dir / "plain", "text");
  EXPECT_EQ(read_file(dir / "plain"), "text");
}

TEST(CacheFile, IsReplacedAtomicallyByConcurrentWriters) {
  const TempDir dir;
  const auto path = dir / "a" / "b.json";
  const std::string one(300'000, '1'), two(500'000, '2');
  std::vector<std::thread> writers;
  for (const std::string* text : {&one, &two, &one, &two})
    writers.emplace_back([&path, text] {
      for (int i = 0; i < 20; ++i) EXPECT_EQ(write_cache_file(path, *text), "");
    });
  for (auto& writer : writers) writer.join();
  const std::string got = get_file(path);
  EXPECT_TRUE(got == one || got == two) << got.size();
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path.parent_path()), {}),
            1);  // no other file remains
  EXPECT_NE(write_cache_file("/proc/nowhere/x", "text"), "");
}

TEST(YieldCore, AffectsOnlyTheCallingThread) {
  const int before = ::getpriority(PRIO_PROCESS, 0);
  std::thread([&] {
    yield_core();
    EXPECT_EQ(::getpriority(PRIO_PROCESS, 0), std::max(before, 10));
  }).join();
  EXPECT_EQ(::getpriority(PRIO_PROCESS, 0), before);
}

TEST(ThreadPool, RunsEveryIndexOnceAndPropagatesErrors) {
  ThreadPool pool(4);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::atomic<int>> hits(97);
    pool.parallel_for(hits.size(), [&](size_t i, int worker) {
      EXPECT_LT(worker, 4);
      hits[i]++;
    });
    for (auto& h : hits) ASSERT_EQ(h, 1);
  }
  EXPECT_THROW(pool.run([](int worker) {
    if (worker == 2) fail(ErrorCode::bad_data, "from worker {}", worker);
  }),
               Error);
  std::atomic<int> after{0};
  pool.run([&](int) { after++; });
  EXPECT_EQ(after, 4);
}

TEST(BoundedQueue, KeepsOrderBlocksWhenFullAndDrainsWhenClosed) {
  BoundedQueue<int> queue(2);
  std::thread producer([&] {
    for (int i = 0; i < 1000; ++i) ASSERT_TRUE(queue.push(i));
    queue.close();
  });
  for (int i = 0; i < 1000; ++i) {
    EXPECT_LE(queue.size(), 2u);
    auto item = queue.pop();
    ASSERT_TRUE(item.has_value());
    ASSERT_EQ(*item, i);
  }
  EXPECT_FALSE(queue.pop().has_value());
  producer.join();
  EXPECT_FALSE(queue.push(1));
}

TEST(BoundedQueue, CancelWakesBlockedProducer) {
  BoundedQueue<int> queue(1);
  ASSERT_TRUE(queue.push(1));
  std::thread producer([&] { EXPECT_FALSE(queue.push(2)); });
  queue.cancel();
  producer.join();
  EXPECT_FALSE(queue.pop().has_value());
}

TEST(Timeline, ZonesHaveKindsByNameAndValue) {
  EXPECT_EQ(zone_kind("linear"), ZoneKind::product);
  EXPECT_EQ(zone_kind("attention"), ZoneKind::attention);
  EXPECT_EQ(zone_kind("grad_norm"), ZoneKind::row_op);
  EXPECT_EQ(zone_kind("wait_room"), ZoneKind::stage);
  for (int z = 0; z < static_cast<int>(Zone::count); ++z)
    EXPECT_EQ(zone_kind(zone_name(static_cast<Zone>(z))), zone_kind(static_cast<Zone>(z)));
  EXPECT_THROW(zone_kind("linear_grad"), Error);
}

TEST(Timeline, RecordsOnlyWhileOn) {
  Timeline::clear();
  { ScopedZone zone(Zone::tokenize); }
  EXPECT_TRUE(Timeline::events().empty());
  Timeline::enable(true);
  { ScopedZone zone(Zone::linear, 42); }
  std::thread([] {
    Timeline::name_thread("tokenizer 0");
    ScopedZone zone(Zone::tokenize);
  }).join();
  Timeline::enable(false);
  const auto events = Timeline::events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].zone, Zone::linear);
  EXPECT_EQ(events[0].detail, 42);
  EXPECT_NE(events[0].thread, events[1].thread);
  EXPECT_NE(Timeline::chrome_trace().find("tokenizer 0"), std::string::npos);
  Timeline::clear();
}

TEST(Timeline, ZoneAllocatesOnlyForANewBlock) {
  Timeline::clear();
  Timeline::enable(true);
  { ScopedZone zone(Zone::pack); }  // this thread's lane and first block exist now
  Timeline::Lane* device = Timeline::add_lane("device");
  const auto zones = [&](size_t n) {
    const int64_t before = allocations_here;
    for (size_t i = 0; i < n; ++i) {
      ScopedZone zone(i % 2 == 0 ? Zone::linear : Zone::compute, 7);
      Timeline::record(device, Zone::device_busy, 1, 2, 3);
    }
    return allocations_here - before;
  };
  EXPECT_EQ(zones(Timeline::kBlockEvents - 1), 0);
  EXPECT_EQ(zones(10 * Timeline::kBlockEvents), 20);
  EXPECT_EQ(Timeline::events().size(), 1 + 2 * (11 * Timeline::kBlockEvents - 1));
  Timeline::clear();
  EXPECT_TRUE(Timeline::events().empty());
  EXPECT_EQ(zones(11 * Timeline::kBlockEvents), 0);  // the blocks are reused
  Timeline::enable(false);
  Timeline::clear();
}

// Readers see complete events in order during concurrent recording and clearing.
TEST(Timeline, ReadersAndWritersDoNotBlockEachOther) {
  Timeline::clear();
  Timeline::enable(true);
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (int w = 0; w < 2; ++w)
    writers.emplace_back([&] {
      for (int64_t i = 1; !stop && i <= 50'000; ++i) Timeline::record(Zone::pack, i, i + 1, 2 * i);
    });
  while (Timeline::events().empty()) std::this_thread::yield();  // busy cores may delay the writers
  for (int look = 0; look < 30; ++look) {
    std::map<int32_t, int64_t> last;
    const auto events = Timeline::events();
    for (const ZoneEvent& e : events) {
      ASSERT_EQ(e.end_ns, e.begin_ns + 1);
      ASSERT_EQ(e.detail, 2 * e.begin_ns);
      const auto [before, first] = last.try_emplace(e.thread, e.begin_ns - 1);
      ASSERT_EQ(e.begin_ns, before->second + 1);  // none missing
      before->second = e.begin_ns;
    }
    if (look % 10 == 9) Timeline::clear();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  stop = true;
  for (auto& w : writers) w.join();
  Timeline::enable(false);
  Timeline::clear();
}

TEST(Timeline, ProfilerRangesFollowZones) {
  static std::vector<std::string> calls;
  calls.clear();
  const size_t events = Timeline::events().size();
  { ScopedZone off(Zone::read); }
  Timeline::set_ranges([](const char* name) { calls.emplace_back(name); }, [] { calls.emplace_back("pop"); });
  {
    ScopedZone outer(Zone::compute);
    ScopedZone inner(Zone::linear);
    Timeline::set_ranges(nullptr, nullptr);  // open ranges are not popped through a null pointer
    Timeline::set_ranges([](const char* name) { calls.emplace_back(name); }, [] { calls.emplace_back("pop"); });
  }
  Timeline::set_ranges(nullptr, nullptr);
  { ScopedZone off(Zone::read); }
  EXPECT_EQ(calls, (std::vector<std::string>{"compute", "linear", "pop", "pop"}));
  EXPECT_EQ(Timeline::events().size(), events);  // ranges alone record nothing
}

TEST(Progress, ShowsTheTimeLeftOnNarrowTerminals) {
  const std::string text =
      "4m 10s left · step 12,345 · loss 0.1234 · lr 5.00e-05 · 1,234 rows/s · 34.5 k tokens/s · MFU 29.0 % · memory "
      "1.25 GiB of 1.30 GiB";
  for (const int width : {40, 79, 109, 160, 240}) {
    const std::string line = progress_line("training", 0.42, text, width);
    EXPECT_NE(line.find("4m 10s left"), std::string::npos) << width << ": " << line;
    EXPECT_LE(count_code_points(line), static_cast<size_t>(width)) << line;
  }
  EXPECT_NE(progress_line("training", 0.42, text, 79).find("loss 0.1234"), std::string::npos);
  EXPECT_TRUE(progress_line("training", 0.42, text, 240).ends_with("of 1.30 GiB"));
  EXPECT_TRUE(progress_line("training", 0.42, text, 109).ends_with("rows/s"))
      << progress_line("training", 0.42, text, 109);  // only whole parts
  EXPECT_EQ(progress_line("reading", -1, "7 rows", 79), "reading 7 rows");
  EXPECT_EQ(progress_line("reading", -1, "7 rows", 4), "read");
}

}  // namespace
}  // namespace brim
