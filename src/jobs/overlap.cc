// SPDX-License-Identifier: Apache-2.0
#include "jobs/overlap.h"

#include <fmt/format.h>

#include "base/units.h"

namespace brim::jobs {
namespace {

std::string measured(const OverlapPoint& p) {
  return fmt::format("{:.2f}× with {} tokens per batch, rounds {:.2f}× to {:.2f}×", p.gain.p50, format_count(p.tokens),
                     p.gain.least, p.gain.most);
}

}  // namespace

std::string overlap_verdict(const std::vector<OverlapPoint>& points, const std::string& device) {
  const OverlapPoint *best = nullptr, *sure = nullptr;
  bool none = true;
  for (const OverlapPoint& p : points) {
    if (best == nullptr || p.gain.p50 > best->gain.p50) best = &p;
    if (p.gain.surely_above(kOverlapPays) && (sure == nullptr || p.gain.p50 > sure->gain.p50)) sure = &p;
    none = none && p.gain.surely_below(kOverlapPays);
  }
  if (best == nullptr) return "no measurements";
  if (sure != nullptr) return fmt::format("overlap is worthwhile on {}: {}", device, measured(*sure));
  if (none)
    return fmt::format("overlap is not worthwhile on {}: {} at best, {:.1f}× required", device, measured(*best),
                       kOverlapPays);
  return fmt::format(
      "not significant on {}: overlap gives {} at best, {:.1f}× required; increase `seconds` for a longer measurement",
      device, measured(*best), kOverlapPays);
}

}  // namespace brim::jobs
