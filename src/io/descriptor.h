// SPDX-License-Identifier: Apache-2.0
// Waiting for and writing to file descriptors: pipes that pause or are full, disks that are full, signals meanwhile.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace brim::io {

// Whoever read our output has closed it, as `head` does: no failure, but nothing more is wanted.
class OutputClosed : public Error {
 public:
  explicit OutputClosed(const std::string& name)
      : Error(ErrorCode::cannot_write, name + ": closed by its reader; what was written so far is all") {}
};

// A wait looks this often whether the run was stopped.
constexpr int kStopLookMs = 100;

// Whether `events` of poll(2) happened within `ms` milliseconds (0: now, -1: however long it takes). A descriptor that
// is broken counts as ready: reading or writing it says why.
bool wait_until_ready(int fd, short events, int ms);

// A stop that writes to a full pipe look at. They go on for kStopGraceNs after they have seen it.
struct WriteStop {
  const std::atomic<bool>* requested = nullptr;
  int64_t seen_ns = 0;
};

// Writes all of `bytes`. Throws Error(cannot_write) naming `name` and the system's reason, OutputClosed, or
// Error(interrupted) where a pipe stays full after the stop.
void write_all(int fd, std::string_view bytes, const std::string& name, WriteStop& stop);

[[noreturn]] void fail_write(const std::string& name, const char* what, int error);

// Opens an existing file that an earlier run is expected to have written; -1 and errno if that fails. Follows no
// symbolic link and never blocks on a FIFO. Throws Error(cannot_write) for anything but a regular file with one hard
// link: writing to it would change a file of another program.
int open_own_file(const std::string& path, int flags);
[[noreturn]] void refuse_foreign_file(const std::string& path, const std::string& why);

}  // namespace brim::io
