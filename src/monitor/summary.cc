// SPDX-License-Identifier: Apache-2.0
#include "monitor/summary.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

namespace brim::monitor {
namespace {

using LogLine = nlohmann::json;

constexpr double kBytesPerMiB = 1 << 20;
constexpr size_t kNamedGaps = 20, kNamedWarnings = 20;

std::optional<int64_t> unix_ms_of(const std::string& text) {
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0, ms = 0;
  if (std::sscanf(text.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ", &year, &month, &day, &hour, &minute, &second, &ms) != 7)
    return std::nullopt;
  const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (!date.ok()) return std::nullopt;
  const int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  return ((days * 24 + hour) * 60 + minute) * 60'000 + second * 1000 + ms;
}

std::string log_time(int64_t unix_ms) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::gmtime(static_cast<std::time_t>(unix_ms / 1000)));
}

std::string span_words(int64_t ms) {
  const int64_t seconds = (ms + 500) / 1000;
  if (seconds < 120) return fmt::format("{} s", seconds);
  if (seconds < 7200) return fmt::format("{} min {} s", seconds / 60, seconds % 60);
  return fmt::format("{} h {} min", seconds / 3600, seconds / 60 % 60);
}

std::optional<double> reading_at(const LogLine& block, const char* key) {
  const auto found = block.find(key);
  return found != block.end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}

// Minimum, mean, 95th percentile (nearest sample) and maximum.
std::string four_of(std::vector<double> values) {
  if (values.empty()) return fmt::format("{:>9}{:>9}{:>9}{:>9}", "-", "-", "-", "-");
  std::sort(values.begin(), values.end());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  const double p95 = values[(values.size() * 95 + 99) / 100 - 1];
  return fmt::format("{:>9.0f}{:>9.0f}{:>9.0f}{:>9.0f}", values.front(), mean, p95, values.back());
}

}  // namespace

bool LogSummary::take(const std::string& line) {
  const LogLine sample = LogLine::parse(line, nullptr, false);
  if (!sample.is_object() || !sample.contains("time") || !sample["time"].is_string()) return false;
  const std::optional<int64_t> at = unix_ms_of(sample["time"].get<std::string>());
  if (!at) return false;
  times_.push_back(*at);
  for (const LogLine& gpu : sample.value("gpus", LogLine::array())) {
    const std::optional<double> index = gpu.is_object() ? reading_at(gpu, "index") : std::nullopt;
    if (!index) continue;
    Part& card = cards_[static_cast<int>(*index)];
    if (gpu.contains("name") && gpu["name"].is_string()) card.name = gpu["name"].get<std::string>();
    const auto used = reading_at(gpu, "memory_used_bytes"), heat = reading_at(gpu, "temperature_c");
    if (used) card.memory_mib.add(*at, *used / kBytesPerMiB);
    if (heat) card.temperature_c.add(*at, *heat);
    card.unreadable += !used && !heat;
  }
  if (const auto host = sample.find("host"); host != sample.end() && host->is_object()) {
    const auto total = reading_at(*host, "memory_total_bytes"), available = reading_at(*host, "memory_available_bytes");
    if (total && available) host_.memory_mib.add(*at, (*total - *available) / kBytesPerMiB);
  }
  for (const LogLine& warning : sample.value("warnings", LogLine::array()))
    if (warning.is_string()) ++warnings_[warning.get<std::string>()];
  return true;
}

void LogSummary::read(std::istream& log) {
  for (std::string line; std::getline(log, line);) {
    ++lines_;
    if (line.empty() || take(line)) continue;
    if (bad_lines_++ == 0) first_bad_ = lines_;
  }
}

// Intervals after which the next sample came later than usual for this log, or had an earlier time.
std::string LogSummary::gaps() const {
  std::vector<int64_t> steps;
  for (size_t i = 1; i < times_.size(); ++i) steps.push_back(times_[i] - times_[i - 1]);
  if (steps.empty()) return "";
  std::vector<int64_t> sorted = steps;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2), sorted.end());
  const int64_t usual = std::max<int64_t>(1, sorted[sorted.size() / 2]);
  std::string out =
      fmt::format("one sample every {}\n",
                  usual < 10'000 ? fmt::format("{:.1f} s", 1e-3 * static_cast<double>(usual)) : span_words(usual));
  size_t found = 0;
  int64_t missing = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i] >= 0 && steps[i] <= 2 * usual + 1000) continue;
    if (steps[i] > 0) missing += steps[i];
    if (++found > kNamedGaps) continue;
    if (steps[i] < 0)
      out += fmt::format("the clock went back from {} to {}\n", log_time(times_[i]), log_time(times_[i + 1]));
    else
      out += fmt::format("gap: {} to {} ({})\n", log_time(times_[i]), log_time(times_[i + 1]), span_words(steps[i]));
  }
  if (found > kNamedGaps) out += fmt::format("and {} more\n", found - kNamedGaps);
  return out + (found == 0 ? "no gaps\n" : fmt::format("{} without samples in total\n", span_words(missing)));
}

