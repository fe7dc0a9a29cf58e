// SPDX-License-Identifier: Apache-2.0
// For durability tests: records the system calls of this process that write, sync and rename files and that send
// responses to clients. Link a test with `test_syscalls`, which overrides these functions of the C library.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace brim {

struct FileCall {
  std::string call;    // write, fsync, fdatasync, rename, link, mkdir, send
  std::string path;    // file; for send: the first 12 bytes, such as "HTTP/1.1 200"
  std::string target;  // new name, for rename and link
};

// Records calls during its lifetime; one instance at a time. Syncs are recorded after they complete, sends before they
// start: a sync listed before a send was complete when the response was sent.
class SyscallLog {
 public:
  SyscallLog();
  ~SyscallLog();
  SyscallLog(const SyscallLog&) = delete;
  SyscallLog& operator=(const SyscallLog&) = delete;

  std::vector<FileCall> calls() const;
  // Called before each fsync and fdatasync with the path, on the calling thread.
  void before_sync(std::function<void(const std::string& path)> hook);
};

// Index of the first matching call at or after `from`; calls.size() if there is none. `path` is the end of the path or,
// for rename and link, of the new name.
size_t find_call(const std::vector<FileCall>& calls, const std::string& call, const std::string& path, size_t from = 0);

// Files and directories below `root` that a power failure just before calls[end] could lose or leave incomplete:
// written and not synced, renamed or linked before their content was synced, or created, renamed or linked in a
// directory that was not synced.
std::vector<std::string> unsynced(const std::vector<FileCall>& calls, size_t end, const std::string& root);

}  // namespace brim
