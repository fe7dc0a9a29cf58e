// SPDX-License-Identifier: Apache-2.0
// What the machine itself is doing, read from /proc: cores, memory, swap, disk, and this process's own share. Rates are
// between one sample and the next, so the first has none.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace brim {

struct HostSample {
  std::string cpu_name;
  int cores = 0;              // this process may use
  std::optional<double> cpu;  // share of all cores, 0 … 1
  std::vector<double> core;   // of each core; empty in the first sample
  std::optional<double> load_1m;
  std::optional<int64_t> memory_total_bytes, memory_available_bytes, swap_total_bytes, swap_used_bytes;
  std::string disk_path;  // the directory asked about
  std::optional<int64_t> disk_total_bytes, disk_free_bytes;
  std::optional<double> disk_read_bytes_per_s, disk_write_bytes_per_s;  // all disks
  int64_t self_rss_bytes = 0;
  std::optional<double> self_cpu;  // in cores: 1 is one core busy
};

class HostSampler {
 public:
  // `disk`: whose file system's free space is told. `proc` is /proc except in tests.
  explicit HostSampler(std::filesystem::path disk = ".", std::filesystem::path proc = "/proc");
  HostSample sample();

 private:
  struct Ticks {
    int64_t busy = 0, total = 0;
  };
  void sample_cpu(HostSample& s);
  void sample_memory(HostSample& s) const;
  void sample_disk(HostSample& s, double seconds);
  void sample_self(HostSample& s, double seconds);

  std::filesystem::path disk_, proc_;
  std::string cpu_name_;
  int64_t last_ns_ = 0, last_read_ = -1, last_written_ = -1, last_self_ticks_ = -1;
  std::vector<Ticks> last_ticks_;  // all cores, then each
};

// Resident bytes of this process now.
int64_t own_resident_bytes();

}  // namespace brim
