// SPDX-License-Identifier: Apache-2.0
#include "base/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <string_view>

#include "base/clock.h"
#include "base/env.h"
#include "base/escape.h"
#include "base/units.h"

namespace brim {
namespace {

std::string bar(double share, int width) {
  static const char* const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const double cells = std::clamp(share, 0.0, 1.0) * width;
  const int full = static_cast<int>(cells);
  std::string out;
  for (int i = 0; i < full; ++i) out += "█";
  int drawn = full;
  if (full < width) {
    const int part = static_cast<int>((cells - full) * 8);
    out += eighths[part];
    drawn += part > 0;
  }
  out.append(static_cast<size_t>(std::max(0, width - drawn)), ' ');
  return out;
}

// Counts code points.
size_t cells_of(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

void put(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace

std::string progress_line(const std::string& title, double share, const std::string& text, int width) {
  constexpr std::string_view kBetween = " · ";
  const auto most = static_cast<size_t>(std::max(width, 0));
  // Wide terminals get a longer bar.
  std::string line = share < 0
                         ? title + " "
                         : fmt::format("{} {:3.0f}% │{}│ ", title, share * 100, bar(share, width >= 110 ? 24 : 10));
  // Append as many whole parts as fit.
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(kBetween, at), text.size());
    const std::string part = (at > 0 ? std::string(kBetween) : "") + text.substr(at, end - at);
    if (cells_of(line) + cells_of(part) > most) break;
    line += part;
    at = end + (end < text.size() ? kBetween.size() : 0);
  }
  size_t cut = 0;
  for (size_t seen = 0; cut < line.size(); ++cut)
    if ((static_cast<unsigned char>(line[cut]) & 0xC0) != 0x80 && ++seen > most) break;
  return line.substr(0, cut);
}

bool is_terminal(int fd) { return ::isatty(fd) == 1; }
bool wants_colour(int fd) { return is_terminal(fd) && !env("NO_COLOR"); }
void put_stderr(std::string_view text) { put(STDERR_FILENO, escape_controls(text)); }

void put_stderr_line(std::string_view colour, std::string_view prefix, std::string_view message) {
  const bool coloured = wants_colour(STDERR_FILENO);
  put(STDERR_FILENO,
      fmt::format("{}{}{} {}\n", coloured ? colour : "", prefix, coloured ? "\x1b[0m" : "", escape_controls(message)));
}

int terminal_width(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

Progress::Progress(std::string title, int fd, bool quiet)
    : title_(escape_controls(title)), fd_(fd), terminal_(is_terminal(fd)), quiet_(quiet), started_ns_(now_ns()) {}

Progress::~Progress() { finish(); }

void Progress::update(const State& state) {
  if (quiet_ || finished_) return;
  const int64_t now = now_ns();
  const int64_t gap = terminal_ ? 100'000'000 : 10'000'000'000;
  if (now - std::max(last_ns_, terminal_ ? 0 : started_ns_) < gap) return;
  last_ns_ = now;
  draw(state);
}

void Progress::draw(const State& state) {
  const double elapsed = seconds_since(started_ns_);
  const double share = state.total > 0 ? state.done / state.total : 0;
  // The time left comes before the text: a line that is too long for the terminal is cut at the end.
  std::string text = escape_controls(state.text);
  if (share > 0.001) text = format_duration(elapsed * (1 - share) / share) + " left · " + text;
  if (!terminal_) {
    put(fd_, fmt::format("{}{} {}\n", title_, state.total > 0 ? fmt::format(" {:.0f}%", share * 100) : "", text));
    return;
  }
  put(fd_, "\r\x1b[K" + progress_line(title_, state.total > 0 ? share : -1, text, terminal_width(fd_) - 1));
  drawn_ = true;
}

void Progress::clear() {
  if (terminal_ && drawn_) put(fd_, "\r\x1b[K");
  drawn_ = false;
}

void Progress::finish() {
  if (finished_) return;
  finished_ = true;
  clear();
}

}  // namespace brim
