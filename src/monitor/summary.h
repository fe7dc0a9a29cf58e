// SPDX-License-Identifier: Apache-2.0
// Summarises a log of `brim monitor --jsonl`: memory and temperature per hour and overall, and gaps in the samples.
#pragma once
#include <cstdint>
#include <istream>
#include <map>
#include <string>
#include <vector>

namespace brim::monitor {

class LogSummary {
 public:
  // Invalid lines (for example a truncated last one) are counted and skipped.
  void read(std::istream& log);
  int64_t samples() const { return static_cast<int64_t>(times_.size()); }
  std::string text() const;  // plain tables

 private:
  struct Reading {
    std::map<int64_t, std::vector<double>> by_hour;  // hours since 1970
    void add(int64_t unix_ms, double value) { by_hour[unix_ms / 3'600'000].push_back(value); }
  };
  struct Part {  // a GPU, or the host
    std::string name;
    Reading memory_mib, temperature_c;
    int64_t unreadable = 0;  // samples in which the GPU did not respond
  };
  bool take(const std::string& line);
  std::string gaps() const;
  static void write(std::string& out, const Part& part);

  std::vector<int64_t> times_;               // Unix time in ms, in log order
  std::map<int, Part> cards_;                // by index
  Part host_;                                // memory only
  std::map<std::string, int64_t> warnings_;  // number of occurrences
  int64_t bad_lines_ = 0, first_bad_ = 0, lines_ = 0;
};

}  // namespace brim::monitor
