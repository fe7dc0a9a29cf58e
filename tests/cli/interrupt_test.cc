// SPDX-License-Identifier: Apache-2.0
// Signals at bad moments: while a pipe pauses, while nobody takes the output, before the first row. Within a second and
// the running batch all that was scored is saved and the exit code is 130.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/program.h"

namespace brim {
namespace {

class Interrupt : public ProgramTest {
 protected:
  static void write_all(int fd, const std::string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t n = ::write(fd, bytes.data() + at, bytes.size() - at);
      if (n <= 0) return;
      at += static_cast<size_t>(n);
    }
  }
  static void expect_end(Running& run) { EXPECT_TRUE(run.ends_within(20)) << "it goes on after the signal"; }
  // Rows of a csv that was left behind, without its header. Each is whole.
  std::vector<std::string> rows_left(const std::string& name) const {
    if (!exists(name) || get(name).empty()) return {};
    EXPECT_EQ(get(name).back(), '\n');
    auto rows = lines_of(get(name));
    rows.erase(rows.begin());
    return rows;
  }
  // The file in which a run that cannot be resumed left its rows; empty if there is none.
  std::string kept_file(const std::string& output) const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(output + ".") && name.ends_with(".part")) return name;
    }
    return "";
  }
};

TEST_F(Interrupt, APipeThatPausesKeepsEveryScoredRow) {
  for (const char* model : {"tiny", "vader"})
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
      SCOPED_TRACE(fmt::format("{} signal {}", model, number));
      std::vector<std::string> rows;
      // The rows are scored a moment after they are written; on a slow machine the moment is longer.
      for (useconds_t moment = 300'000; rows.size() < 3 && moment < 8'000'000; moment *= 2) {
        Running* run = nullptr;
        Surroundings around;
        around.feed = [&](int fd) {
          write_all(fd, "w5\nw6\nw7\nw8 is no whole line");
          ::usleep(moment);
          run->signal(number);
          expect_end(*run);
        };
        Running running(folder_, {"score", "--model", model, "--device", "cpu", "-q", "-o", "o.csv"}, around);
        run = &running;
        const Outcome got = running.wait();
        EXPECT_EQ(got.code, 130) << got.err;
        const std::string kept = kept_file("o.csv");
        rows = kept.empty() ? std::vector<std::string>() : rows_left(kept);
        if (!rows.empty()) {
          EXPECT_NE(got.err.find("the rows are in o.csv."), std::string::npos) << got.err;
        }
        if (!kept.empty()) std::filesystem::remove(folder_ / kept);
      }
      ASSERT_EQ(rows.size(), 3u);
      EXPECT_EQ(rows[2].substr(0, 3), "w7,");
      EXPECT_FALSE(exists("o.csv"));
    }
}

TEST_F(Interrupt, ABadRowEndsARunWhosePipePauses) {
  for (const char* model : {"tiny", "vader"}) {
    Running* run = nullptr;
    Surroundings around;
    around.feed = [&](int fd) {
      write_all(fd, "w5\n\xff\nw6\n");
      EXPECT_TRUE(run->ends_within(20)) << "it waits for more";
    };
    Running running(folder_, {"score", "--model", model, "--device", "cpu", "-q", "-o", "o.csv"}, around);
    run = &running;
    const Outcome got = running.wait();
    EXPECT_EQ(got.code, 3) << got.err;
  }
}

