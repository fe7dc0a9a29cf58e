// SPDX-License-Identifier: Apache-2.0
// Fuzz entry: a time on the first line, a frequency on the second. Parsed times must survive formatting and parsing,
// and steps along any grid must be reversible.
#include <cstdlib>
#include <string>

#include "rows/timestamps.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace brim::rows;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const size_t line = text.find('\n');
  const auto time = parse_timestamp(text.substr(0, line));
  const auto frequency = parse_frequency(line == std::string::npos ? "" : text.substr(line + 1));
  if (frequency && frequency_name(*frequency).empty()) std::abort();
  if (!time) return 0;
  const auto again = parse_timestamp(format_time(time->value, time->style));
  if (!again) std::abort();
  const bool becomes_date = time->is_integer() && !again->is_integer();  // 020160701 is a number, 20160701 a date
  if (!becomes_date && again->value != time->value) std::abort();
  if (!frequency || time->is_integer() != (frequency->unit == Frequency::Unit::index)) return 0;
  const int64_t number = step_number(*frequency, time->value);
  for (const int64_t steps : {0, 1, 7, 100}) {
    const int64_t then = time_after(*frequency, time->value, steps);
    if (step_number(*frequency, then) != number + steps) std::abort();
  }
  return 0;
}
