// SPDX-License-Identifier: Apache-2.0
// Tests brim monitor in a pseudo-terminal. Its output is drawn on a small emulated screen, which detects lines that are
// too long or too many.
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/error.h"
#include "base/log.h"
#include "base/test_files.h"
#include "base/utf8.h"
#include "cli/verb.h"

namespace brim::cli {

// Replaces the function of main.cc, which is not linked here.
namespace {
std::atomic<bool> stop{false};
}
const std::atomic<bool>& stop_requested() { return stop; }
void stop_on_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop = true; };
  ::sigaction(SIGTERM, &action, nullptr);
}

namespace {

int run_monitor_with(std::vector<std::string> args) {
  CLI::App app;
  const auto action = setup_monitor(app);
  std::reverse(args.begin(), args.end());
  app.parse(args);
  return action();
}

// Rows and columns, the cursor, and the escape sequences used by the view.
class Screen {
 public:
  Screen(int columns, int rows) : columns_(columns), rows_(rows), lines_(static_cast<size_t>(rows)) {}

  void write(const std::string& bytes) {
    pending_ += bytes;
    size_t at = 0;
    while (at < pending_.size()) {
      const size_t used = take(at);
      if (used == 0) break;  // incomplete sequence or character
      at += used;
    }
    pending_.erase(0, at);
  }
  std::string text() const {
    std::string all;
    for (const auto& line : lines_) all += line + "\n";
    return all;
  }
  bool alternate = false, cursor = true, overflow = false, was_alternate = false;
  int widest = 0;

