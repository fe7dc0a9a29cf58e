// SPDX-License-Identifier: Apache-2.0
#include "jobs/shards.h"

#include <gtest/gtest.h>

#include <random>

#include "base/fuzz_driver.h"
#include "base/test_files.h"
#include "base/test_syscalls.h"
#include "io/atomic_file.h"
#include "io/compress.h"

namespace brim::jobs {
namespace {

namespace fs = std::filesystem;

struct SeenRow {
  std::string text, record;
  bool bad;
  bool operator==(const SeenRow&) const = default;
};

std::vector<SeenRow> rows_of(const std::vector<std::string>& inputs, const rows::RowReaderOptions& options) {
  rows::RowReader reader(inputs, options);
  rows::RowChunk chunk;
  std::vector<SeenRow> all;
  while (reader.next_chunk(chunk))
    for (size_t i = 0; i < chunk.size(); ++i)
      all.push_back({std::string(chunk.texts[i]), std::string(chunk.records[i]), chunk.error(i) != nullptr});
  return all;
}

// Checks that the shards' rows, concatenated, equal the inputs' rows.
void expect_tiles(const std::vector<std::string>& inputs, rows::RowReaderOptions options) {
  options.chunk_bytes = 64;
  const auto whole = rows_of(inputs, options);
  for (const int64_t count : {1, 2, 3, 7, 40}) {
    ShardJob job;
    for (const std::string& input : inputs) job.facts.inputs.emplace_back(input, "");
    job.shards = cut_shards(inputs, options, count, "csv");
    ASSERT_EQ(job.shards.size(), static_cast<size_t>(count));
    std::vector<SeenRow> together;
    for (const Shard& shard : job.shards)
      for (SeenRow& row : rows_of(inputs, job.reading(options, shard))) together.push_back(std::move(row));
    ASSERT_EQ(together, whole) << count << " shards of " << inputs[0];
  }
}

TEST(ShardsTest, ShardsContainEveryRowOnceInOrder) {
  const TempDir dir;
  std::mt19937_64 random(5);
  const auto write = [&](const std::string& name, const std::string& bytes) {
    std::ofstream(dir.path() / name, std::ios::binary) << bytes;
    return (dir.path() / name).string();
  };
  for (int round = 0; round < 60; ++round) {
    std::string lines, table = round % 3 == 0 ? "\xEF\xBB\xBFid,text\n" : "id,text\r\n";
    for (int row = 0; row < 30; ++row) {
      lines += std::string(random() % 20, 'x') + (random() % 5 == 0 ? "\r\n" : "\n");
      table += std::to_string(row) + ",";
      for (size_t n = random() % 12; n > 0; --n) table += "ab,\"\n\r \""[random() % 8];  // including stray quotes
      table += "\n";
    }
    if (round % 4 == 0) lines.pop_back();
    const std::string txt = write("a.txt", lines), csv = write("a.csv", table);
    expect_tiles({txt}, {});
    expect_tiles({txt, write("b.txt", ""), write("c.txt", "one\n"), txt}, {});
    expect_tiles({csv, csv}, {});
    rows::RowReaderOptions plain;
    plain.quotes = false;
    expect_tiles({csv}, plain);
  }
  io::AtomicFile packed(dir.path() / "p.txt.gz");
  auto sink = io::make_sink(packed, io::Compression::gzip);
  sink->write("one\ntwo\nthree\n");
  sink->end_member();
  sink.reset();
  packed.commit();
  expect_tiles({(dir.path() / "p.txt.gz").string(), write("d.txt", "four\nfive\n")}, {});
  fs::copy(dir.path() / "p.txt.gz", dir.path() / "misnamed.txt");
  expect_tiles({(dir.path() / "misnamed.txt").string()}, {});
}

TEST(ShardsTest, ShardsHaveSimilarSizes) {
  const TempDir dir;
  std::string lines;
  for (int i = 0; i < 1000; ++i) lines += "line " + std::to_string(i) + "\n";
  std::ofstream(dir.path() / "a.txt") << lines;
  for (const Shard& shard : cut_shards({(dir.path() / "a.txt").string()}, {}, 10, "csv")) {
    ASSERT_EQ(shard.slices.size(), 1u);
    const auto& range = shard.slices[0].range;
    const int64_t end = range.end < 0 ? static_cast<int64_t>(lines.size()) : range.end;
    EXPECT_NEAR(static_cast<double>(end - range.begin), static_cast<double>(lines.size()) / 10, 10);
  }
}

TEST(ShardsTest, ReadsTheShardFromOptionsAndSchedulers) {
  using Env = std::map<std::string, std::string>;
  const Env slurm = {{"SLURM_ARRAY_TASK_ID", "3"},
                     {"SLURM_ARRAY_TASK_COUNT", "8"},
                     {"SLURM_ARRAY_TASK_MIN", "0"},
                     {"SLURM_ARRAY_TASK_MAX", "7"}};
  Env from_one = slurm, again = slurm, wrong = slurm;
  from_one["SLURM_ARRAY_TASK_MIN"] = "1";
  from_one["SLURM_ARRAY_TASK_MAX"] = "8";
  again["SLURM_ARRAY_TASK_COUNT"] = "1";
  again["SLURM_ARRAY_TASK_MIN"] = again["SLURM_ARRAY_TASK_MAX"] = "3";
  wrong["SLURM_ARRAY_TASK_ID"] = "x";
  const Env kubernetes = {{"JOB_COMPLETION_INDEX", "5"}};
  struct Case {
    const char* text;
    Env env;
    bool planned;
    std::string wanted;  // "index of count", or a part of the error
  };
  const Case cases[] = {
      {"3/64", {}, false, "3 of 64"},
      {"0/1", slurm, false, "0 of 1"},
      {"64/64", {}, false, "out of range"},
      {"1/0", {}, false, "number of shards"},
      {"1/2000000", {}, false, "number of shards"},
      {"3", {}, false, "invalid `shard="},
      {"-1/4", {}, false, "invalid `shard="},
      {"a/4", {}, false, "invalid `shard="},
      {"", {}, false, "invalid `shard="},
      {"auto", {}, false, "SLURM_ARRAY_TASK_ID"},
      {"auto", slurm, false, "3 of 8"},
      {"auto/64", slurm, false, "3 of 64"},
      {"auto", from_one, false, "start at 0"},
      {"auto", again, false, "start at 0"},
      {"auto", again, true, "3 of -1"},
      {"auto", wrong, false, "SLURM_ARRAY_TASK_ID=x"},
      {"auto", kubernetes, false, "Kubernetes"},
      {"auto", kubernetes, true, "5 of -1"},
      {"auto/6", kubernetes, false, "5 of 6"},
      {"auto/5", kubernetes, false, "out of range"},
  };
  for (const Case& c : cases) {
    const auto env = [&](const char* name) -> std::optional<std::string> {
      const auto found = c.env.find(name);
      return found == c.env.end() ? std::nullopt : std::optional(found->second);
    };
    std::string message;
    try {
      const ShardChoice choice = read_shard(c.text, env, c.planned);
      message = fmt::format("{} of {}", choice.index, choice.count.value_or(-1));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
      message = error.what();
    }
    EXPECT_HAS(message, c.wanted) << c.text;
  }
}

TEST(ShardsTest, ParsesRangesOfIds) {
  EXPECT_EQ(id_ranges({}), "");
  EXPECT_EQ(id_ranges({4}), "4");
  EXPECT_EQ(id_ranges({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
}

class JobFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(input_) << "one\ntwo\nthree\nfour\n";
    facts_.inputs = {{input_, input_signature(input_)}};
    facts_.model = "rules";
    facts_.options = {{"format", "auto"}};
    facts_.count = 2;
  }
  ShardJob plan() const { return plan_job(folder_, "vader", facts_, {}, "csv"); }
  void write(const ShardJob& job, int64_t index, const std::string& text) const {
    ShardPart part(job, index);
    io::write_file_atomically(part.draft(), text);
    part.publish(2, 0);
  }
  std::string of(const std::string& name) const { return get_file(folder_ / name); }

  TempDir dir_{fs::exists("/dev/shm") ? "/dev/shm" : fs::temp_directory_path()};
  fs::path folder_ = dir_.path() / "out";
  std::string input_ = (dir_.path() / "a.txt").string();
  ShardFacts facts_;
};

TEST_F(JobFolder, IsPlannedOnceAndFinished) {
  const ShardJob job = plan();
  EXPECT_EQ(plan().id, job.id);
  EXPECT_EQ(find_job(folder_)->id, job.id);
  EXPECT_EQ(shard_states(job).missing, (std::vector<int64_t>{0, 1}));
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { finish_job(job); }), "0-1");
  write(job, 0, "a\n");
  ShardPart(job, 1).note_failure(Error(ErrorCode::bad_data, "a row"));
  EXPECT_EQ(shard_states(job).failed.at(0).second, "a row");
  write(job, 1, "b\n");
  EXPECT_TRUE(shard_states(job).missing.empty());
  EXPECT_EQ(finish_job(job), 4);
  EXPECT_HAS(of("_manifest.json"), "\"rows\": 4");
  EXPECT_EQ(of("_SUCCESS"), "");
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(folder_ / "_brim")) left.push_back(entry.path().filename());
  std::sort(left.begin(), left.end());
  EXPECT_EQ(left, (std::vector<std::string>{"job.json", "part-00000.json", "part-00001.json"}));
}

