// SPDX-License-Identifier: Apache-2.0
// brim monitor: GPUs, this machine and its running Brim processes, live in a terminal, once, or as JSON. Sampling is in
// src/monitor.
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "cli/env_file.h"
#include "cli/verb.h"
#include "io/descriptor.h"
#include "monitor/snapshot.h"
#include "monitor/summary.h"
#include "monitor/view.h"
#include "monitor/watch.h"

namespace brim::cli {

using monitor::Snapshot;

namespace {

struct MonitorFlags {
  bool once = false, json = false;
  std::string jsonl, summary, interval = "1s";
  int64_t samples = 0;
  std::optional<double> max_utilization, max_temperature, min_free, max_memory;
};

// Seconds from "1s", "500ms" or "2".
double parse_interval(const std::string& text) {
  char* end = nullptr;
  double seconds = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  if (unit == "ms")
    seconds *= 1e-3;
  else if (unit == "m" || unit == "min")
    seconds *= 60;
  else if (!unit.empty() && unit != "s")
    seconds = -1;
  if (end == text.c_str() || !(seconds >= 0.1 && seconds <= 86'400))
    fail(ErrorCode::usage, "--interval {}: must be from 100ms to 24h, such as 1s, 500ms or 5m", text);
  return seconds;
}

monitor::WatchLimits limits_of(const MonitorFlags& f) {
  monitor::WatchLimits limits;
  const auto pick = [](const std::optional<double>& given, const char* flag, const char* key, double otherwise) {
    if (const char* problem = given ? env_number_problem(key, *given) : nullptr)
      fail(ErrorCode::usage, "{} {}: {}", flag, *given, problem);
    return given ? *given : env_number(key, otherwise);
  };
  limits.max_utilization_percent =
      pick(f.max_utilization, "--max-utilization-warn", "GPU_MAX_UTILIZATION_WARN", limits.max_utilization_percent);
  limits.max_temperature_c =
      pick(f.max_temperature, "--max-temperature-c", "GPU_MAX_TEMPERATURE_C", limits.max_temperature_c);
  limits.min_free_mib = pick(f.min_free, "--min-free-vram-mb", "GPU_MIN_FREE_VRAM_MB", limits.min_free_mib);
  if (f.max_memory && !(*f.max_memory >= 0 && *f.max_memory <= 100))
    fail(ErrorCode::usage, "--max-memory-percent {}: must be a percentage from 0 to 100 (0: no warnings)",
         *f.max_memory);
  limits.max_memory_percent = f.max_memory.value_or(limits.max_memory_percent);
  return limits;
}

// Owns the terminal while the view runs: alternate screen, no echo, no cursor; restored on every exit.
class Window {
 public:
  Window() { enter(); }
  ~Window() { leave(); }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  void enter() {
    entered_ = ::tcgetattr(STDIN_FILENO, &before_) == 0;
    if (entered_) {
      termios raw = before_;
      raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG);  // Ctrl-C and Ctrl-Z arrive as keys
      raw.c_cc[VMIN] = 0;
      raw.c_cc[VTIME] = 0;
      ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    put("\x1b[?1049h\x1b[?25l\x1b[2J");
  }
  void leave() {
    put("\x1b[?25h\x1b[?1049l");
    if (entered_) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
    entered_ = false;
  }
  // Like a program stopped by Ctrl-Z: the shell gets the terminal back until `fg`.
  void suspend() {
    leave();
    ::raise(SIGTSTP);
    enter();
  }

  void draw(const std::vector<std::string>& lines) {
    std::string frame = "\x1b[H";
    // Clear each line before writing it: clearing after a full line would erase its last column.
    for (size_t i = 0; i < lines.size(); ++i) frame += (i == 0 ? "\x1b[2K" : "\r\n\x1b[2K") + lines[i];
    put(frame + (lines.size() < static_cast<size_t>(rows()) ? "\r\n\x1b[J" : ""));
  }

  static int columns() { return size().ws_col > 0 ? size().ws_col : 80; }
  static int rows() { return size().ws_row > 0 ? size().ws_row : 24; }

 private:
  static winsize size() {
    winsize w{};
    ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &w);
    return w;
  }
  static void put(std::string_view text) {
    while (!text.empty()) {
      const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return;  // the terminal is gone; handled by the loop
      text.remove_prefix(static_cast<size_t>(n));
    }
  }
  termios before_{};
  bool entered_ = false;
};

void on_resize(int) {}  // only to wake poll

// Waits until `deadline_ns`; true if the view must be redrawn. Sets `quit` if it must close.
bool wait_for_key(Window& window, int64_t deadline_ns, bool& quit) {
  const auto left = static_cast<int>((deadline_ns - now_ns()) / 1'000'000);
  pollfd in{STDIN_FILENO, POLLIN, 0};
  const int ready = ::poll(&in, 1, std::max(0, left));
  if (ready < 0) return true;  // a signal: resize or termination
  if (ready == 0) return false;
  char key = 0;
  const ssize_t n = ::read(STDIN_FILENO, &key, 1);
  if (n <= 0)
    quit = true;  // the terminal was closed
  else if (key == 'q' || key == 'Q' || key == '\x03' || key == '\x04')
    quit = true;
  else if (key == '\x1a')
    window.suspend();
  return true;
}

int run_view(const MonitorFlags& f, double interval) {
  monitor::Sampler sampler;
  monitor::Watch watch(limits_of(f));
  monitor::History history;
  stop_on_signals();
  struct sigaction resize {};
  resize.sa_handler = on_resize;
  ::sigaction(SIGWINCH, &resize, nullptr);
  Window window;
  bool quit = false;
  for (int64_t taken = 0; !quit && !stop_requested() && (f.samples == 0 || taken < f.samples); ++taken) {
    const int64_t deadline = now_ns() + static_cast<int64_t>(interval * 1e9);
    Snapshot s = sampler.sample();
    watch.check(s.gpus);
    s.warnings = watch.active();
    history.add(s);
    bool redraw = true;
    while (!quit && !stop_requested() && (redraw || now_ns() < deadline)) {
      if (redraw) window.draw(render(s, history, {Window::columns(), Window::rows(), !env("NO_COLOR"), interval}));
      redraw = wait_for_key(window, deadline, quit);
    }
  }
  return 0;
}

// Percentages and rates need two samples.
Snapshot sample_twice(monitor::Sampler& sampler, monitor::Watch& watch) {
  sampler.sample();
  std::this_thread::sleep_for(std::chrono::milliseconds(250));
  Snapshot s = sampler.sample();
  watch.check(s.gpus);
  s.warnings = watch.active();
  return s;
}

void write_line(std::FILE* file, const std::string& name, const std::string& line) {
  if (std::fwrite(line.data(), 1, line.size(), file) != line.size() || std::fputc('\n', file) == EOF ||
      std::fflush(file) != 0) {
    if (errno == EPIPE) throw io::OutputClosed(name);
    fail(ErrorCode::cannot_write, "{}: {}", name, std::strerror(errno));
  }
}

int run_log(const MonitorFlags& f, double interval) {
  const std::string name = f.jsonl == "-" ? "stdout" : f.jsonl;
  if (const auto folder = std::filesystem::path(f.jsonl).parent_path(); !folder.empty()) {
    std::error_code ignored;  // opening the file reports the error
    std::filesystem::create_directories(folder, ignored);
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> opened(
      f.jsonl == "-" ? nullptr : std::fopen(f.jsonl.c_str(), "a"), [](std::FILE* file) { return std::fclose(file); });
  if (f.jsonl != "-" && !opened) fail(ErrorCode::cannot_write, "{}: {}", f.jsonl, std::strerror(errno));
  monitor::Sampler sampler;
  monitor::Watch watch(limits_of(f));
  stop_on_signals();
  if (!sampler.nvml().ready()) log_info("{}; logging the host only", sampler.nvml().why());
  auto next = std::chrono::steady_clock::now();
  for (int64_t taken = 0; !stop_requested() && (f.samples == 0 || taken < f.samples); ++taken) {
    Snapshot s = sampler.sample();
    s.warnings = watch.check(s.gpus);  // logged only with the sample that exceeds a limit, not with every following one
    for (const auto& warning : s.warnings) log_warning("{}", warning);
    write_line(opened ? opened.get() : stdout, name, to_json(s));
    next += std::chrono::nanoseconds(static_cast<int64_t>(interval * 1e9));
    while (!stop_requested() && (f.samples == 0 || taken + 1 < f.samples)) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(next - std::chrono::steady_clock::now()).count();
      if (left <= 0 || ::poll(nullptr, 0, static_cast<int>(std::min<int64_t>(left, 60'000))) < 0) break;
    }
  }
  return 0;
}

int run_summary(const MonitorFlags& f) {
  if (f.once || f.json || !f.jsonl.empty())
    fail(ErrorCode::usage, "--summary {}: cannot be combined with --once, --json or --jsonl", f.summary);
  std::ifstream log(f.summary, std::ios::binary);
  std::error_code ignored;
  if (!log.is_open() || std::filesystem::is_directory(f.summary, ignored))
    fail(ErrorCode::bad_data, "--summary {}: cannot be read: {}", f.summary,
         std::strerror(log.is_open() ? EISDIR : errno));
  monitor::LogSummary summary;
  summary.read(log);
  if (summary.samples() == 0)
    fail(ErrorCode::bad_data, "--summary {}: no samples; write a log with `brim monitor --jsonl FILE`", f.summary);
  const std::string text = summary.text();
  write_line(stdout, "stdout", text.substr(0, text.size() - 1));
  return 0;
}

int run_monitor(const MonitorFlags& f) {
  if (!f.summary.empty()) return run_summary(f);
  const double interval = parse_interval(f.interval);
  if (f.samples < 0) fail(ErrorCode::usage, "--samples {}: must not be negative", f.samples);
  if (f.json && !f.jsonl.empty()) fail(ErrorCode::usage, "--json and --jsonl cannot be combined");
  if (!f.jsonl.empty()) return run_log(f, interval);
  if (!f.json && !f.once && is_terminal(STDOUT_FILENO) && is_terminal(STDIN_FILENO)) return run_view(f, interval);
  monitor::Sampler sampler;
  monitor::Watch watch(limits_of(f));
  const Snapshot s = sample_twice(sampler, watch);
  if (f.json) {
    write_line(stdout, "stdout", to_json(s));
    return 0;
  }
  const bool terminal = is_terminal(STDOUT_FILENO);
  std::string text;
  for (const auto& line :
       render(s, monitor::History(), {terminal ? Window::columns() : 120, 0, wants_colour(STDOUT_FILENO), 0}))
    text += (text.empty() ? "" : "\n") + line;
  write_line(stdout, "stdout", text);
  return 0;
}

}  // namespace

std::function<int()> setup_monitor(CLI::App& app) {
  auto f = std::make_shared<MonitorFlags>();
  app.add_flag("--once", f->once, "print one sample and exit (the default without a terminal)");
  app.add_flag("--json", f->json, "print one sample as JSON; unavailable values are null");
  app.add_option("--jsonl", f->jsonl, "append one JSON line per sample to this file; -: stdout");
  app.add_option("--summary", f->summary,
                 "summarize a log of --jsonl: memory and temperature per hour, gaps, warnings");
  app.add_option("--interval", f->interval, "time between samples: 1s, 500ms, 5m")->capture_default_str();
  app.add_option("--samples", f->samples, "stop after this many samples; 0: until q, Ctrl-C or a signal")
      ->capture_default_str();
  app.add_option("--max-utilization-warn", f->max_utilization,
                 "warn above this utilisation in percent; 0: never (default: $GPU_MAX_UTILIZATION_WARN or 90)");
  app.add_option("--max-temperature-c", f->max_temperature,
                 "warn above this temperature in °C; 0: never (default: $GPU_MAX_TEMPERATURE_C or 85)");
  app.add_option("--min-free-vram-mb", f->min_free,
                 "warn below this much free memory in MiB; 0: never (default: $GPU_MIN_FREE_VRAM_MB or 500)");
  app.add_option("--max-memory-percent", f->max_memory,
                 "warn above this share of used memory in percent; 0: never (default: 95)");
  app.footer(
      "Utilisation is the share of time with a running kernel; MFU is the share of the GPU's peak arithmetic used by\n"
      "the model. A GPU can show 100 % utilisation and 5 % MFU. A warning is printed when a value exceeds its limit,\n"
      "and again only after the value was well within it. Keys: q or Ctrl-C quits, Ctrl-Z suspends.");
  return [f] { return run_monitor(*f); };
}

}  // namespace brim::cli
