// SPDX-License-Identifier: Apache-2.0
// Access log written by its own thread, so that a full disk or an unread pipe does not block the I/O threads.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace brim::http {

class AccessLog {
 public:
  explicit AccessLog(const std::string& path);  // appends; "-" is stdout
  ~AccessLog();                                 // drops lines that a pipe does not take within a second
  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;
  void add(std::string_view line);  // thread-safe

 private:
  void run();
  void write(std::string_view lines);
  bool wait_until_writable();  // false if the log is closing and its reader is not reading

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

}  // namespace brim::http