TEST_F(JobFolder, FilesAreOnDiskBeforeTheyGetTheirNames) {
  const SyscallLog log;
  const ShardJob job = plan();
  write(job, 0, "a\n");
  write(job, 1, "b\n");
  finish_job(job);
  const auto calls = log.calls();
  for (const char* name : {"_brim/job.json", "_brim/part-00000.json", "part-00001.csv", "_manifest.json", "_SUCCESS"}) {
    SCOPED_TRACE(name);
    const size_t named = std::min(find_call(calls, "link", name), find_call(calls, "rename", name));
    ASSERT_LT(named, calls.size());
    EXPECT_LT(find_call(calls, "fsync", fs::path(calls[named].target).parent_path().string(), named), calls.size());
  }
  EXPECT_EQ(unsynced(calls, calls.size(), folder_.string()), std::vector<std::string>{});
}

TEST_F(JobFolder, FinishReplacesItsOldManifestAndKeepsOthers) {
  const ShardJob job = plan();
  write(job, 0, "a\n");
  write(job, 1, "b\n");
  io::write_file_atomically(folder_ / "manifest.json", R"({"job": "another"})");
  finish_job(job);
  EXPECT_HAS(of("manifest.json"), "another");
  io::write_file_atomically(folder_ / "manifest.json", "{\"job\": \"" + job.id + "\"}");
  finish_job(job);
  EXPECT_FALSE(fs::exists(folder_ / "manifest.json"));
  EXPECT_HAS(of("_manifest.json"), "\"rows\": 4");
}

