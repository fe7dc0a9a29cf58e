// SPDX-License-Identifier: Apache-2.0
// Test cases of attention with tables of distances, and their fp64 reference, for both backends.
#pragma once
#include "ops/attention.h"
#include "ops/testing.h"

namespace brim::ops::testing {

struct DistanceCase {
  std::vector<int32_t> lengths;
  int64_t N = 2, D = 32;
  bool queries = true, keys = true;  // tables in use
  bool first = false;                // first_query_only
  float drop = 0;
  int64_t more = 0;  // rows of the tables beyond the longest sequence, on either side
  double scale = 1;  // standard deviation of the inputs

  std::string text() const {
    return fmt::format("lengths [{}] N {} D {} queries {} keys {} first {} drop {} more {} scale {}",
                       fmt::join(lengths, ","), N, D, queries, keys, first, drop, more, scale);
  }
  int64_t B() const { return static_cast<int64_t>(lengths.size()); }
  int64_t T() const { return starts_of(lengths).back(); }
  int64_t S() const { return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end()); }
  int64_t H() const { return N * D; }
  int64_t Tq() const { return first ? B() : T(); }
  int64_t reach() const { return std::max<int64_t>(0, S() - 1) + more; }
  int64_t rows() const { return 2 * reach() + 1; }
  Dropout dropout() const { return {.probability = drop, .seed = 11, .site = 2, .first_row = 3}; }
};

struct DistanceInputs {
  HostTensor q, kv, d_out, tables;  // [Tq,H], [T,2H], [Tq,H], [rows,2H]: for queries, for keys
  DistanceInputs(const DistanceCase& c, tensor::DType type, uint64_t seed = 5)
      : q(random_tensor(type, {c.Tq(), c.H()}, seed, c.scale, 0, 8)),
        kv(random_tensor(type, {c.T(), 2 * c.H()}, seed + 1, c.scale, 0, 16)),
        d_out(random_tensor(type, {c.Tq(), c.H()}, seed + 2, 1, 0, 8)),
        tables(random_tensor(type, {c.rows(), 2 * c.H()}, seed + 3, c.scale)) {}
};

// Values and absolute errors of the results; without gradients only the first two are filled.
struct Bounded {
  std::vector<double> value, error;
  explicit Bounded(int64_t n = 0) : value(static_cast<size_t>(n)), error(static_cast<size_t>(n)) {}
  void add(int64_t at, double term, double term_error) {
    value[static_cast<size_t>(at)] += term;
    error[static_cast<size_t>(at)] += term_error;
  }
  // `eps`, `least`: relative and absolute error of rounding the result.
  ::testing::AssertionResult matches(const std::vector<double>& got, double eps, double least = 1e-30) const {
    return close(got, value, [&](size_t i) { return error[i] + eps * std::fabs(value[i]) + least; });
  }
};

struct DistanceReference {
  Bounded out, lse, d_q, d_k, d_v, d_queries, d_keys;
  double loss = 0;  // sum of out * d_out

  // `eps`: rounding unit of the element type, for probabilities and gradients of scores before products; 0 for fp32.
  DistanceReference(const DistanceCase& c, const std::vector<double>& q, const std::vector<double>& kv,
                    const std::vector<double>& d_out, const std::vector<double>& tables, double eps)
      : c_(c), q_(q), kv_(kv), d_out_(d_out), tables_(tables), eps_(eps), starts_(starts_of(c.lengths)) {
    const int64_t H = c.H();
    out = d_q = Bounded(c.Tq() * H);
    lse = Bounded(c.Tq() * c.N);
    d_k = d_v = Bounded(c.T() * H);
    d_queries = d_keys = Bounded(c.rows() * H);
    for (int64_t b = 0; b < c.B(); ++b)
      for (int64_t i = 0; i < (c.first ? 1 : c.lengths[static_cast<size_t>(b)]); ++i)
        for (int64_t h = 0; h < c.N; ++h) add_query(b, i, h);
  }
  DistanceReference(const DistanceCase& c, const DistanceInputs& in, double eps)
      : DistanceReference(c, in.q.values(), in.kv.values(), in.d_out.values(), in.tables.values(), eps) {}

