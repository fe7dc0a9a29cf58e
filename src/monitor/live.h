// SPDX-License-Identifier: Apache-2.0
// Publishes the record of a running Brim process in a small mapped file, <runtime_dir>/<pid>.live, for `brim monitor`.
// Writing copies a few kilobytes of JSON under a sequence lock, so readers never block and never see a partial update.
// If the file cannot be created, nothing is published and there is no other effect.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "monitor/run_record.h"

namespace brim::monitor {

class LivePublisher {
 public:
  // Creates the file; `dir` is runtime_dir() except in tests.
  explicit LivePublisher(const std::filesystem::path& dir = {});
  ~LivePublisher();  // removes the file
  LivePublisher(const LivePublisher&) = delete;
  LivePublisher& operator=(const LivePublisher&) = delete;

  bool active() const { return memory_ != nullptr; }
  // Adds pid, times and the time left, and shortens a long model name at the front. Not thread-safe.
  void publish(RunRecord record);

 private:
  std::filesystem::path path_;
  void* memory_ = nullptr;
  int64_t start_unix_ns_ = 0;
  // Share and time of the first record with a known share: a resumed run starts above 0.
  std::optional<double> first_share_;
  int64_t first_share_ns_ = 0;
};

// Records of all Brim processes of this user on this machine, oldest first. Removes files of dead processes.
std::vector<RunRecord> read_live(const std::filesystem::path& dir = {});
std::optional<RunRecord> read_live_file(const std::filesystem::path& path);

}  // namespace brim::monitor
