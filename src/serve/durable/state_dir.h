// SPDX-License-Identifier: Apache-2.0
// Directory for state that survives a restart: queues and jobs. Locked by one process at a time, and readable by its
// owner only, because it contains clients' texts.
#pragma once
#include <filesystem>
#include <string>

namespace brim::serve {

class StateDir {
 public:
  // Creates the directory if missing and locks it. Throws cannot_write, with `remedy` if another process has the lock.
  explicit StateDir(std::filesystem::path path, const std::string& remedy = "choose another `state_dir`");
  ~StateDir();
  StateDir(const StateDir&) = delete;
  StateDir& operator=(const StateDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path folder(const std::string& name) const;  // created if missing

 private:
  std::filesystem::path path_;
  int lock_ = -1;
};

}  // namespace brim::serve
