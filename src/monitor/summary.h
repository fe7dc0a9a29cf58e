// SPDX-License-Identifier: Apache-2.0
// What a log of `brim monitor --jsonl` says of a day: memory and temperature by the hour and for the whole, and where
// nobody looked.
#pragma once
#include <cstdint>
#include <istream>
#include <map>
#include <string>
#include <vector>

namespace brim::monitor {

class LogSummary {
 public:
  // Lines that are no sample (a last one cut short, say) are counted, not heeded.
  void read(std::istream& log);
  int64_t samples() const { return static_cast<int64_t>(times_.size()); }
  std::string text() const;  // plain tables

 private:
  struct Reading {
    std::map<int64_t, std::vector<double>> by_hour;  // hours since 1970
    void add(int64_t unix_ms, double value) { by_hour[unix_ms / 3'600'000].push_back(value); }
  };
  struct Part {  // a card, or the machine
    std::string name;
    Reading memory_mib, temperature_c;
    int64_t unreadable = 0;  // samples in which the card did not answer
  };
  bool take(const std::string& line);
  std::string gaps() const;
  static void write(std::string& out, const Part& part);

  std::vector<int64_t> times_;               // unix ms, in the log's order
  std::map<int, Part> cards_;                // by index
  Part host_;                                // its memory alone
  std::map<std::string, int64_t> warnings_;  // how often each came
  int64_t bad_lines_ = 0, first_bad_ = 0, lines_ = 0;
};

}  // namespace brim::monitor