TEST_F(Interrupt, BeforeTheFirstRowItEndsAtOnce) {
  Running* run = nullptr;
  Surroundings around;
  around.feed = [&](int) {
    ::usleep(200'000);
    run->signal(SIGTERM);
    expect_end(*run);
  };
  Running running(folder_, {"score", "--format", "csv", "--model", "tiny", "--device", "cpu", "-o", "o.csv"}, around);
  run = &running;
  EXPECT_EQ(running.wait().code, 130);
  EXPECT_FALSE(exists("o.csv"));
}

// Every queue is full because nobody reads the labels.
TEST_F(Interrupt, AnOutputThatNobodyTakesIsNotWaitedFor) {
  const std::string fifo = (folder_ / "labels").string();
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const int taken_by_nobody = ::open(fifo.c_str(), O_RDWR | O_CLOEXEC);
  put("in.txt", made_up_lines(60'000));
  for (const bool named : {false, true})
    for (const char* model : {"tiny", "vader"}) {
      std::vector<std::string> arguments = {"score", "in.txt", "--model", model, "--device", "cpu", "-q"};
      Surroundings around;
      if (named)
        arguments.insert(arguments.end(), {"-o", fifo});
      else
        around.stdout_path = fifo;
      Running run(folder_, arguments, around);
      int bytes = 0;
      while (bytes < 60'000 && !run.ended()) {
        ::usleep(1000);
        ASSERT_EQ(::ioctl(taken_by_nobody, FIONREAD, &bytes), 0);
      }
      run.signal(SIGTERM);
      ASSERT_TRUE(run.ends_within(20)) << model << (named ? " -o" : "");
      EXPECT_EQ(run.wait().code, 130);
      std::string drop(size_t{1} << 20, '\0');
      ASSERT_GT(::read(taken_by_nobody, drop.data(), drop.size()), 0);
    }
  ::close(taken_by_nobody);
}

// The rows on their way are cut at the first that was not scored; what is said is what is saved.
TEST_F(Interrupt, AFileIsLeftWithAllThatWasScored) {
  put("in.txt", made_up_lines(60'000));
  const std::vector<std::string> command = {"score", "in.txt",    "--model", "tiny", "--device", "cpu",  "--precision",
                                            "fp32",  "--threads", "1",       "-q",   "-o",       "o.csv"};
  must({"score", "in.txt", "--model", "tiny", "--device", "cpu", "--precision", "fp32", "-q", "-o", "whole.csv"});
  Running run(folder_, command, {});
  while (!run.ended() && glimpse("o.csv.part").empty()) ::usleep(300);
  run.signal(SIGHUP);
  run.signal(SIGTERM);  // a terminal that closes may bring both
  ASSERT_TRUE(run.ends_within(20));
  const Outcome got = run.wait();
  if (got.code == 0) return;  // it was faster than the signal
  ASSERT_EQ(got.code, 130) << got.err;
  const size_t rows = rows_left("o.csv.part").size();
  EXPECT_GT(rows, 0u);
  std::string said = std::to_string(rows);
  if (said.size() > 3) said.insert(said.size() - 3, ",");
  EXPECT_NE(got.err.find("after " + said + " rows"), std::string::npos) << said << ": " << got.err;
  EXPECT_EQ(get("whole.csv").substr(0, get("o.csv.part").size()), get("o.csv.part"));
  auto again = command;
  again.emplace_back("--resume");
  must(again);
  EXPECT_EQ(get("o.csv"), get("whole.csv"));
}

// Ctrl-C, a service manager and a closed terminal alike; continued, the run is the one that was not interrupted.
TEST_F(Interrupt, TrainingEndsWithACheckpoint) {
  std::string rows = "text,label\n";
  for (int r = 0; r < 24; ++r)
    rows += fmt::format("w{} w{},{}\n", 5 + 3 * r, 95 - r, r % 2 == 0 ? "neutral" : "positive");
  put("rows.csv", rows);
  const auto train = [](const std::string& out, const std::vector<std::string>& more = {}) {
    std::vector<std::string> all = {"train",
                                    "--model",
                                    "tiny",
                                    "--train",
                                    "rows.csv",
                                    "--device",
                                    "cpu",
                                    "--threads",
                                    "1",
                                    "--batch-size",
                                    "8",
                                    "--output",
                                    out,
                                    "--max-steps",
                                    "800",
                                    "--seed",
                                    "7",
                                    "--logging-steps",
                                    "1",
                                    "-q",
                                    "--save-strategy",
                                    "no"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  must(train("whole"));
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string out = fmt::format("out{}", number), log = out + "/train_log.jsonl";
    Running run(folder_, train(out), {});
    while (!run.ended() && glimpse(log).empty()) ::usleep(1000);
    run.signal(number);
    ASSERT_TRUE(run.ends_within(20)) << number;
    const Outcome got = run.wait();
    ASSERT_EQ(got.code, 130) << number << " " << got.signal << "\n" << got.err;
    EXPECT_FALSE(exists(out + "/model.safetensors")) << number;
    must(train(out, {"--resume-from-checkpoint", "last"}));
    EXPECT_TRUE(get(out + "/model.safetensors") == get("whole/model.safetensors")) << number;
  }
}

TEST_F(Interrupt, ARunUnderNohupOutlivesItsTerminal) {
  ::signal(SIGHUP, SIG_IGN);
  Running* run = nullptr;
  Surroundings around;
  around.feed = [&](int fd) {
    write_all(fd, "w5\n");
    ::usleep(100'000);
    run->signal(SIGHUP);
    write_all(fd, "w6\n");
  };
  Running running(folder_, {"score", "--model", "vader", "-q"}, around);
  ::signal(SIGHUP, SIG_DFL);
  run = &running;
  const Outcome got = running.wait();
  EXPECT_EQ(got.code, 0) << got.err;
  EXPECT_EQ(lines_of(got.out).size(), 3u);
}

}  // namespace
}  // namespace brim
