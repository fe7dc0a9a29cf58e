// SPDX-License-Identifier: Apache-2.0
// N-BEATS compared with PyTorch in fp64 (tests/data/forecast/nbeats.json), and lanes compared with each other.
#include "forecast/nbeats.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "forecast/nbeats_testing.h"

namespace brim::forecast {
namespace {
using namespace brim::forecast::testing;
using ops::LaneSpec;
using Json = nlohmann::json;

const std::unique_ptr<device::Device>& cpu_device() {
  static const auto opened = device::open_cpu_device(1);
  return opened;
}

ops::ForecastLoss loss_named(const std::string& name) {
  constexpr const char* names[] = {"smape", "mape", "mase", "mae", "mse", "huber", "quantile"};
  for (int i = 0; i < 7; ++i)
    if (name == names[i]) return static_cast<ops::ForecastLoss>(i);
  throw std::runtime_error(name);
}

TEST(Nbeats, MatchesPyTorch) {
  std::ifstream file(std::string(BRIM_SOURCE_DIR) + "/tests/data/forecast/nbeats.json");
  const Json golden = Json::parse(file);
  std::vector<float> values;
  for (const Json& v : golden["values"]) values.push_back(v.is_null() ? NAN : v.get<float>());
  std::vector<int64_t> begin{0};
  for (const Json& n : golden["lengths"]) begin.push_back(begin.back() + n.get<int64_t>());
  ASSERT_EQ(golden["cases"].size(), 4U);
  for (const Json& c : golden["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    NbeatsShape shape;
    shape.horizon = c["horizon"];
    shape.lookback = c["lookback"];
    shape.layers = c["layers"];
    shape.first_relu = c["first_relu"];
    const std::vector<float> quantiles = c["quantiles"];
    shape.quantiles = std::max<int64_t>(1, static_cast<int64_t>(quantiles.size()));
    for (const Json& s : c["stacks"]) {
      const std::string type = s["type"];
      const StackKind kind = type == "generic" ? StackKind::generic
                             : type == "trend" ? StackKind::trend
                                               : StackKind::seasonality;
      shape.stacks.push_back({kind, s["blocks"], s["width"], s["shared"]});
    }
    LaneSpec lane{.seed = c["seed"], .lookback = c["lookback"], .history = c["history"], .season = c["season"]};
    lane.loss = loss_named(c["loss"]);
    lane.scaler = c["scaler"] == "last" ? ops::WindowScaler::last : ops::WindowScaler::none;
    NbeatsOptions options;
    options.windows = golden["windows"];
    options.max_grad_norm = golden["max_grad_norm"];
    TestWave wave(*cpu_device(), shape, {lane}, quantiles, values, begin, options, golden["learning_rate"]);

    std::vector<int32_t> picks;
    for (const Json& p : c["picks"])
      for (const Json& v : p) picks.push_back(v);
    const std::vector<float> forecasts = wave.predict(picks);
    ASSERT_EQ(forecasts.size(), c["forecasts"].size());
    for (size_t i = 0; i < forecasts.size(); ++i)
      EXPECT_NEAR(forecasts[i], c["forecasts"][i].get<double>(),
                  1e-5 * std::max(1.0, std::fabs(c["forecasts"][i].get<double>())));

    wave.step();
    const std::vector<float> grad = wave.state.gradients(*wave.stream, 0);
    size_t compared = 0;
    for (const NbeatsParam& p : wave.state.layout().params) {
      const Json& want = c["gradients"].at(p.name);
      const NbeatsSize size = true_size(shape, p, lane.lookback);
      ASSERT_EQ(static_cast<int64_t>(want.size()), size.rows * size.cols) << p.name;
      double most = 0;
      for (const Json& v : want) most = std::max(most, std::fabs(v.get<double>()));
      for (int64_t row = 0; row < size.rows; ++row)
        for (int64_t col = 0; col < size.cols; ++col, ++compared)
          EXPECT_NEAR(grad[static_cast<size_t>(p.offset + padded_index(shape, p, lane.lookback, row, col))],
                      want[static_cast<size_t>(row * size.cols + col)].get<double>(), 1e-5 * most + 1e-9)
              << p.name << " " << row << " " << col;
    }
    EXPECT_GT(compared, 1000U);

    const auto steps = golden["steps"].get<int64_t>();
    while (wave.done < steps) wave.step();
    const std::vector<float> losses = wave.state.losses(*wave.stream, 0, steps);
    for (int64_t i = 0; i < steps; ++i) {
      const double want = c["losses"][static_cast<size_t>(i)];
      EXPECT_NEAR(losses[static_cast<size_t>(i)], want, 1e-4 * want) << "step " << i;
    }
  }
}

NbeatsShape small_shape(int64_t lookback) {
  NbeatsShape shape;
  shape.horizon = 5;
  shape.lookback = lookback;
  shape.stacks = {{StackKind::generic, 2, 24, false}, {StackKind::trend, 2, 16, true}, {StackKind::seasonality, 1, 16}};
  return shape;
}
std::vector<LaneSpec> sixteen_lanes() {
  std::vector<LaneSpec> lanes;
  for (uint64_t g = 0; g < 16; ++g) {
    LaneSpec lane{.seed = 100 + g, .lookback = static_cast<int32_t>(10 + 5 * (g % 3)), .history = 40};
    lane.loss = static_cast<ops::ForecastLoss>(g % 7);
    if (g == 5) lane.scaler = ops::WindowScaler::none;
    lanes.push_back(lane);
  }
  return lanes;
}
NbeatsOptions small_options() {
  NbeatsOptions options;
  options.windows = 12;
  return options;
}

// Weights, gradients, losses and norms must be identical to the bit.
TEST(Nbeats, LaneResultDoesNotDependOnTheWave) {
  const Walks walks({30, 50, 17, 80});
  const NbeatsShape shape = small_shape(20);
  for (const ops::Precision precision : {ops::Precision::fp32, ops::Precision::bf16})
    for (const int threads : {1, 2}) {
      const auto device = device::open_cpu_device(threads);
      const std::vector<LaneSpec> lanes = sixteen_lanes();
      TestWave all(*device, shape, lanes, {}, walks.values, walks.begin, small_options(), 1e-2f, precision, threads);
      for (int i = 0; i < 4; ++i) all.step();
      const std::vector<float> losses = all.state.losses(*all.stream, 0, 4), norms = all.state.norms(*all.stream, 0, 4);
      for (size_t g = 0; g < lanes.size(); ++g) {
        TestWave one(*cpu_device(), shape, {lanes[g]}, {}, walks.values, walks.begin, small_options(), 1e-2f,
                     precision);
        for (int i = 0; i < 4; ++i) one.step();
        EXPECT_EQ(one.state.download(*one.stream, 0), all.state.download(*all.stream, static_cast<int64_t>(g))) << g;
        EXPECT_EQ(one.state.gradients(*one.stream, 0), all.state.gradients(*all.stream, static_cast<int64_t>(g)));
        const std::vector<float> alone = one.state.losses(*one.stream, 0, 4),
                                 sizes = one.state.norms(*one.stream, 0, 4);
        for (size_t i = 0; i < 4; ++i) {
          EXPECT_EQ(alone[i], losses[i * 16 + g]);
          EXPECT_EQ(sizes[i], norms[i * 16 + g]);
          EXPECT_GT(sizes[i], 0);
        }
      }
    }
}

// A lane padded to a longer lookback trains like an unpadded one, and padding stays zero.
TEST(Nbeats, PaddedLookbackMatchesUnpadded) {
  const Walks walks({30, 50, 17, 80});
  const NbeatsShape wide = small_shape(45), narrow = small_shape(10);
  const LaneSpec lane{.seed = 3, .lookback = 10, .history = 40};
  TestWave padded(*cpu_device(), wide, {lane}, {}, walks.values, walks.begin, small_options(), 1e-3f),
      plain(*cpu_device(), narrow, {lane}, {}, walks.values, walks.begin, small_options(), 1e-3f);
  for (int i = 0; i < 5; ++i) {
    padded.step();
    plain.step();
  }
  const std::vector<float> a = padded.state.losses(*padded.stream, 0, 5), b = plain.state.losses(*plain.stream, 0, 5);
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(a[i], b[i], 2e-5 * std::fabs(b[i]));
  std::vector<float> wide_slab = padded.state.download(*padded.stream, 0);
  const std::vector<float> slab = plain.state.download(*plain.stream, 0);
  for (size_t k = 0; k < padded.state.layout().params.size(); ++k) {
    const NbeatsParam &p = padded.state.layout().params[k], &q = plain.state.layout().params[k];
    const NbeatsSize size = true_size(wide, p, 10);
    for (int64_t row = 0; row < size.rows; ++row)
      for (int64_t col = 0; col < size.cols; ++col) {
        float& w = wide_slab[static_cast<size_t>(p.offset + padded_index(wide, p, 10, row, col))];
        // Five Adam steps of 1e-3, each of which turns gradient rounding into a small fraction of a step.
        EXPECT_NEAR(w, slab[static_cast<size_t>(q.offset + padded_index(narrow, q, 10, row, col))], 5e-5) << p.name;
        w = 0;
      }
  }
  for (const float rest : wide_slab) ASSERT_EQ(rest, 0);
}

TEST(Nbeats, PartsAndRecomputationDoNotChangeResults) {
  const Walks walks({30, 50, 17, 80});
  const NbeatsShape shape = small_shape(20);
  std::vector<LaneSpec> lanes = sixteen_lanes();
  lanes.resize(3);
  NbeatsOptions options = small_options();
  TestWave whole(*cpu_device(), shape, lanes, {}, walks.values, walks.begin, options, 1e-3f);
  options.recompute = true;
  TestWave again(*cpu_device(), shape, lanes, {}, walks.values, walks.begin, options, 1e-3f);
  options.parts = 3;
  TestWave parts(*cpu_device(), shape, lanes, {}, walks.values, walks.begin, options, 1e-3f);
  EXPECT_LT(again.plan.placement.peak_bytes, whole.plan.placement.peak_bytes);
  EXPECT_LT(parts.plan.placement.peak_bytes, again.plan.placement.peak_bytes);
  whole.step();
  again.step();
  parts.step();
  for (int64_t g = 0; g < 3; ++g) {
    const std::vector<float> want = whole.state.gradients(*whole.stream, g),
                             same = again.state.gradients(*again.stream, g),
                             sums = parts.state.gradients(*parts.stream, g);
    EXPECT_EQ(want, same);
    float most = 0;
    for (const float v : want) most = std::max(most, std::fabs(v));
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(sums[i], want[i], 1e-5f * most);
  }
}

// Both devices do the same work; the CUDA arena also includes cuBLASLt workspace.
TEST(Nbeats, PlansTheSameWorkForBothDevices) {
  for (const NbeatsTask task : {NbeatsTask::train, NbeatsTask::predict})
    for (const ops::Precision precision : {ops::Precision::fp32, ops::Precision::bf16}) {
      const NbeatsPlan cpu = plan_nbeats(small_shape(20), 4, task, small_options(), precision, device::DeviceKind::cpu,
                                         device::best_isa(), 1),
                       cuda = plan_nbeats(small_shape(20), 4, task, small_options(), precision,
                                          device::DeviceKind::cuda, device::Isa::generic, 1);
      EXPECT_GT(cpu.placement.peak_bytes, 0);
      EXPECT_GT(cuda.placement.peak_bytes, ops::kCudaLinearScratchBytes);
      EXPECT_EQ(cpu.flops, cuda.flops);
    }
}

// Stack contributions add up to the forecast, and the level of a window is its newest point.
TEST(Nbeats, ComponentsAddUpToTheForecast) {
  const Walks walks({30, 50, 17, 80});
  std::vector<LaneSpec> lanes = sixteen_lanes();
  lanes.resize(2);
  TestWave wave(*cpu_device(), small_shape(20), lanes, {}, walks.values, walks.begin, small_options(), 1e-3f);
  std::vector<std::vector<float>> parts;
  const std::vector<int32_t> picks = {0, 30, 1, 22, 3, 80};
  const std::vector<float> with = wave.predict(picks, &parts), without = wave.predict(picks);
  EXPECT_EQ(with, without);
  ASSERT_EQ(parts.size(), 4U);  // three stacks and the level
  EXPECT_EQ(parts[2], with);
  EXPECT_NE(parts[0], parts[1]);
  EXPECT_NE(parts[1], parts[2]);
  ASSERT_EQ(parts[3].size(), 6U);
  EXPECT_EQ(parts[3][1], walks.values[30 + 21]);
  EXPECT_EQ(parts[3][3 + 1], parts[3][1]);
}

// Lanes of one wave with different cutoffs: data after a lane's cutoff changes no byte of it, and shared tables draw
// the same windows as per-lane tables.
TEST(DeviceSeries, LaneSeesOnlyDataBeforeItsCutoff) {
  Walks walks({30, 50, 17, 80});
  const NbeatsShape shape = small_shape(20);
  std::vector<LaneSpec> lanes = sixteen_lanes();
  lanes.resize(2);
  std::vector<LaneCutoffs> cutoffs(2, whole_series(walks.begin));
  for (int32_t& end : cutoffs[0].end) end -= 6;
  cutoffs[0].first.assign(4, 1);
  const auto train = [&](bool own) {
    TestWave wave(*cpu_device(), shape, lanes, {}, walks.values, walks.begin, small_options(), 1e-3f);
    if (own) wave.series.set_lanes(*wave.stream, cutoffs, lanes, ops::Sampling::windows);
    for (int i = 0; i < 3; ++i) wave.step();
    return std::pair(wave.state.download(*wave.stream, 0), wave.state.download(*wave.stream, 1));
  };
  const auto before = train(true), whole = train(false);
  for (size_t s = 0; s < 4; ++s)
    for (int64_t t = walks.begin[s + 1] - 6; t < walks.begin[s + 1]; ++t)
      walks.values[static_cast<size_t>(t)] = t % 2 == 0 ? 1e30f : NAN;
  const auto after = train(true);
  EXPECT_EQ(after.first, before.first);
  EXPECT_NE(after.second, before.second);
  EXPECT_NE(whole.first, before.first);
}

TEST(DeviceSeries, SharedTablesDrawTheSameWindows) {
  const Walks walks({30, 50, 17, 80});
  const std::vector<LaneSpec> lanes = sixteen_lanes();
  TestWave wave(*cpu_device(), small_shape(20), lanes, {}, walks.values, walks.begin, small_options(), 1e-3f),
      other(*cpu_device(), small_shape(20), lanes, {}, walks.values, walks.begin, small_options(), 1e-3f);
  DeviceSeries shared(*cpu_device(), walks.values, walks.begin, 16, true);
  EXPECT_LT(DeviceSeries::bytes(177, 4, 16, true), DeviceSeries::bytes(177, 4, 16, false));
  shared.set_lanes(*wave.stream, {{whole_series(walks.begin)}}, lanes, ops::Sampling::series);
  std::swap(other.series, shared);
  wave.step();
  other.step();
  EXPECT_EQ(wave.state.download(*wave.stream, 9), other.state.download(*other.stream, 9));
  LaneCutoffs none = whole_series(walks.begin);
  std::fill(none.end.begin(), none.end.end(), 1);
  try {
    wave.series.set_lanes(*wave.stream, {{none}}, lanes, ops::Sampling::series);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::bad_data);
  }
}

TEST(Nbeats, InitialWeightsDependOnTheLaneOnly) {
  const NbeatsShape wide = small_shape(45), narrow = small_shape(12);
  const NbeatsLayout a = nbeats_layout(wide), b = nbeats_layout(narrow);
  const std::vector<float> x = draw_lane(wide, a, 9, 12), y = draw_lane(narrow, b, 9, 12);
  double sum = 0, count = 0;
  for (size_t k = 0; k < a.params.size(); ++k) {
    const NbeatsSize size = true_size(wide, a.params[k], 12);
    const double inputs = a.params[k].layer == 0 ? 12 : static_cast<double>(wide.stacks[a.params[k].stack].width);
    for (int64_t row = 0; row < size.rows; ++row)
      for (int64_t col = 0; col < size.cols; ++col) {
        const float v = x[static_cast<size_t>(a.params[k].offset + padded_index(wide, a.params[k], 12, row, col))];
        ASSERT_EQ(v, y[static_cast<size_t>(b.params[k].offset + padded_index(narrow, b.params[k], 12, row, col))]);
        ASSERT_LE(std::fabs(v) * std::sqrt(inputs), 1.0001);
        sum += v * v * inputs;
        ++count;
      }
  }
  EXPECT_NEAR(sum / count, 1.0 / 3, 0.02);  // variance of a uniform value in ±1
}

}  // namespace
}  // namespace brim::forecast
