// SPDX-License-Identifier: Apache-2.0
// Formats numbers of a profile for its tables; "–" means unknown.
#pragma once
#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>

#include "base/units.h"
#include "jobs/spread.h"
#include "report/profile.h"

namespace brim::report {

constexpr double kShortestVerdictSeconds = 0.25;

inline std::string cell_ms(double seconds) {
  return fmt::format("{:.{}f}", seconds * 1e3, seconds < 1e-4 ? 4 : seconds < 0.01 ? 2 : seconds < 1 ? 1 : 0);
}
inline std::string cell_percent(const std::optional<double>& share) {
  return share ? fmt::format("{:.1f} %", *share * 100) : "–";
}
// Appends the reference of the fraction if the device's rate was not measured.
inline std::string cell_mfu(const std::optional<double>& share, std::string_view note) {
  return cell_percent(share) + (share ? std::string(note) : "");
}
inline std::string cell_bytes(const std::optional<int64_t>& bytes) { return bytes ? format_bytes(*bytes) : "–"; }
// Limiting stage of a run; a short run consists mostly of startup and shutdown.
inline std::string cell_limit(const SizePoint& s) {
  return s.run.stats.seconds < kShortestVerdictSeconds ? "run too short" : s.run.held_back_by;
}
// "601 to 640": slowest and fastest; a single measurement has no range.
inline std::string cell_range(const jobs::Spread& rate) {
  return rate.count < 2 ? "–" : fmt::format("{} to {}", format_rate(rate.least), format_rate(rate.most));
}

}  // namespace brim::report
