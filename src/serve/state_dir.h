// SPDX-License-Identifier: Apache-2.0
// Where a server keeps what must survive it: queues and jobs. One process at a time may have it, and nobody but its
// owner may read it, as clients' texts are in it.
#pragma once
#include <filesystem>
#include <string>

namespace brim::serve {

class StateDir {
 public:
  // Makes the directory where it is missing and takes its lock. Throws cannot_write.
  explicit StateDir(std::filesystem::path path);
  ~StateDir();
  StateDir(const StateDir&) = delete;
  StateDir& operator=(const StateDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path folder(const std::string& name) const;  // made where it is missing

 private:
  std::filesystem::path path_;
  int lock_ = -1;
};

}  // namespace brim::serve
