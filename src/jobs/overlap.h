// SPDX-License-Identifier: Apache-2.0
// Decides from repeated measurements whether running two models concurrently pays off. Gives no verdict if the
// measurements are too noisy.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "jobs/spread.h"

namespace brim::jobs {

constexpr double kOverlapPays = 1.1;  // smaller gains do not justify a second stream

struct OverlapPoint {
  int64_t tokens = 0;  // per batch
  Spread gain;         // concurrent speed divided by sequential speed, one value per round
};

// One sentence: it pays off, it does not, or the measurements are inconclusive. `device`: "this GPU", "this CPU".
std::string overlap_verdict(const std::vector<OverlapPoint>& points, const std::string& device);

}  // namespace brim::jobs
