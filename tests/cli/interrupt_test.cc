// SPDX-License-Identifier: Apache-2.0
// Signals while an input pipe pauses, while an output pipe is full, and before the first row. All scored rows are saved
// within a second after the current batch, and the exit code is 130.
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
  static void expect_end(Running& run) { EXPECT_TRUE(run.ends_within(20)) << "still running after the signal"; }
  // Rows of a partial CSV file, without its header. The last row must be complete.
  std::vector<std::string> rows_left(const std::string& name) const {
    if (!exists(name) || get(name).empty()) return {};
    EXPECT_EQ(get(name).back(), '\n');
    auto rows = lines_of(get(name));
    rows.erase(rows.begin());
    return rows;
  }
  // Partial file of a run that cannot be resumed; empty if none.
  std::string kept_file(const std::string& output) const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(output + ".") && name.ends_with(".part")) return name;
    }
    return "";
  }
};

TEST_F(Interrupt, KeepsScoredRowsOfPausedPipe) {
  for (const char* model : {"tiny", "vader"})
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
      SCOPED_TRACE(fmt::format("{} signal {}", model, number));
      std::vector<std::string> rows;
      // Scoring may take longer on a slow machine.
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

TEST_F(Interrupt, BadRowEndsRunOfPausedPipe) {
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

TEST_F(Interrupt, EndsImmediatelyBeforeFirstRow) {
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

// All queues are full, because the labels are not read.
TEST_F(Interrupt, EndsWhileOutputPipeIsFull) {
  const std::string fifo = (folder_ / "labels").string();
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const int unread_pipe = ::open(fifo.c_str(), O_RDWR | O_CLOEXEC);
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
        ASSERT_EQ(::ioctl(unread_pipe, FIONREAD, &bytes), 0);
      }
      run.signal(SIGTERM);
      ASSERT_TRUE(run.ends_within(20)) << model << (named ? " -o" : "");
      EXPECT_EQ(run.wait().code, 130);
      std::string drop(size_t{1} << 20, '\0');
      ASSERT_GT(::read(unread_pipe, drop.data(), drop.size()), 0);
    }
  ::close(unread_pipe);
}

// Rows after the first unscored one are dropped; the reported count equals the saved rows.
TEST_F(Interrupt, SavesAllScoredRows) {
  put("in.txt", made_up_lines(60'000));
  const std::vector<std::string> command = {"score", "in.txt",    "--model", "tiny", "--device", "cpu",  "--precision",
                                            "fp32",  "--threads", "1",       "-q",   "-o",       "o.csv"};
  must({"score", "in.txt", "--model", "tiny", "--device", "cpu", "--precision", "fp32", "-q", "-o", "whole.csv"});
  Running run(folder_, command, {});
  while (!run.ended() && glimpse("o.csv.part").empty()) ::usleep(300);
  run.signal(SIGHUP);
  run.signal(SIGTERM);  // a closing terminal may send both
  ASSERT_TRUE(run.ends_within(20));
  const Outcome got = run.wait();
  if (got.code == 0) return;  // finished before the signal
  ASSERT_EQ(got.code, 130) << got.err;
  const size_t rows = rows_left("o.csv.part").size();
  EXPECT_GT(rows, 0u);
  std::string count = std::to_string(rows);
  if (count.size() > 3) count.insert(count.size() - 3, ",");
  EXPECT_NE(got.err.find("after " + count + " rows"), std::string::npos) << count << ": " << got.err;
  EXPECT_EQ(get("whole.csv").substr(0, get("o.csv.part").size()), get("o.csv.part"));
  auto again = command;
  again.emplace_back("--resume");
  must(again);
  EXPECT_EQ(get("o.csv"), get("whole.csv"));
}

// SIGINT, SIGTERM and SIGHUP. The resumed run gives the same result as an uninterrupted one.
TEST_F(Interrupt, TrainingWritesCheckpoint) {
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

TEST_F(Interrupt, RunUnderNohupIgnoresHangup) {
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
