// SPDX-License-Identifier: Apache-2.0
// `brim score --shard` and its reports: many processes, some killed, every row once.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include "cli/program.h"

namespace brim {
namespace {

class Shards : public ProgramTest {
 protected:
  std::vector<std::string> command(const std::string& shard, std::vector<std::string> more = {}) const {
    std::vector<std::string> all = {"score", "a.csv", "b.csv", "--model", "vader", "-q", "-o", "out", "--shard", shard};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::string report(const std::string& what) const { return must({"score", "-o", "out", "--shard", what}); }
  void put_inputs(size_t rows) const {
    for (const char* name : {"a.csv", "b.csv"}) {
      std::string text = "id,text\n";
      for (size_t i = 0; i < rows; ++i)
        text += fmt::format("{}{},\"a {} thing\nin two lines\"\n", name[0], i, i % 3 == 0 ? "great" : "awful");
      put(name, text);
    }
  }
  // The concatenated parts with one header.
  std::string together(int count) const {
    std::string all;
    for (int i = 0; i < count; ++i) {
      const std::string part = get(fmt::format("out/part-{:05}.csv", i));
      all += i == 0 ? part : part.substr(part.find('\n') + 1);
    }
    return all;
  }
};

TEST_F(Shards, PartsConcatenateToWholeOutput) {
  put_inputs(500);
  must({"score", "a.csv", "b.csv", "--model", "vader", "-q", "-o", "whole.csv"});
  for (int i = 0; i < 5; ++i)
    if (i != 3) {
      const Outcome shard = brim(command(fmt::format("{}/5", i)));
      ASSERT_EQ(shard.code, 0) << shard.err;
      EXPECT_EQ(shard.err, "");
    }
  EXPECT_EQ(report("status"), "4 of 5 shards done\nmissing 3\n");
  EXPECT_EQ(report("missing"), "3\n");
  refused(3, {"1 of 5 shards", ": 3"}, {"score", "-o", "out", "--shard", "check"});
  const Outcome old = brim({"shards", "out", "--missing"});  // the former name
  EXPECT_EQ(old.out, "3\n");
  EXPECT_NE(old.err.find("use `brim score -o out --shard missing`"), std::string::npos) << old.err;
  // Rerun of a task of a Slurm array: the number of shards is read from the existing job.
  must(command("auto"), {.environment = {{"SLURM_ARRAY_TASK_ID", "3"}, {"SLURM_ARRAY_TASK_COUNT", "1"}}});
  EXPECT_EQ(report("check"), "1,000 rows in 5 parts, all complete\n");
  EXPECT_EQ(together(5), get("whole.csv"));
  EXPECT_EQ(json_of("out/_manifest.json").at("rows"), 1000);
  EXPECT_TRUE(exists("out/_SUCCESS"));
  const std::string before = get("out/part-00002.csv");
  must(command("2/5"));  // a retry changes nothing
  EXPECT_EQ(get("out/part-00002.csv"), before);
}

TEST_F(Shards, RejectsInvalidShards) {
  put_inputs(20);
  must(command("auto/3"), {.environment = {{"JOB_COMPLETION_INDEX", "1"}}});
  refused(2, {"another job", "shards is 3, not 4"}, command("0/4"));
  refused(2, {"all-scores changed from no to yes"}, command("0/3", {"--all-scores"}));
  refused(2, {"out of range"}, command("3/3"));
  refused(2, {"--shard", "3/64"}, command("3"));
  refused(2, {"JOB_COMPLETION_INDEX"}, command("auto"));
  refused(2, {"--resume"}, command("0/3", {"--resume"}));
  refused(2, {"-o DIR"}, {"score", "a.csv", "--shard", "0/2"});
  refused(2, {"cannot be divided"}, {"score", "-", "-o", "out", "--shard", "0/2"}, {.input = "a\n"});
  refused(2, {"is a file"}, {"score", "a.csv", "-o", "b.csv", "--shard", "0/2"});
  refused(2, {"no job in this directory"}, {"score", "-o", ".", "--shard", "status"});
  refused(2, {"--shard check: takes no input file"}, command("check"));
  refused(2, {"--shard status: requires the output directory"}, {"score", "--shard", "status"});
  put("a.csv", get("a.csv") + "x,more\n");
  refused(2, {"a.csv has changed"}, command("0/3"));
}

TEST_F(Shards, BadRowFailsOnlyItsShard) {
  put_inputs(50);
  put("b.csv", get("b.csv") + "too,many,fields\n");
  must(command("0/2"));
  refused(3, {"b.csv (from byte", "3 fields"}, command("1/2"));
  const std::string status = report("status");
  EXPECT_NE(status.find("missing 1\nfailed 1: "), std::string::npos) << status;
  EXPECT_NE(status.find("3 fields"), std::string::npos) << status;
}

TEST_F(Shards, KilledShardsResume) {
  put("in.txt", made_up_lines(12'000));
  const std::vector<std::string> one = {"score",       "in.txt", "--model",   "tiny", "--device", "cpu",
                                        "--precision", "fp32",   "--threads", "1",    "-q",       "-o"};
  auto whole = one, half = one;
  whole.push_back("whole.csv");
  must(whole);
  half.insert(half.end(), {"out", "--checkpoint-seconds", "0", "--shard", "1/2"});
  const std::string sidecar = "out/_brim/draft-00001.csv.part.json";
  for (int kill = 0; kill < 3; ++kill) {
    Running run(folder_, half, {});
    const std::string before = glimpse(sidecar);
    while (!run.ended() && (glimpse(sidecar).empty() || glimpse(sidecar) == before)) ::usleep(300);
    run.signal(SIGKILL);
    run.wait();
  }
  half.push_back("--summary-json");
  half.push_back("s.json");
  must(half);
  EXPECT_EQ(json_of("out/_brim/job.json").at("model_name"), (folder_ / "tiny").string());
  EXPECT_LT(json_of("s.json").at("rows"), json_of("s.json").at("rows_in_all"));  // it did not start over
  half[half.size() - 3] = "0/2";
  must(half);
  report("check");
  EXPECT_EQ(together(2), get("whole.csv"));
}

}  // namespace
}  // namespace brim
