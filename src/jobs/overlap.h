// SPDX-License-Identifier: Apache-2.0
// Does it pay to run two models at once? A verdict from repeated measurements, and none from noise.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "jobs/spread.h"

namespace brim::jobs {

constexpr double kOverlapPays = 1.1;  // less is not worth a second stream

struct OverlapPoint {
  int64_t tokens = 0;  // per batch
  Spread gain;         // speed at once over speed in turn, one value per round
};

// One sentence: it pays, it does not, or what was measured says neither. `device`: "this card", "this CPU".
std::string overlap_verdict(const std::vector<OverlapPoint>& points, const std::string& device);

}  // namespace brim::jobs
