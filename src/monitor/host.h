// SPDX-License-Identifier: Apache-2.0
// Samples the machine's state from /proc: CPU, memory, swap, disk, and this process's share. Rates are computed between
// two samples, so the first sample has none.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace brim::monitor {

struct HostSample {
  std::string cpu_name;
  int cores = 0;              // available to this process
  std::optional<double> cpu;  // fraction of all cores, 0 … 1
  std::vector<double> core;   // per core; empty in the first sample
  std::optional<double> load_1m;
  std::optional<int64_t> memory_total_bytes, memory_available_bytes, swap_total_bytes, swap_used_bytes;
  std::string disk_path;  // the directory given to the sampler
  std::optional<int64_t> disk_total_bytes, disk_free_bytes;
  std::optional<double> disk_read_bytes_per_s, disk_write_bytes_per_s;  // sum over all disks
  int64_t self_rss_bytes = 0;
  std::optional<double> self_cpu;  // in cores: 1 is one fully used core
};

class HostSampler {
 public:
  // `disk` selects the file system whose free space is reported. `proc` is /proc except in tests.
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
  std::vector<Ticks> last_ticks_;  // all cores, then each core
};

// CPU use of other processes since construction. Names come from /proc, so processes that ended in the meantime, and
// those not visible in a container, count only in `cores`.
class OtherProcesses {
 public:
  explicit OtherProcesses(std::filesystem::path proc = "/proc");
  struct Load {
    double cores = 0;  // mean number of busy cores
    int machine_cores = 0, usable_cores = 0;
    std::vector<std::pair<std::string, double>> by_name;  // processes using at least 0.05 cores, largest first
    bool disturbs() const;                                // whether they used cores this process could have used
    std::string text() const;                             // "other processes used 1.3 of 2 cores (cc1plus 0.9, ld 0.2)"
  };
  Load load();  // since construction

 private:
  struct Process {
    std::string name;
    int64_t ticks = 0;
  };
  std::map<int, Process> processes() const;
  std::filesystem::path proc_;
  HostSampler host_;
  int64_t began_ns_ = 0;
  std::map<int, Process> before_;
};

// Current resident bytes of this process.
int64_t own_resident_bytes();
std::optional<int64_t> peak_resident_bytes();

// Largest growth of this process's resident memory since construction. If the process was larger before, only the
// values at the calls of peak_bytes() are known.
class ResidentGrowth {
 public:
  int64_t peak_bytes();

 private:
  const int64_t before_ = own_resident_bytes();
  const std::optional<int64_t> peak_before_ = peak_resident_bytes();
  int64_t largest_ = 0;
};

}  // namespace brim::monitor