void LogSummary::write(std::string& out, const Part& part) {
  const bool heat = !part.temperature_c.by_hour.empty();
  out += fmt::format("  {:<14}{:>8}{:>36}{}\n", "", "", "memory used, MiB",
                     heat ? fmt::format("{:>36}", "temperature, °C") : "");
  out += fmt::format("  {:<14}{:>8}", "hour (UTC)", "samples");
  for (int i = 0; i < (heat ? 2 : 1); ++i) out += fmt::format("{:>9}{:>9}{:>9}{:>9}", "min", "mean", "p95", "max");
  out += "\n";
  std::map<int64_t, bool> hours;
  std::vector<double> memory, temperature;
  for (const Reading* reading : {&part.memory_mib, &part.temperature_c})
    for (const auto& [hour, values] : reading->by_hour) hours[hour] = true;
  const auto values_at = [](const Reading& reading, int64_t hour) {
    const auto found = reading.by_hour.find(hour);
    return found == reading.by_hour.end() ? std::vector<double>() : found->second;
  };
  for (const auto& [hour, unused] : hours) {
    const std::vector<double> m = values_at(part.memory_mib, hour), t = values_at(part.temperature_c, hour);
    memory.insert(memory.end(), m.begin(), m.end());
    temperature.insert(temperature.end(), t.begin(), t.end());
    out += fmt::format("  {:<14}{:>8}{}{}\n", log_time(hour * 3'600'000).substr(0, 13), std::max(m.size(), t.size()),
                       four_of(m), heat ? four_of(t) : "");
  }
  out += fmt::format("  {:<14}{:>8}{}{}\n", "whole", std::max(memory.size(), temperature.size()), four_of(memory),
                     heat ? four_of(temperature) : "");
}

std::string LogSummary::text() const {
  const auto [first, last] = std::minmax_element(times_.begin(), times_.end());
  std::string out = times_.empty()
                        ? std::string()
                        : fmt::format("{} to {} UTC, {} samples\n", log_time(*first), log_time(*last), times_.size());
  out += gaps();
  if (bad_lines_ > 0)
    out += fmt::format("{} invalid line{}, the first is line {}\n", bad_lines_, bad_lines_ == 1 ? "" : "s", first_bad_);
  for (const auto& [index, card] : cards_) {
    out += fmt::format("\nGPU {}{}{}\n", index, card.name.empty() ? "" : " " + card.name,
                       card.unreadable > 0 ? fmt::format(": no reading in {} samples", card.unreadable) : "");
    if (!card.memory_mib.by_hour.empty() || !card.temperature_c.by_hour.empty()) write(out, card);
  }
  if (!host_.memory_mib.by_hour.empty()) {
    out += "\nthis machine\n";
    write(out, host_);
  }
  if (!warnings_.empty()) out += "\nwarnings\n";
  size_t named = 0;
  for (const auto& [warning, times] : warnings_)
    if (++named <= kNamedWarnings) out += fmt::format("  {:>4} x  {}\n", times, warning);
  if (named > kNamedWarnings) out += fmt::format("  and {} more\n", named - kNamedWarnings);
  return out;
}

}  // namespace brim::monitor
