// SPDX-License-Identifier: Apache-2.0
#include "base/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "base/clock.h"
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

void put(int fd, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = ::write(fd, text.data() + at, text.size() - at);
    if (n <= 0) return;
    at += static_cast<size_t>(n);
  }
}

}  // namespace

bool is_terminal(int fd) { return ::isatty(fd) == 1; }

int terminal_width(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

Progress::Progress(std::string title, int fd, bool quiet)
    : title_(std::move(title)), fd_(fd), terminal_(is_terminal(fd)), quiet_(quiet), started_ns_(now_ns()) {}

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
  std::string left;
  if (share > 0.001) left = " · " + format_duration(elapsed * (1 - share) / share) + " left";
  if (!terminal_) {
    put(fd_, fmt::format("{}{} {}{}\n", title_, state.total > 0 ? fmt::format(" {:.0f}%", share * 100) : "", state.text,
                         left));
    return;
  }
  std::string line =
      state.total > 0 ? fmt::format("{} {:3.0f}% │{}│ ", title_, share * 100, bar(share, 24)) : title_ + " ";
  line += state.text + left;
  // Cut by code points so that the line never wraps.
  const int width = terminal_width(fd_) - 1;
  int seen = 0;
  size_t cut = 0;
  while (cut < line.size()) {
    if ((static_cast<unsigned char>(line[cut]) & 0xC0) != 0x80 && ++seen > width) break;
    ++cut;
  }
  put(fd_, "\r\x1b[K" + line.substr(0, cut));
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
