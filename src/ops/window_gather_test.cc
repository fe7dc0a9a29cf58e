// SPDX-License-Identifier: Apache-2.0
#include "ops/window_gather.h"

#include "ops/lane_testing.h"

namespace brim::ops {

using device::CpuStream;
using tensor::DType;

namespace {
using namespace brim::ops::testing;

// A window computed from the definition, in fp64.
struct Window64 {
  std::vector<double> r, y;
  std::vector<int> mask;
  double level = 0, scale = 1, season_scale = 0;
  Window64(const TestStore& store, const LaneSpec& lane, int32_t first, int32_t end, int32_t series, int32_t cut,
           int64_t L, int64_t H)
      : r(L), mask(L) {
    const float* x = store.values.as<float>() + store.begin.as<int64_t>()[series];
    const auto there = [&](int64_t j) {
      return j < lane.lookback && cut - 1 - j >= first && !std::isnan(x[cut - 1 - j]);
    };
    int64_t newest = -1, count = 0;
    double sum = 0;
    for (int64_t j = L - 1; j >= 0; --j)
      if (there(j)) newest = j;
    if (newest >= 0) level = x[cut - 1 - newest];
    for (int64_t j = 0; j < L; ++j)
      if (there(j)) {
        mask[j] = 1;
        sum += std::fabs(x[cut - 1 - j] - level);
        ++count;
      }
    const bool scaled = lane.scaler == WindowScaler::last;
    if (scaled && count > 0) scale = sum / static_cast<double>(count) + 1e-3 * std::fabs(level) + 1e-8;
    for (int64_t j = 0; j < L; ++j)
      if (mask[j] != 0) r[j] = scaled ? (x[cut - 1 - j] - level) / scale : x[cut - 1 - j];
    for (int64_t h = 0; h < H; ++h) y.push_back(cut + h < end ? x[cut + h] : NAN);
    double apart = 0, pairs = 0;
    for (int64_t j = 0; j + lane.season < lane.lookback; ++j) {
      if (scaled && !(there(j) && there(j + lane.season))) continue;
      apart +=
          std::fabs((there(j) ? x[cut - 1 - j] : 0.0) - (there(j + lane.season) ? x[cut - 1 - j - lane.season] : 0.0));
      ++pairs;
    }
    season_scale = pairs == 0 ? 0 : apart / pairs;
  }
};

TEST(WindowGather, MatchesFp64) {
  const TestStore store({2, 40, 3, 200, 77}, 3);
  for_each_cpu_stream([&](CpuStream& stream) {
    for (const int64_t L : {8, 40}) {
      const TestLanes lanes({{.seed = 1, .lookback = 5, .history = 30, .season = 2},
                             {.seed = 2, .lookback = static_cast<int32_t>(L), .history = 1000, .season = 4},
                             {.seed = 3, .lookback = 8, .history = 9, .scaler = WindowScaler::none}},
                            store, Sampling::series);
      const Gathered got(lanes.lanes.size(), 19, L, 6);
      WindowGatherArgs args = got.args(store, lanes);
      window_gather(stream, args);
      for (int64_t g = 0; g < 3; ++g)
        for (int64_t i = 0; i < 19; ++i) {
          const int64_t row = g * 19 + i;
          const int32_t series = got.chosen.as<int32_t>()[2 * row], cut = got.chosen.as<int32_t>()[2 * row + 1];
          const int32_t first = lanes.first.as<int32_t>()[g * store.n() + series],
                        end = lanes.end.as<int32_t>()[g * store.n() + series];
          ASSERT_GE(cut, first + 1);
          ASSERT_LT(cut, end);
          ASSERT_GE(cut, end - lanes.lanes[static_cast<size_t>(g)].history);
          const Window64 want(store, lanes.lanes[static_cast<size_t>(g)], first, end, series, cut, L, 6);
          // A sum of 40 terms and four more roundings; the difference to the level is exact to one.
          const double eps = 24 * kEps32;
          EXPECT_EQ(got.level.as<float>()[row], static_cast<float>(want.level));
          EXPECT_NEAR(got.scale.as<float>()[row], want.scale, eps * want.scale);
          EXPECT_NEAR(got.season_scale.as<float>()[row], want.season_scale, eps * want.season_scale + 1e-9);
          for (int64_t j = 0; j < L; ++j) {
            EXPECT_EQ(got.mask.as<uint8_t>()[row * L + j], want.mask[j]);
            EXPECT_NEAR(got.r.as<float>()[row * L + j], want.r[j], eps * std::fabs(want.r[j]));
            EXPECT_EQ(to_float(got.r_half.as<tensor::bf16_t>()[row * L + j]),
                      to_float(tensor::to_bf16(got.r.as<float>()[row * L + j])));
          }
          for (int64_t h = 0; h < 6; ++h) {
            const float y = got.y.as<float>()[row * 6 + h];
            EXPECT_TRUE(std::isnan(want.y[h]) ? std::isnan(y) : y == static_cast<float>(want.y[h]));
          }
        }
    }
  });
}

// Data at or after a lane's end, or before its beginning, changes no byte of its windows.
TEST(WindowGather, NeverReadsPastTheEndOfALane) {
  TestStore store({50, 60}, 4);
  CpuStream stream(nullptr, device::best_isa());
  const TestLanes lanes({{.seed = 1, .lookback = 16, .history = 100}}, store, Sampling::series);
  const auto run = [&] {
    Gathered got(1, 64, 16, 5);
    window_gather(stream, got.args(store, lanes));
    return got;
  };
  const Gathered before = run();
  for (int64_t s = 0; s < store.n(); ++s) {
    float* x = store.values.as<float>() + store.begin.as<int64_t>()[s];
    for (int64_t t = 0; t < store.lengths[static_cast<size_t>(s)]; ++t)
      if (t < lanes.first.as<int32_t>()[s] || t >= lanes.end.as<int32_t>()[s]) x[t] = t % 2 == 0 ? 1e30f : NAN;
  }
  const Gathered after = run();
  for (const auto member : {&Gathered::r, &Gathered::y, &Gathered::level, &Gathered::scale, &Gathered::season_scale}) {
    const HostTensor &a = before.*member, &b = after.*member;
    EXPECT_EQ(std::memcmp(a.view().data, b.view().data, static_cast<size_t>(a.view().bytes())), 0);
  }
}

// Rows, steps and lanes are drawn independently: a part of a batch equals that part of the whole, and a lane alone
// equals the lane among others.
TEST(WindowGather, IsAPureFunctionOfSeedStepAndRow) {
  const TestStore store({30, 40, 50}, 5);
  CpuStream stream(nullptr, device::best_isa());
  const LaneSpec a{.seed = 7, .lookback = 12, .history = 50}, b{.seed = 8, .lookback = 16, .history = 50};
  const TestLanes both({b, a}, store, Sampling::series), alone({a}, store, Sampling::series);
  const HostTensor step = long_tensor({12});
  const Gathered two(2, 20, 16, 3), one(1, 7, 16, 3), next(1, 7, 16, 3);
  WindowGatherArgs args = two.args(store, both);
  args.step = step;
  window_gather(stream, args);
  // The lane keeps its own cutoffs.
  WindowGatherArgs part = one.args(store, alone);
  part.end = both.end.view().slice_rows(1, 2);
  part.first = both.first.view().slice_rows(1, 2);
  part.weights = both.weights.view().slice_rows(1, 2);
  part.step = step;
  part.first_row = 9;
  window_gather(stream, part);
  EXPECT_EQ(std::memcmp(one.r.view().data, two.r.as<float>() + (20 + 9) * 16, 7 * 16 * 4), 0);
  EXPECT_EQ(std::memcmp(one.chosen.view().data, two.chosen.as<int32_t>() + (20 + 9) * 2, 7 * 2 * 4), 0);
  *step.as<int64_t>() = 13;
  part.r = next.r;
  window_gather(stream, part);
  EXPECT_NE(std::memcmp(one.r.view().data, next.r.view().data, 7 * 16 * 4), 0);
}

TEST(WindowGather, UsesGivenPicks) {
  const TestStore store({30, 40}, 5);
  CpuStream stream(nullptr, device::best_isa());
  const TestLanes lanes({{.seed = 7, .lookback = 8, .history = 50}}, store, Sampling::series);
  const Gathered got(1, 2, 8, 3);
  WindowGatherArgs args = got.args(store, lanes);
  const HostTensor picks = int_tensor({1, 17, 0, lanes.end.as<int32_t>()[0]});
  args.picks = picks.view().reshape({1, 2, 2});
  args.weights = {};
  window_gather(stream, args);
  EXPECT_EQ(got.chosen.as<int32_t>()[0], 1);
  EXPECT_EQ(got.chosen.as<int32_t>()[1], 17);
  EXPECT_TRUE(std::isnan(got.y.as<float>()[3]));  // nothing after the end
}

// χ² of 200,000 draws: the mean of the statistic is its degrees of freedom df, its standard deviation √(2 df); six
// standard deviations are allowed.
TEST(WindowGather, DrawsAreUniform) {
  const std::vector<int32_t> ends = {2, 30, 7, 1, 90, 33, 4, 58};
  for (const Sampling sampling : {Sampling::series, Sampling::windows}) {
    const auto n = static_cast<int64_t>(ends.size());
    const int32_t history = 40;
    const std::vector<int64_t> weights = window_weights(nullptr, ends.data(), n, history, sampling);
    std::vector<std::vector<double>> expected, seen;
    double cells = 0;
    for (const int32_t end : ends) {
      const int64_t cuts = end - lowest_cut(0, end, history);
      expected.emplace_back(std::max<int64_t>(cuts, 0));
      seen.emplace_back(expected.back().size());
      cells += static_cast<double>(expected.back().size());
    }
    const double draws = 200000;
    const LaneSpec lane{.seed = 99, .lookback = 8, .history = history};
    for (int64_t step = 0; step < 200; ++step)
      for (int64_t row = 0; row < 1000; ++row) {
        const WindowPick pick =
            window_pick(lane, weights.data(), nullptr, ends.data(), n, step, row, sampling == Sampling::windows);
        ++seen[static_cast<size_t>(pick.series)].at(
            static_cast<size_t>(pick.cut - lowest_cut(0, ends[static_cast<size_t>(pick.series)], history)));
      }
    double statistic = 0;
    for (size_t s = 0; s < seen.size(); ++s)
      for (const double count : seen[s]) {
        const double want =
            sampling == Sampling::windows ? draws / cells : draws / 7 / static_cast<double>(seen[s].size());
        statistic += (count - want) * (count - want) / want;
      }
    const double freedom = cells - 1;
    EXPECT_NEAR(statistic, freedom, 6 * std::sqrt(2 * freedom)) << static_cast<int>(sampling);
  }
}

TEST(WindowGather, ScaledDownIsTheUpperHalfOfTheProduct) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    const uint64_t a = random(), b = random() >> (i % 64);
    EXPECT_EQ(scaled_down(a, b), static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64));
  }
}

}  // namespace
}  // namespace brim::ops
