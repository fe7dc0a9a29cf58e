// SPDX-License-Identifier: Apache-2.0
// N-BEATS on CUDA: compared with the CPU (which matches PyTorch), a lane in a wave compared with the lane alone, and a
// captured step compared with an eager one. Also runs on the emulator, which has no graph capture.
#include <gtest/gtest.h>

#include "device/cuda/testing.h"
#include "device/cuda_info.h"
#include "device/graph.h"
#include "forecast/nbeats_testing.h"
#include "forecast/wave.h"

namespace brim::forecast {
namespace {
using namespace brim::forecast::testing;
using ops::LaneSpec;
using ops::Precision;

class CudaNbeats : public ::testing::Test {
 protected:
  void SetUp() override {
    BRIM_NEEDS_GPU();
    gpu_ = device::open_cuda_device(0);
    emulated_ = cuda_info(*gpu_).name == "emulated";
  }
  // Small enough for the emulator; larger on a GPU.
  NbeatsShape shape() const {
    NbeatsShape s;
    s.horizon = 5;
    s.lookback = 20;
    s.layers = 2;
    const int64_t width = emulated_ ? 16 : 128;
    s.stacks = {{StackKind::generic, 2, width}, {StackKind::trend, 2, width, true}, {StackKind::seasonality, 1, width}};
    return s;
  }
  std::vector<LaneSpec> lanes() const {
    std::vector<LaneSpec> all;
    for (uint64_t g = 0; g < (emulated_ ? 3 : 16); ++g) {
      LaneSpec lane{.seed = 100 + g, .lookback = static_cast<int32_t>(10 + 5 * (g % 3)), .history = 40};
      lane.loss = static_cast<ops::ForecastLoss>((g + 2) % 7);
      all.push_back(lane);
    }
    return all;
  }
  NbeatsOptions options() const {
    NbeatsOptions o;
    o.windows = emulated_ ? 6 : 256;
    return o;
  }
  TestWave wave(device::Device& device, std::vector<LaneSpec> all, Precision precision) const {
    static const Walks walks({30, 50, 17, 80});
    return TestWave(device, shape(), std::move(all), {}, walks.values, walks.begin, options(), 1e-3f, precision);
  }

  std::unique_ptr<device::Device> gpu_;
  bool emulated_ = false;
};

TEST_F(CudaNbeats, MatchesTheCpu) {
  const auto cpu = device::open_cpu_device(1);
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    SCOPED_TRACE(ops::precision_name(precision));
    TestWave here = wave(*cpu, lanes(), Precision::fp32), there = wave(*gpu_, lanes(), precision);
    const int64_t steps = 3, G = here.state.lanes();
    for (int64_t i = 0; i < steps; ++i) {
      here.step();
      there.step();
      if (i > 0) continue;
      // bf16 rounds every operand to 2^-8 through a dozen products. Forecasts move by about 1 %, so up to 1 % of the
      // cells change the sign of an absolute error, each by twice its share of the gradient: 2 √0.01 of its norm, plus
      // half as much again for ReLU gates that flip.
      const double allowed = precision == Precision::fp32 ? 1e-4 : 0.3;
      for (int64_t g = 0; g < G; ++g) {
        const std::vector<float> want = here.state.gradients(*here.stream, g),
                                 got = there.state.gradients(*there.stream, g);
        double apart = 0, size = 0;
        for (size_t k = 0; k < want.size(); ++k) {
          apart += std::pow(static_cast<double>(got[k]) - want[k], 2);
          size += std::pow(static_cast<double>(want[k]), 2);
        }
        EXPECT_LE(std::sqrt(apart), allowed * std::sqrt(size)) << "lane " << g;
      }
    }
    const std::vector<float> want = here.state.losses(*here.stream, 0, steps),
                             got = there.state.losses(*there.stream, 0, steps);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(got[i], want[i], (precision == Precision::fp32 ? 1e-4 : 0.05) * std::fabs(want[i])) << i;
  }
}

// Series with a future, a past and a static column.
SeriesStore walks_with_covariates(const Walks& walks) {
  rows::SeriesTable table;
  table.numbered = true;
  table.values = walks.values;
  table.begin = walks.begin;
  const rows::CovariateKind kinds[] = {rows::CovariateKind::future, rows::CovariateKind::past,
                                       rows::CovariateKind::fixed};
  for (size_t c = 0; c < 3; ++c) {
    rows::CovariateValues& values = table.covariates.emplace_back();
    values.column = {std::string(1, static_cast<char>('a' + c)), kinds[c]};
    for (size_t i = 0; i + 1 < walks.begin.size(); ++i) {
      const int64_t count = c == 2 ? 1 : walks.begin[i + 1] - walks.begin[i];
      for (int64_t t = 0; t < count; ++t)
        values.values.push_back(static_cast<float>((static_cast<int64_t>(i + 3) * (t + 7)) % 11));
      values.begin.push_back(static_cast<int64_t>(values.values.size()));
    }
  }
  for (size_t i = 0; i + 1 < walks.begin.size(); ++i) {
    table.ids.push_back(std::to_string(i));
    table.first.push_back(1);
    table.last_row.emplace_back();
  }
  return SeriesStore(std::move(table));
}

TEST_F(CudaNbeats, CovariatesMatchTheCpu) {
  const SeriesStore series = walks_with_covariates(Walks({30, 50, 17, 80}));
  const CovariateSpec covariates = fit_covariates(series, {}, 10);
  const CovariateTable table = encode_covariates(covariates, series, 5);
  WaveSpec spec;
  spec.shape = shape();
  spec.shape.covariates = covariates.shape(5);
  spec.shape.stacks.insert(spec.shape.stacks.begin(), {StackKind::exogenous, 2, 16});
  spec.lanes = lanes();
  spec.options = options();
  spec.options.season_scale = true;
  spec.covariates = &table;
  const auto cpu = device::open_cpu_device(1);
  const auto losses = [&](device::Device& device, Precision precision) {
    spec.precision = precision;
    Wave wave(device, spec, series, {}, ops::Sampling::series, nullptr);
    NbeatsState& state = wave.state();
    std::vector<ops::AdamWRow> rows;
    for (int64_t step = 1; step <= 3; ++step)
      rows.insert(rows.end(), spec.lanes.size(), ops::adamw_row(1e-3f, 0.9f, 0.999f, 1e-8f, 0, step));
    state.put_rows(wave.stream(), 0, rows);
    wave.upload(
        [&](size_t g) { return draw_lane(spec.shape, state.layout(), spec.lanes[g].seed, spec.lanes[g].lookback); });
    state.refresh(wave.stream());
    for (int i = 0; i < 3; ++i) wave.step();
    return state.losses(wave.stream(), 0, 3);
  };
  const std::vector<float> want = losses(*cpu, Precision::fp32);
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    const std::vector<float> got = losses(*gpu_, precision);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(got[i], want[i], (precision == Precision::fp32 ? 1e-4 : 0.05) * std::fabs(want[i])) << i;
  }
}

