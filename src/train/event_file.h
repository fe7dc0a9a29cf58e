// SPDX-License-Identifier: Apache-2.0
// Writes scalars by step for TensorBoard: an event file in TensorFlow's record format. Does not read or merge files.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace brim::train {

// One record: length, payload and their masked CRC-32C.
std::string event_record(std::string_view payload);

class EventFile {
 public:
  // Creates events.out.tfevents.TIME.brim.PID.N in `directory`. If the run continues after `first_step` (above 0),
  // TensorBoard hides later steps of earlier files. Throws cannot_write.
  EventFile(const std::filesystem::path& directory, int64_t first_step);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // Values by tag; those that are not finite are left out.
  void add(int64_t step, const std::vector<std::pair<std::string, double>>& values);
  const std::filesystem::path& path() const { return path_; }

 private:
  void put(const std::string& event);
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace brim::train
