// SPDX-License-Identifier: Apache-2.0
// Greedy placement, best of several orders. Each order places tensors one by one into the lowest gap that is free
// during their lifetime. Largest-first is within a few percent of the bound on encoder graphs; the others win on some
// unusual ones.
#include "memory/placement.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace brim::memory {
namespace {

using Order = std::function<bool(const Lifetime&, const Lifetime&)>;

struct Attempt {
  std::vector<int64_t> offsets;
  int64_t peak = 0;
};

Attempt place_in_order(std::span<const Lifetime> lives, const Order& before) {
  std::vector<size_t> order(lives.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return before(lives[a], lives[b]); });
  Attempt attempt;
  attempt.offsets.assign(lives.size(), 0);
  std::vector<size_t> placed;  // sorted by offset
  for (const size_t i : order) {
    const int64_t need = align_up(lives[i].bytes);
    if (need == 0) continue;
    int64_t at = 0;
    for (const size_t j : placed) {
      if (lives[j].first > lives[i].last || lives[j].last < lives[i].first) continue;
      if (attempt.offsets[j] >= at + need) break;  // the gap before j fits
      at = std::max(at, attempt.offsets[j] + align_up(lives[j].bytes));
    }
    attempt.offsets[i] = at;
    attempt.peak = std::max(attempt.peak, at + need);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), i,
                                   [&](size_t a, size_t b) { return attempt.offsets[a] < attempt.offsets[b]; }),
                  i);
  }
  return attempt;
}

// Live bytes by tag at the peak.
TagBytes fullest_moment(std::span<const Lifetime> lives) {
  struct Edge {
    int64_t time, bytes;
    Tag tag;
  };
  std::vector<Edge> edges;
  for (const auto& l : lives) {
    edges.push_back({2 * l.first, align_up(l.bytes), l.tag});
    edges.push_back({2 * l.last + 1, -align_up(l.bytes), l.tag});
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.time < b.time; });
  TagBytes now, best;
  for (size_t i = 0; i < edges.size(); ++i) {
    now[edges[i].tag] += edges[i].bytes;
    const bool moment_complete = i + 1 == edges.size() || edges[i + 1].time != edges[i].time;
    if (moment_complete && now.total() > best.total()) best = now;
  }
  return best;
}

}  // namespace

Placement place(std::span<const Lifetime> lives) {
  const Order orders[] = {
      [](const Lifetime& a, const Lifetime& b) { return a.bytes > b.bytes; },
      [](const Lifetime& a, const Lifetime& b) { return a.last - a.first > b.last - b.first; },
      [](const Lifetime& a, const Lifetime& b) {
        return static_cast<double>(a.bytes) * static_cast<double>(a.last - a.first + 1) >
               static_cast<double>(b.bytes) * static_cast<double>(b.last - b.first + 1);
      },
      [](const Lifetime& a, const Lifetime& b) { return a.first < b.first; },
  };
  Placement result;
  result.at_peak = fullest_moment(lives);
  result.lower_bound_bytes = result.at_peak.total();
  Attempt best;
  for (const Order& order : orders) {
    Attempt attempt = place_in_order(lives, order);
    if (best.offsets.empty() || attempt.peak < best.peak) best = std::move(attempt);
    if (best.peak == result.lower_bound_bytes) break;
  }
  result.offsets = std::move(best.offsets);
  result.peak_bytes = best.peak;
  for (const auto& l : lives) result.bytes.push_back(l.bytes);
  result.at_peak[Tag::activations] += result.peak_bytes - result.lower_bound_bytes;
  return result;
}

}  // namespace brim::memory
