// SPDX-License-Identifier: Apache-2.0
// Forecasts drawn towards the last value: ŷ = l + λ·(ŷ − l), a λ in [0, 1] for each step ahead. On series that wander,
// as prices do, λ near 0 says that the last value is the best forecast there is. λ is fitted on windows whose outcome
// was known at the cutoff, and on no others.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace brim::forecast {

class Shrinkage {
 public:
  explicit Shrinkage(int64_t horizon);

  // A window that was forecast and then seen: its last known step, its last value and its scale (errors of series of
  // different sizes are compared in it), what was forecast and what came (NaN where absent).
  void add(int64_t cutoff, double last_value, double scale, std::span<const double> forecast,
           std::span<const float> actual);

  // The λ of each step that make the mean of |error| ÷ scale least over windows known at `cutoff`; 1 where none is.
  std::vector<double> factors(int64_t cutoff) const;

 private:
  struct Move {
    int64_t seen;             // the step at which the outcome was known
    double forecast, actual;  // moves away from the last value, in scales
  };
  std::vector<std::vector<Move>> moves_;  // by step ahead
};

void shrink(std::span<double> forecast, double last_value, std::span<const double> factors);

}  // namespace brim::forecast
