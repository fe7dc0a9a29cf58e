// SPDX-License-Identifier: Apache-2.0
// Lines from the I/O threads, written by a thread of its own: a full disk holds up nobody, nor does a pipe that nobody
// reads.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace brim::serve {

class AccessLog {
 public:
  explicit AccessLog(const std::string& path);  // appends to it; "-" is stdout
  ~AccessLog();                                 // what its reader does not take within a second is dropped
  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;
  void add(std::string_view line);  // any thread

 private:
  void run();
  void write(std::string_view lines);
  bool wait_for_room();  // false: it ends, and there is none

  const std::string path_;
  int descriptor_;
  bool is_file_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string waiting_;
  uint64_t dropped_ = 0;
  bool ending_ = false, warned_ = false;
  std::thread thread_;
};

}  // namespace brim::serve