 private:
  double scale() const {
    return 1 / std::sqrt(static_cast<double>(c_.D) *
                         (1.0 + static_cast<double>(c_.queries) + static_cast<double>(c_.keys)));
  }
  static double at(const std::vector<double>& v, int64_t i) { return v[static_cast<size_t>(i)]; }
  struct Scores {
    std::vector<double> p;
    double unit = 0;  // relative error of a probability
  };
  Scores scores(int64_t b, int64_t i, int64_t h, int64_t row) {
    const int64_t n = c_.lengths[static_cast<size_t>(b)], H = c_.H();
    Scores s;
    double top = -INFINITY, total = 0, largest = 0;
    for (int64_t j = 0; j < n; ++j) {
      double dot = 0, size = 0;
      for (int64_t d = h * c_.D; d < (h + 1) * c_.D; ++d) {
        const double query = at(q_, row * H + d), key = at(kv_, (starts_[static_cast<size_t>(b)] + j) * 2 * H + d);
        const int64_t table = (c_.reach() + j - i) * 2 * H + d;
        const double by_key = c_.queries ? key * at(tables_, table) : 0,
                     by_query = c_.keys ? query * at(tables_, table + H) : 0;
        dot += query * key + by_key + by_query;
        size += std::fabs(query * key) + std::fabs(by_key) + std::fabs(by_query);
      }
      s.p.push_back(dot * scale());
      top = std::max(top, s.p.back());
      largest = std::max(largest, size * scale());
    }
    for (double& v : s.p) total += v = std::exp(v - top);
    for (double& v : s.p) v /= total;
    const auto D = static_cast<double>(c_.D);
    const double score_error = (std::sqrt(3 * D) + 8) * kEps32 * (1 + largest);
    s.unit = 2 * score_error + (std::sqrt(static_cast<double>(n)) + 24) * kEps32 +
             4 * kEps32 * (n == 0 ? 0 : std::fabs(top) + std::log(total)) + (eps_ > 0 ? 0x1p-20 : 0);
    const int64_t to = row * c_.N + h;
    lse.value[static_cast<size_t>(to)] = n == 0 ? -INFINITY : top + std::log(total);
    lse.error[static_cast<size_t>(to)] = s.unit;
    return s;
  }
  void add_query(int64_t b, int64_t i, int64_t h) {
    const int64_t n = c_.lengths[static_cast<size_t>(b)], H = c_.H(), first = starts_[static_cast<size_t>(b)];
    const int64_t row = c_.first ? b : first + i;
    const Scores s = scores(b, i, h, row);
    Dropout rows = c_.dropout();
    rows.first_row = (rows.first_row + row) * c_.N + h;
    std::vector<double> d_p(s.p.size()), d_p_size(s.p.size());
    double delta = 0, delta_size = 0;
    for (int64_t j = 0; j < n; ++j) {
      const double p = at(s.p, j), factor = dropout_factor(rows, 0, j), kept = p * factor;
      for (int64_t d = h * c_.D; d < (h + 1) * c_.D; ++d) {
        const double value = at(kv_, (first + j) * 2 * H + H + d), upper = at(d_out_, row * H + d),
                     term = value * upper * factor;
        out.add(row * H + d, kept * value, (s.unit + 1.01 * eps_) * kept * std::fabs(value));
        d_v.add((first + j) * H + d, kept * upper, (3 * s.unit + 1.01 * eps_) * kept * std::fabs(upper));
        loss += kept * value * upper;
        d_p[static_cast<size_t>(j)] += term;
        d_p_size[static_cast<size_t>(j)] += std::fabs(term);
      }
      delta += p * at(d_p, j);
      delta_size += p * at(d_p_size, j);
    }
    for (int64_t j = 0; j < n; ++j) {
      const double d_s = at(s.p, j) * (at(d_p, j) - delta) * scale();
      const double error =
          at(s.p, j) * scale() * (3 * s.unit * (at(d_p_size, j) + delta_size) + 3 * eps_ * delta_size) +
          1.01 * eps_ * std::fabs(d_s);
      for (int64_t d = h * c_.D; d < (h + 1) * c_.D; ++d) {
        const int64_t query = row * H + d, key = (first + j) * 2 * H + d, table = (c_.reach() + j - i) * 2 * H + d;
        const auto chain = [&](Bounded& to, int64_t index, double other) {
          to.add(index, d_s * other, error * std::fabs(other));
        };
        const int64_t own_key = (first + j) * H + d, own_table = (c_.reach() + j - i) * H + d;
        chain(d_q, query, at(kv_, key));
        chain(d_k, own_key, at(q_, query));
        if (c_.keys) {
          chain(d_q, query, at(tables_, table + H));
          chain(d_keys, own_table, at(q_, query));
        }
        if (c_.queries) {
          chain(d_k, own_key, at(tables_, table));
          chain(d_queries, own_table, at(kv_, key));
        }
      }
    }
  }

  const DistanceCase& c_;
  const std::vector<double>&q_, &kv_, &d_out_, &tables_;
  double eps_;
  std::vector<int32_t> starts_;
};

// Cases for every kernel: lengths around tiles, empty sequences, both tables and each alone, first queries, dropout.
inline std::vector<DistanceCase> distance_cases(std::vector<std::pair<int64_t, int64_t>> heads) {
  std::vector<DistanceCase> cases;
  size_t turn = 0;
  for (const auto& lengths : ragged_lengths())
    for (const auto& [N, D] : heads)
      for (const bool first : {false, true})
        for (const float drop : {0.0f, 0.2f}) {
          DistanceCase c{.lengths = lengths, .N = N, .D = D, .first = first, .drop = drop};
          ++turn;
          c.more = static_cast<int64_t>(turn % 3) * 5;
          c.queries = turn % 5 != 1;
          c.keys = turn % 5 != 3;
          cases.push_back(c);
        }
  return cases;
}

}  // namespace brim::ops::testing
