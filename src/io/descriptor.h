// SPDX-License-Identifier: Apache-2.0
// Waits for and writes to file descriptors. Handles paused or full pipes, full disks and signals.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace brim::io {

// The reader closed the output, as `head` does: not a failure, but writing should end.
class OutputClosed : public Error {
 public:
  explicit OutputClosed(const std::string& name)
      : Error(ErrorCode::cannot_write, name + ": closed by its reader; the output is incomplete") {}
};

// Interval for checking whether the run was stopped, in milliseconds.
constexpr int kStopLookMs = 100;

// Whether `events` of poll(2) occurred within `ms` milliseconds (0: no wait, -1: no limit). A broken descriptor counts
// as ready: reading or writing it reports the error.
bool wait_until_ready(int fd, short events, int ms);

// Stop flag for writes to a full pipe. They continue for kStopGraceNs after noticing it.
struct WriteStop {
  const std::atomic<bool>* requested = nullptr;
  int64_t seen_ns = 0;
};

// Writes all of `bytes`. Throws Error(cannot_write) naming `name` and the system's reason, OutputClosed, or
// Error(interrupted) if a pipe stays full after the stop.
void write_all(int fd, std::string_view bytes, const std::string& name, WriteStop& stop);

[[noreturn]] void fail_write(const std::string& name, const char* what, int error);

// Opens an existing file that an earlier run is expected to have written; -1 and errno if that fails. Follows no
// symbolic link and never blocks on a FIFO. Throws Error(cannot_write) for anything but a regular file with one hard
// link: writing to it would change a file of another program.
int open_own_file(const std::string& path, int flags);
[[noreturn]] void refuse_foreign_file(const std::string& path, const std::string& why);

}  // namespace brim::io