TEST_F(JobFolder, RejectsAnotherJob) {
  plan();
  const auto differs = [&](const std::string& why, const std::function<void(ShardFacts&)>& change) {
    ShardFacts other = facts_;
    change(other);
    EXPECT_HAS(error_of(ErrorCode::usage, [&] { plan_job(folder_, "vader", other, {}, "csv"); }), why);
  };
  differs("2, not 3", [](ShardFacts& f) { f.count = 3; });
  differs("model", [](ShardFacts& f) { f.model = "other"; });
  differs("has changed", [](ShardFacts& f) { f.inputs[0].second = "other"; });
  differs("inputs", [](ShardFacts& f) { f.inputs.emplace_back("/b", ""); });
  differs("format changed from auto to csv", [](ShardFacts& f) { f.options["format"] = "csv"; });
}

TEST_F(JobFolder, KeepsTheFirstPart) {
  const ShardJob job = plan();
  ShardPart first(job, 0);
  EXPECT_TRUE(first.resumable());
  {
    ShardPart second(job, 0);  // concurrent: a separate draft
    EXPECT_FALSE(second.resumable());
    EXPECT_NE(second.draft(), first.draft());
    io::write_file_atomically(second.draft(), "second\n");
    second.publish(1, 0);
  }
  EXPECT_TRUE(first.is_done());
  io::write_file_atomically(first.draft(), "first\n");
  first.publish(1, 0);
  EXPECT_EQ(of("part-00000.csv"), "second\n");
}

