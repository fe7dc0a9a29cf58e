// SPDX-License-Identifier: Apache-2.0
// Interrupted runs: Ctrl-C, kill -9, full disk, unwritable output. No rows are lost, existing files are kept, and
// --resume gives the same file as an uninterrupted run.
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include "cli/program.h"

namespace brim {
namespace {

namespace fs = std::filesystem;

class Resume : public ProgramTest {
 protected:
  // Slow enough to be interrupted: one thread, with the position saved as often as possible.
  static constexpr size_t kRows = 12'000;
  std::vector<std::string> command(const std::string& output, std::vector<std::string> more = {}) const {
    std::vector<std::string> all = {"score",       "in.txt", "--model",   "tiny", "--device", "cpu",
                                    "--precision", "fp32",   "--threads", "1",    "-q",       "--checkpoint-seconds",
                                    "0",           "-o",     output};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  // The same with fewer syncs.
  void whole(const std::string& output) const {
    auto all = command(output);
    all[12] = "2";
    must(all);
  }
  // Waits until more than `rows` rows are saved for --resume, then sends signal `number`. False if the run ended
  // before.
  bool strike(Running& run, const std::string& output, int64_t rows, int number) const {
    while (!run.ended()) {
      if (saved_rows(output) >= rows) {
        run.signal(number);
        return true;
      }
      ::usleep(300);
    }
    return false;
  }
  int64_t saved_rows(const std::string& output) const {
    const auto state = nlohmann::json::parse(glimpse(output + ".part.json"), nullptr, false);
    return state.is_discarded() ? -1 : state.at("position").at("rows").get<int64_t>();
  }
};

TEST_F(Resume, GivesSameFileAfterCtrlC) {
  put("in.txt", made_up_lines(kRows));
  whole("whole.csv");
  for (const char* name : {"o.csv", "o.csv.zst"}) {
    put(name, "the old output\n");
    Running run(folder_, command(name), {});
    const bool struck = strike(run, name, 2000, SIGINT);
    if (struck) {
      const Outcome got = run.wait();
      EXPECT_EQ(got.code, 130) << got.err;
      EXPECT_NE(got.err.find("--resume"), std::string::npos) << got.err;
      EXPECT_EQ(get(name), "the old output\n");
      EXPECT_GE(saved_rows(name), 2000);
    }
    must(command(name, {"--resume", "--summary-json", "s.json"}));
    EXPECT_EQ(std::string(name) == "o.csv" ? get(name) : unpacked(name), get("whole.csv")) << name;
    EXPECT_EQ(json_of("s.json").at("rows_in_all"), kRows) << name;
    EXPECT_EQ(json_of("s.json").at("rows") < kRows, struck) << name;
    EXPECT_FALSE(exists(std::string(name) + ".part"));
  }
}

TEST_F(Resume, GivesSameBytesAfterRandomKills) {
  put("in.txt", made_up_lines(kRows));
  unsigned seed = static_cast<unsigned>(::getpid());
  SCOPED_TRACE(seed);
  for (const char* name : {"o.csv", "o.jsonl", "o.csv.gz", "o.csv.zst"}) {
    whole(std::string("whole_") + name);
    int kills = 0;
    for (int64_t from = 0; kills < 3;) {
      Running run(folder_, command(name, kills > 0 ? std::vector<std::string>{"--resume"} : std::vector<std::string>{}),
                  {});
      from += 1 + static_cast<int64_t>(rand_r(&seed) % (kRows / 5));
      const bool struck = strike(run, name, from, SIGKILL);
      const Outcome got = run.wait();
      if (!struck || got.signal != SIGKILL) break;  // it had finished
      ++kills;
      from = std::max(from, saved_rows(name));
    }
    if (!exists(name)) must(command(name, {"--resume"}));
    EXPECT_GT(kills, 0) << name;
    EXPECT_EQ(get(name), get(std::string("whole_") + name)) << name << " after " << kills << " kills";
  }
}

TEST_F(Resume, RejectsDifferentRun) {
  const std::string lines = made_up_lines(kRows);
  put("in.txt", lines);
  Running run(folder_, command("o.csv"), {});
  ASSERT_TRUE(strike(run, "o.csv", 1, SIGKILL));
  run.wait();
  const std::string part = get("o.csv.part");
  refused(2, {"all-scores", "run without --resume"}, command("o.csv", {"--resume", "--all-scores"}));
  refused(2, {"long-text"}, command("o.csv", {"--resume", "--long-text", "window-mean"}));
  const auto config = fs::last_write_time(folder_ / "tiny/config.json");
  edit_config("tiny", [](nlohmann::json& c) {
    c["id2label"]["0"] = "awful";
    c["label2id"] = {{"awful", 0}, {"neutral", 1}, {"positive", 2}};
  });
  refused(2, {"tiny/config.json", "different run"}, command("o.csv", {"--resume"}));
  edit_config("tiny", [](nlohmann::json& c) {
    c["id2label"]["0"] = "negative";
    c["label2id"] = {{"negative", 0}, {"neutral", 1}, {"positive", 2}};
  });
  fs::last_write_time(folder_ / "tiny/config.json", config);
  make_model("bert_sequence", "other");
  auto with_other = command("o.csv", {"--resume"});
  with_other[3] = "other";
  refused(2, {"other"}, with_other);
  put("in.txt", lines + "w5\n");
  refused(2, {"in.txt changed"}, command("o.csv", {"--resume"}));
  EXPECT_EQ(get("o.csv.part"), part);  // a rejected run changes nothing
}

TEST_F(Resume, RejectsUnsupportedInputsAndOutputs) {
  put("in.txt", "w5\n");
  refused(2, {"--resume", "--output OUT"}, {"score", "in.txt", "--model", "vader", "--resume"});
  refused(2, {"--resume", "stdin"}, {"score", "-", "--model", "vader", "--resume", "-o", "o.csv"}, {.input = "a\n"});
  const Outcome fresh = brim(command("o.csv", {"--resume"}));  // no partial output: a normal run
  EXPECT_EQ(fresh.code, 0) << fresh.err;
  EXPECT_EQ(lines_of(get("o.csv")).size(), 2u);
}

TEST_F(Resume, FailureKeepsPartialAndOldOutput) {
  // A file size limit has the effect of a full disk.
  put("in.txt", made_up_lines(kRows));
  put("o.csv", "the old output\n");
  whole("whole.csv");
  ASSERT_GT(get("whole.csv").size(), size_t{400} << 10);
  refused(7, {"o.csv", "File too large", "saved; repeat the command with --resume to continue"}, command("o.csv"),
          {.file_limit = 256 << 10});
  EXPECT_EQ(get("o.csv"), "the old output\n");
  EXPECT_TRUE(exists("o.csv.part"));
  EXPECT_GT(saved_rows("o.csv"), 0);
  must(command("o.csv", {"--resume"}));
  EXPECT_EQ(get("o.csv"), get("whole.csv"));
}

TEST_F(Resume, FullDiskKeepsPartialOutput) {
  put("in.txt", made_up_lines(kRows));
  whole("whole.csv");
  const fs::path disk = folder_ / "disk";
  fs::create_directories(disk);
  if (::unshare(CLONE_NEWNS) != 0) GTEST_SKIP() << "not root: no small disk to fill";
  (void)::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=256k") != 0) GTEST_SKIP() << "mounting is not allowed here";
  put("disk/o.csv", "the old output\n");
  refused(7, {"disk/o.csv", "No space left", "saved; repeat the command with --resume to continue"},
          command("disk/o.csv"));
  EXPECT_EQ(get("disk/o.csv"), "the old output\n");
  EXPECT_GT(saved_rows("disk/o.csv"), 0);
  EXPECT_EQ(::mount("tmpfs", disk.c_str(), "tmpfs", MS_REMOUNT, "size=16m"), 0);
  must(command("disk/o.csv", {"--resume"}));
  EXPECT_EQ(get("disk/o.csv"), get("whole.csv"));
  EXPECT_EQ(::umount(disk.c_str()), 0);
}

TEST_F(Resume, ReportsOutputsThatCannotBeWritten) {
  put("in.txt", made_up_lines(2000));
  refused(7, {"nodir/o.csv", "No such file or directory"}, command("nodir/o.csv"));
  refused(7, {"stdout", "No space left"}, {"score", "in.txt", "--model", "vader", "-q"}, {.stdout_path = "/dev/full"});
  fs::create_directories(folder_ / "folder");
  refused(7, {"folder"}, command("folder"));
  refused(7, {"nodir/s.json"}, command("o.csv", {"--summary-json", "nodir/s.json"}));
  if (::geteuid() != 0) {
    fs::create_directories(folder_ / "locked");
    fs::permissions(folder_ / "locked", fs::perms::owner_read | fs::perms::owner_exec);
    refused(7, {"locked/o.csv", "Permission denied"}, command("locked/o.csv"));
  }
}

}  // namespace
}  // namespace brim
