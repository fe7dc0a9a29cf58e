// SPDX-License-Identifier: Apache-2.0
// Helpers for lane tests on CPU and CUDA: a small store of series with gaps, lanes with different cutoffs, and the
// outputs of window_gather.
#pragma once
#include <utility>

#include "ops/testing.h"
#include "ops/window_gather.h"

namespace brim::ops::testing {

struct TestStore {
  std::vector<int64_t> lengths;
  HostTensor values, begin;
  int64_t n() const { return static_cast<int64_t>(lengths.size()); }

  // Random walks around 100 with a few missing points.
  TestStore(std::vector<int64_t> sizes, uint64_t seed) : lengths(std::move(sizes)) {
    std::vector<int64_t> begins{0};
    for (const int64_t length : lengths) begins.push_back(begins.back() + length);
    begin = long_tensor(begins);
    values = random_tensor(tensor::DType::f32, {begins.back()}, seed);
    float* x = values.as<float>();
    for (int64_t t = 1; t < begins.back(); ++t) x[t] += x[t - 1];
    for (int64_t t = 0; t < begins.back(); ++t) x[t] = t % 13 == 5 ? NAN : x[t] + 100;
  }
};

inline HostTensor spec_tensor(const std::vector<LaneSpec>& lanes) {
  HostTensor t(tensor::DType::u8, {static_cast<int64_t>(lanes.size()), static_cast<int64_t>(sizeof(LaneSpec))});
  std::memcpy(t.view().data, lanes.data(), lanes.size() * sizeof(LaneSpec));
  return t;
}

// Lane g sees all but the last g + 1 points of a series and, except for lane 0, not the first two.
struct TestLanes {
  std::vector<LaneSpec> lanes;
  bool every_window;
  HostTensor specs, end, first, weights;
  TestLanes(std::vector<LaneSpec> all, const TestStore& store, Sampling sampling)
      : lanes(std::move(all)), every_window(sampling == Sampling::windows), specs(spec_tensor(lanes)) {
    const auto G = static_cast<int64_t>(lanes.size()), n = store.n();
    end = HostTensor(tensor::DType::i32, {G, n});
    first = HostTensor(tensor::DType::i32, {G, n});
    weights = HostTensor(tensor::DType::i64, {G, n + 1});
    for (int64_t g = 0; g < G; ++g) {
      for (int64_t s = 0; s < n; ++s) {
        end.as<int32_t>()[g * n + s] =
            static_cast<int32_t>(std::max<int64_t>(store.lengths[static_cast<size_t>(s)] - g - 1, 0));
        first.as<int32_t>()[g * n + s] = g == 0 ? 0 : 2;
      }
      const std::vector<int64_t> row = window_weights(first.as<int32_t>() + g * n, end.as<int32_t>() + g * n, n,
                                                      lanes[static_cast<size_t>(g)].history, sampling);
      std::copy(row.begin(), row.end(), weights.as<int64_t>() + g * (n + 1));
    }
  }
};

struct Gathered {
  HostTensor r, r_half, mask, y, level, scale, season_scale, chosen;
  Gathered(size_t lanes, int64_t B, int64_t L, int64_t H) {
    const auto G = static_cast<int64_t>(lanes);
    using tensor::DType;
    r = HostTensor(DType::f32, {G, B, L});
    r_half = HostTensor(DType::bf16, {G, B, L});
    mask = HostTensor(DType::u8, {G, B, L});
    y = HostTensor(DType::f32, {G, B, H});
    level = HostTensor(DType::f32, {G, B});
    scale = HostTensor(DType::f32, {G, B});
    season_scale = HostTensor(DType::f32, {G, B});
    chosen = HostTensor(DType::i32, {G, B, 2});
  }
  WindowGatherArgs args(const TestStore& store, const TestLanes& lanes) const {
    WindowGatherArgs a{.values = store.values,
                       .begin = store.begin,
                       .end = lanes.end,
                       .first = lanes.first,
                       .weights = lanes.weights,
                       .lanes = lanes.specs,
                       .r = r,
                       .r_half = r_half,
                       .mask = mask,
                       .y = y,
                       .level = level,
                       .scale = scale,
                       .season_scale = season_scale,
                       .chosen = chosen};
    a.every_window = lanes.every_window;
    return a;
  }
};

}  // namespace brim::ops::testing