TEST_F(JobFolder, DetectsForeignAndDamagedParts) {
  const ShardJob job = plan();
  std::ofstream(folder_ / "part-00000.csv") << "strange\n";
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { ShardPart(job, 0).is_done(); }), "another job");
  fs::remove(folder_ / "part-00000.csv");
  write(job, 0, "a\n");
  write(job, 1, "b\n");
  std::ofstream(folder_ / "part-00001.csv") << "c\n";
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { finish_job(job); }), "damaged");
  fs::remove(folder_ / "part-00001.csv");
  EXPECT_FALSE(ShardPart(job, 1).is_done());
  write(job, 1, "b\n");
  EXPECT_EQ(finish_job(job), 4);
}

TEST_F(JobFolder, KillBetweenRecordAndPartLosesNothing) {
  const ShardJob job = plan();
  write(job, 0, "a\n");
  // State after a kill before the link: the draft exists, the part does not.
  fs::rename(folder_ / "part-00000.csv",
             folder_ / "_brim" / fmt::format("draft-00000-{:08x}", 0xddeaa107u));  // crc32("a\n")
  EXPECT_EQ(shard_states(job).missing.size(), 2u);
  EXPECT_TRUE(ShardPart(job, 0).is_done());
  EXPECT_EQ(of("part-00000.csv"), "a\n");
}

TEST_F(JobFolder, RejectsFoldersWithoutAJob) {
  plan();
  const std::string good = of("_brim/job.json");
  std::mt19937_64 random(3);
  for (int round = 0; round < 500; ++round) {
    std::ofstream(folder_ / "_brim" / "job.json", std::ios::binary) << mutate(good, {good}, random);
    try {
      (void)find_job(folder_);
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::bad_data) << error.what();
    }
  }
}

// tests/data/formats_0.1/README.md
TEST(ShardsTest, ContinuesAJobOfAnEarlierVersion) {
  const TempDir dir;
  const fs::path files = fs::path(BRIM_SOURCE_DIR) / "tests/data/formats_0.1/server/shards";
  fs::copy(files / "job", dir / "job", fs::copy_options::recursive);
  const ShardFacts facts{{{"/tmp/formats/shards/rows.csv", input_signature((files / "rows.csv").string())}},
                         "weights",
                         {{"output-format", "csv"}, {"text-column", "text"}},
                         2};
  rows::RowReaderOptions reading;
  reading.text_column = "text";
  const ShardJob job = plan_job(dir / "job", "vader", facts, reading, "csv");
  EXPECT_EQ(job.id, "55f84372dc3214230f6554c864a5ca51");
  EXPECT_EQ(job.model_name, "vader");
  ASSERT_EQ(job.shards.size(), 2u);
  EXPECT_EQ(shard_states(job).done, std::vector<int64_t>{0});
  EXPECT_TRUE(ShardPart(job, 0).is_done());
  ShardJob here = job;
  here.facts.inputs[0].first = (files / "rows.csv").string();
  const auto rest = rows_of({here.facts.inputs[0].first}, here.reading(reading, job.shards[1]));
  ASSERT_EQ(rest.size(), 3u);
  EXPECT_EQ(rest[0].text, "f");
  ShardPart part(job, 1);
  std::ofstream(part.draft()) << "id,text,label\n3,f,odd\n4,ghi,odd\n5,j,odd\n";
  part.publish(3, 0);
  EXPECT_EQ(finish_job(job), 5);
}

}  // namespace
}  // namespace brim::jobs
