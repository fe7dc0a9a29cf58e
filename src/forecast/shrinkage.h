// SPDX-License-Identifier: Apache-2.0
// Shrinks forecasts towards the last value: ŷ = l + λ·(ŷ − l), with λ in [0, 1] per step ahead. For random walks such
// as prices, λ near 0 means that the last value is the best forecast. λ is fitted only on windows with outcomes known
// at the cutoff.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace brim::forecast {

class Shrinkage {
 public:
  explicit Shrinkage(int64_t horizon);

  // Adds a forecast window with a known outcome: its last known step, its last value, its scale (errors are divided by
  // it to make series comparable), the forecast and the actual values (NaN if missing).
  void add(int64_t cutoff, double last_value, double scale, std::span<const double> forecast,
           std::span<const float> actual);

  // λ per step that minimises the mean of |error| ÷ scale over windows known at `cutoff`; 1 if there are none.
  std::vector<double> factors(int64_t cutoff) const;

 private:
  struct Move {
    int64_t seen;             // step at which the outcome became known
    double forecast, actual;  // difference from the last value, in units of the scale
  };
  std::vector<std::vector<Move>> moves_;  // by step ahead
};

void shrink(std::span<double> forecast, double last_value, std::span<const double> factors);

}  // namespace brim::forecast