 private:
  size_t take(size_t at) {
    const char c = pending_[at];
    if (c == '\x1b') return take_escape(at);
    if (c == '\r') return x_ = 0, 1;
    if (c == '\n') {
      if (++y_ >= rows_) {
        overflow = true;
        y_ = rows_ - 1;
      }
      return 1;
    }
    const auto lead = static_cast<unsigned char>(c);
    const size_t bytes = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (at + bytes > pending_.size()) return 0;
    if (++x_ > columns_) overflow = true;
    widest = std::max(widest, x_);
    lines_[static_cast<size_t>(y_)] += pending_.substr(at, bytes);
    return bytes;
  }
  size_t take_escape(size_t at) {
    size_t end = at + 2;
    while (end < pending_.size() && !std::isalpha(static_cast<unsigned char>(pending_[end]))) ++end;
    if (end >= pending_.size()) return 0;
    const std::string sequence = pending_.substr(at + 1, end - at);
    if (sequence == "[H")
      x_ = y_ = 0;
    else if (sequence == "[2K")
      lines_[static_cast<size_t>(y_)].clear();
    else if (sequence == "[2J")
      lines_.assign(static_cast<size_t>(rows_), "");
    else if (sequence == "[J")
      std::fill(lines_.begin() + y_, lines_.end(), "");
    else if (sequence == "[?1049h")
      alternate = was_alternate = true;
    else if (sequence == "[?1049l")
      alternate = false;
    else if (sequence == "[?25l")
      cursor = false;
    else if (sequence == "[?25h")
      cursor = true;
    else if (sequence.back() != 'm')
      overflow = true;  // unexpected sequence
    return end - at + 1;
  }
  int columns_, rows_, x_ = 0, y_ = 0;
  std::vector<std::string> lines_;
  std::string pending_;
};

class MonitorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("BRIM_NVML_LIBRARY", BRIM_NVML_STAND_IN, 1);
    ::setenv("BRIM_NVML_SCENARIO",
             "name=NVIDIA H200,util=97,temp=61,mem=20000/144000|name=Old,no=power+utilization,lose=1", 1);
    ::setenv("XDG_RUNTIME_DIR", dir_.c_str(), 1);
    for (const char* name : {"NO_COLOR", "GPU_MAX_UTILIZATION_WARN", "GPU_MAX_TEMPERATURE_C", "GPU_MIN_FREE_VRAM_MB"})
      ::unsetenv(name);
  }
  void TearDown() override {
    for (const char* name : {"BRIM_NVML_LIBRARY", "BRIM_NVML_SCENARIO", "XDG_RUNTIME_DIR", "GPU_MAX_TEMPERATURE_C"})
      ::unsetenv(name);
  }

  // Runs the view in its own terminal until finish().
  void start(int columns, int rows) {
    winsize size{};
    size.ws_col = static_cast<unsigned short>(columns);
    size.ws_row = static_cast<unsigned short>(rows);
    screen_ = std::make_unique<Screen>(columns, rows);
    int other = -1;  // settings of a fresh terminal, read before the view changes them
    if (::openpty(&terminal_, &other, nullptr, nullptr, nullptr) != 0)
      throw std::runtime_error("no pseudo-terminal to be had: is /dev/pts mounted?");
    ASSERT_EQ(::tcgetattr(terminal_, &before_), 0);
    ::close(terminal_), ::close(other);
    child_ = ::forkpty(&terminal_, nullptr, &before_, &size);
    ASSERT_GE(child_, 0);
    if (child_ == 0) {
      int code = 99;
      try {
        code = run_monitor_with({"--interval", "100ms"});
      } catch (...) {
      }
      ::_exit(code);
    }
  }
  // Reads until `done` or the end of the program; the limit of one minute is for a stalled machine.
  template <class Done>
  void read_until(const Done& done) {
    while (!done()) {
      pollfd in{terminal_, POLLIN, 0};
      ASSERT_GT(::poll(&in, 1, 60'000), 0) << screen_->text();
      char bytes[4096];
      const ssize_t n = ::read(terminal_, bytes, sizeof bytes);
      if (n <= 0) return;
      screen_->write(std::string(bytes, static_cast<size_t>(n)));
    }
  }
  bool shows(const char* text) const { return screen_->text().find(text) != std::string::npos; }
  int finish() {
    read_until([] { return false; });
    int status = 0;
    ::waitpid(child_, &status, 0);
    termios after{};
    EXPECT_EQ(::tcgetattr(terminal_, &after), 0);
    EXPECT_EQ(after.c_lflag, before_.c_lflag);
    EXPECT_TRUE(after.c_lflag & ECHO);
    EXPECT_TRUE(screen_->was_alternate);
    EXPECT_FALSE(screen_->alternate);
    EXPECT_TRUE(screen_->cursor);
    EXPECT_FALSE(screen_->overflow) << screen_->text();
    ::close(terminal_);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  void type(char key) { ASSERT_EQ(::write(terminal_, &key, 1), 1); }

  const TempDir temp_;
  const std::filesystem::path dir_ = temp_.path();
  std::unique_ptr<Screen> screen_;
  int terminal_ = -1;
  pid_t child_ = -1;
  termios before_{};
};

TEST_F(MonitorTest, DrawsASmallTerminalAndQuitsByKey) {
  start(80, 24);
  read_until([&] { return shows("lost") && shows("warning"); });
  for (const char* part : {"brim monitor", "GPU 0", "NVIDIA H200", "97 %", "GPU 1", "HOST"})
    EXPECT_TRUE(shows(part)) << part << "\n" << screen_->text();
  EXPECT_FALSE(screen_->cursor);
  type('q');
  EXPECT_EQ(finish(), 0);
}

TEST_F(MonitorTest, DrawsALargeTerminalAndQuitsByControlC) {
  start(200, 60);
  read_until([&] { return shows("lost"); });
  for (const char* part : {"gen 5 ×16", "process", "MFU", "no run on this machine", "disk"})
    EXPECT_TRUE(shows(part)) << part << "\n" << screen_->text();
  EXPECT_GT(screen_->widest, 80);
  type('\x03');
  EXPECT_EQ(finish(), 0);
}

TEST_F(MonitorTest, FollowsTheWindowAndASignalRestoresIt) {
  start(80, 24);
  read_until([&] { return shows("GPU 0"); });
  EXPECT_FALSE(screen_->overflow) << screen_->text();
  screen_ = std::make_unique<Screen>(200, 60);
  screen_->was_alternate = true;
  screen_->cursor = false;
  winsize size{};
  size.ws_col = 200;
  size.ws_row = 60;
  ASSERT_EQ(::ioctl(terminal_, TIOCSWINSZ, &size), 0);
  read_until([&] { return screen_->widest > 80 && shows("disk"); });
  ::kill(child_, SIGTERM);
  EXPECT_EQ(finish(), 0);
}

TEST_F(MonitorTest, KeepsALogAndWarnsOnce) {
  ::setenv("GPU_MAX_TEMPERATURE_C", "60", 1);
  std::vector<std::string> said;
  const LogSink before = set_log_sink([&](LogLevel level, std::string_view message) {
    if (level == LogLevel::warning) said.emplace_back(message);
  });
  const std::string path = dir_ / "logs" / "today" / "log.jsonl";  // missing folders are created
  EXPECT_EQ(run_monitor_with({"--jsonl", path, "--interval", "100ms", "--samples", "3", "--max-utilization-warn", "0"}),
            0);
  EXPECT_EQ(run_monitor_with(
                {"--jsonl", path, "--samples", "1", "--max-temperature-c", "70", "--max-utilization-warn", "98"}),
            0);
  set_log_sink(before);
  EXPECT_EQ(said, (std::vector<std::string>{"GPU 0: 61 °C, above 60 °C", "GPU 1: lost (GPU is lost)"}));
  std::ifstream in(path);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 4U);
  size_t warned = 0;
  for (const auto& line : lines) warned += line["warnings"].size();
  EXPECT_EQ(warned, 2U) << "once per crossing, not on every line";
  EXPECT_EQ(lines[0]["warnings"][0], "GPU 0: 61 °C, above 60 °C");
  EXPECT_EQ(lines[2]["gpus"][1]["state"], "lost");
  EXPECT_TRUE(lines[0]["gpus"][1]["utilization"].is_null());
  EXPECT_TRUE(lines[3]["warnings"].empty());
}

TEST_F(MonitorTest, SummarizesALog) {
  const std::string path = dir_ / "log.jsonl";
  EXPECT_EQ(run_monitor_with({"--jsonl", path, "--interval", "100ms", "--samples", "3"}), 0);
  testing::internal::CaptureStdout();
  EXPECT_EQ(run_monitor_with({"--summary", path}), 0);
  const std::string text = testing::internal::GetCapturedStdout();
  for (const char* part : {"3 samples", "no gaps", "GPU 0 NVIDIA H200", "memory used, MiB", "20000", "61", "GPU 1"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  std::ofstream(dir_ / "empty");
  for (const std::string& bad : {std::string(dir_ / "none"), std::string(dir_ / "empty"), std::string(dir_)})
    EXPECT_THROW(run_monitor_with({"--summary", bad}), Error) << bad;
  EXPECT_THROW(run_monitor_with({"--summary", path, "--json"}), Error);
}

TEST_F(MonitorTest, WrongFlagsAreUsageErrors) {
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"--interval", "soon"},
                                             {"--interval", "0"},
                                             {"--interval", "1h30"},
                                             {"--interval", ""},
                                             {"--samples", "-1"},
                                             {"--once", "--max-temperature-c", "-5"},
                                             {"--once", "--max-utilization-warn", "nan"},
                                             {"--once", "--min-free-vram-mb=-1"},
                                             {"--json", "--jsonl", "x"}})
    EXPECT_THROW(run_monitor_with(args), Error) << args[0] << args.back();
  std::ofstream(dir_ / "file") << "x";
  try {
    run_monitor_with({"--jsonl", dir_ / "file" / "log"});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::cannot_write);
  }
}

}  // namespace
}  // namespace brim::cli
