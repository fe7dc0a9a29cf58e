// SPDX-License-Identifier: Apache-2.0
// Progress bar: a redrawn line on a terminal, an occasional plain line in a log, nothing if quiet.
#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace brim {

class Progress {
 public:
  struct State {
    double done = 0, total = 0;  // total 0: unknown
    std::string text;            // shown after the bar: rates, loss …
  };
  // `fd` is the output (stderr). Disabled if `quiet`.
  Progress(std::string title, int fd, bool quiet);
  ~Progress();
  void update(const State& state);  // cheap; draws at most 10 times per second (every 10 s in a log)
  void clear();                     // removes the line until the next update, so that other text can be printed
  void finish();                    // clears the line; later updates are ignored

 private:
  void draw(const State& state);
  std::string title_;
  int fd_;
  bool terminal_, quiet_, drawn_ = false, finished_ = false;
  int64_t started_ns_, last_ns_ = 0;
};

// The line for a terminal of `width` cells, never wrapped: the title, a bar unless `share` is negative, and as many
// parts of the text (separated by " · ") as fit.
std::string progress_line(const std::string& title, double share, const std::string& text, int width);

bool is_terminal(int fd);
int terminal_width(int fd);
bool wants_colour(int fd);  // a terminal, and NO_COLOR is not set

// For messages, summaries and logs. They can contain names and labels from files and clients, so control characters are
// escaped. Failed writes (a closed pipe, a full disk) are ignored and do not stop the run.
void put_stderr(std::string_view text);
// Writes one line "prefix message", with the prefix in `colour` (an escape sequence) if stderr is a terminal with
// colours enabled.
void put_stderr_line(std::string_view colour, std::string_view prefix, std::string_view message);
template <class... Args>
void print_stderr(fmt::format_string<Args...> format, Args&&... args) {
  put_stderr(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace brim