TEST_F(CudaNbeats, LaneResultDoesNotDependOnTheWave) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    const std::vector<LaneSpec> all = lanes();
    TestWave together = wave(*gpu_, all, precision);
    for (int i = 0; i < 3; ++i) together.step();
    const std::vector<float> losses = together.state.losses(*together.stream, 0, 3);
    for (size_t g = 0; g < all.size(); g += emulated_ ? 2 : 1) {
      TestWave alone = wave(*gpu_, {all[g]}, precision);
      for (int i = 0; i < 3; ++i) alone.step();
      EXPECT_EQ(alone.state.download(*alone.stream, 0),
                together.state.download(*together.stream, static_cast<int64_t>(g)));
      const std::vector<float> own = alone.state.losses(*alone.stream, 0, 3);
      for (size_t i = 0; i < 3; ++i) EXPECT_EQ(own[i], losses[i * all.size() + g]) << g;
    }
  }
}

// Products of this size use the fastest algorithm for their number of lanes, which must give identical bits.
TEST_F(CudaNbeats, LargeLaneResultDoesNotDependOnTheWave) {
  if (emulated_) GTEST_SKIP() << "too large for the emulator";
  NbeatsShape large = shape();
  large.layers = 3;
  large.stacks = {{StackKind::generic, 2, 512}};
  NbeatsOptions many;
  many.windows = 1024;
  const Walks walks({30, 50, 17, 80});
  const auto wave_of = [&](std::vector<LaneSpec> all) {
    return TestWave(*gpu_, large, std::move(all), {}, walks.values, walks.begin, many, 1e-3f, Precision::bf16);
  };
  std::vector<LaneSpec> all = lanes();
  all.resize(18, all[1]);
  TestWave together = wave_of(all);
  for (int i = 0; i < 3; ++i) together.step();
  for (const size_t g : {size_t{0}, size_t{7}, size_t{17}}) {
    TestWave alone = wave_of({all[g]});
    for (int i = 0; i < 3; ++i) alone.step();
    EXPECT_EQ(alone.state.download(*alone.stream, 0),
              together.state.download(*together.stream, static_cast<int64_t>(g)));
  }
}

TEST_F(CudaNbeats, CapturedStepMatchesEagerStep) {
  TestWave captured = wave(*gpu_, lanes(), Precision::bf16);
  if (emulated_ || !can_capture(*captured.stream)) GTEST_SKIP() << "graph capture is not available";
  TestWave plain = wave(*gpu_, lanes(), Precision::bf16);
  const int64_t steps = 6;
  captured.step();  // an eager step selects the matmul algorithms
  begin_capture(*captured.stream);
  captured.step();
  const auto graph = end_capture(*captured.stream);
  for (int64_t i = 1; i < steps; ++i) graph->launch(*captured.stream);
  for (int64_t i = 0; i < steps; ++i) plain.step();
  EXPECT_EQ(captured.state.losses(*captured.stream, 0, steps), plain.state.losses(*plain.stream, 0, steps));
  for (int64_t g = 0; g < captured.state.lanes(); ++g)
    EXPECT_EQ(captured.state.download(*captured.stream, g), plain.state.download(*plain.stream, g)) << g;
}

}  // namespace
}  // namespace brim::forecast
