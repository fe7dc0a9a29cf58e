// SPDX-License-Identifier: Apache-2.0
// Nelder-Mead minimisation within bounds, with coefficients adapted to the number of parameters (Gao and Han, 2012).
// Derivative-free, for a few dozen parameters at most.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

namespace brim::forecast {

struct NelderMeadOptions {
  int iterations = 1000;
  double tolerance = 1e-4;  // stop if the standard deviation of the values in the simplex is below this
};

// Keeps its buffers, so that one object per thread minimises without allocating.
class NelderMead {
 public:
  // Replaces `x` by the best point found and returns its value. `lower` and `upper` bound every parameter; f may return
  // infinity, but not NaN.
  template <class F>
  double minimize(std::vector<double>& x, std::span<const double> lower, std::span<const double> upper, F&& f,
                  const NelderMeadOptions& options = {}) {
    start(x, lower, upper);
    for (size_t i = 0; i <= n_; ++i) values_[i] = f(vertex(i));
    for (int k = 0; k < options.iterations && spread() >= options.tolerance; ++k) step(lower, upper, f);
    const size_t best = rank().best;
    x.assign(vertex(best).begin(), vertex(best).end());
    return values_[best];
  }

 private:
  struct Rank {
    size_t best, worst;
    double second_worst;
  };

  std::span<double> vertex(size_t i) { return std::span(points_).subspan(i * n_, n_); }

  void start(std::vector<double>& x, std::span<const double> lower, std::span<const double> upper) {
    constexpr double kStep = 0.05, kFromZero = 1e-4;
    n_ = x.size();
    points_.resize((n_ + 1) * n_);
    values_.resize(n_ + 1);
    sum_.assign(n_, 0);
    for (std::vector<double>* buffer : {&center_, &reflected_, &tried_}) buffer->resize(n_);
    for (size_t j = 0; j < n_; ++j) x[j] = std::clamp(x[j], lower[j], upper[j]);
    for (size_t i = 0; i <= n_; ++i) {
      std::copy(x.begin(), x.end(), vertex(i).begin());
      if (i < n_) {
        const double moved = x[i] == 0 ? kFromZero : x[i] * (1 + kStep);
        vertex(i)[i] = std::clamp(moved, lower[i], upper[i]);
      }
      for (size_t j = 0; j < n_; ++j) sum_[j] += vertex(i)[j];
    }
  }

  double spread() const {
    double mean = 0, squares = 0;
    for (const double v : values_) mean += v / static_cast<double>(values_.size());
    if (!std::isfinite(mean)) return HUGE_VAL;
    for (const double v : values_) squares += (v - mean) * (v - mean);
    return std::sqrt(squares / static_cast<double>(values_.size()));
  }

  Rank rank() const {
    Rank r{0, 0, -HUGE_VAL};
    for (size_t i = 1; i <= n_; ++i) {
      if (values_[i] < values_[r.best]) r.best = i;
      if (values_[i] >= values_[r.worst]) r.worst = i;
    }
    for (size_t i = 0; i <= n_; ++i)
      if (i != r.worst) r.second_worst = std::max(r.second_worst, values_[i]);
    return r;
  }

  // `into` = center + factor · (from − center), within the bounds.
  void move(std::vector<double>& into, double factor, std::span<const double> from, std::span<const double> lower,
            std::span<const double> upper) const {
    for (size_t j = 0; j < n_; ++j)
      into[j] = std::clamp(center_[j] + factor * (from[j] - center_[j]), lower[j], upper[j]);
  }

  void replace(size_t i, const std::vector<double>& point, double value) {
    const auto old = vertex(i);
    for (size_t j = 0; j < n_; ++j) {
      sum_[j] += point[j] - old[j];
      old[j] = point[j];
    }
    values_[i] = value;
  }

  template <class F>
  void step(std::span<const double> lower, std::span<const double> upper, F& f) {
    const auto n = static_cast<double>(n_);
    const double expand = 1 + 2 / n, contract = 0.75 - 1 / (2 * n);
    const Rank r = rank();
    const double best = values_[r.best], worst = values_[r.worst];
    const auto last = vertex(r.worst);
    for (size_t j = 0; j < n_; ++j) center_[j] = (sum_[j] - last[j]) / n;
    move(reflected_, -1, last, lower, upper);
    const double value = f(std::span<const double>(reflected_));
    if (value >= best && value < r.second_worst) return replace(r.worst, reflected_, value);
    if (value < best) {
      move(tried_, expand, reflected_, lower, upper);
      const double further = f(std::span<const double>(tried_));
      return further < value ? replace(r.worst, tried_, further) : replace(r.worst, reflected_, value);
    }
    const bool outside = value < worst;
    move(tried_, outside ? contract : -contract, reflected_, lower, upper);
    const double nearer = f(std::span<const double>(tried_));
    if (outside ? nearer <= value : nearer < worst) return replace(r.worst, tried_, nearer);
    shrink(r.best, lower, upper, f);
  }

  template <class F>
  void shrink(size_t best, std::span<const double> lower, std::span<const double> upper, F& f) {
    const double factor = 1 - 1 / static_cast<double>(n_);
    const auto to = vertex(best);
    std::fill(sum_.begin(), sum_.end(), 0);
    for (size_t i = 0; i <= n_; ++i) {
      const auto own = vertex(i);
      for (size_t j = 0; j < n_; ++j) {
        if (i != best) own[j] = std::clamp(to[j] + factor * (own[j] - to[j]), lower[j], upper[j]);
        sum_[j] += own[j];
      }
      if (i != best) values_[i] = f(std::span<const double>(own));
    }
  }

  size_t n_ = 0;
  std::vector<double> points_, values_, sum_, center_, reflected_, tried_;
};

}  // namespace brim::forecast
