// SPDX-License-Identifier: Apache-2.0
// Test helper: a wave of lanes over a small store with state, arena and step, on any device.
#pragma once
#include <cmath>
#include <memory>
#include <utility>

#include "forecast/device_series.h"
#include "forecast/nbeats_state.h"

namespace brim::forecast::testing {

// Lanes with initial weights and a constant learning rate.
struct TestWave {
  device::Device& device;
  std::unique_ptr<device::Stream> stream;
  std::vector<ops::LaneSpec> lanes;
  ops::Precision precision;
  int threads;
  NbeatsOptions options;
  NbeatsState state;
  DeviceSeries series;
  NbeatsPlan plan;
  device::DeviceBuffer arena;
  int64_t done = 0;

  TestWave(device::Device& on, const NbeatsShape& shape, std::vector<ops::LaneSpec> all,
           const std::vector<float>& quantiles, const std::vector<float>& values, const std::vector<int64_t>& begin,
           const NbeatsOptions& settings, float rate, ops::Precision type = ops::Precision::fp32, int pool = 1)
      : device(on),
        stream(on.make_stream()),
        lanes(std::move(all)),
        precision(type),
        threads(pool),
        options(settings),
        state(on, shape, lanes, quantiles, NbeatsTask::train, type),
        series(on, values, begin, static_cast<int64_t>(lanes.size()), false) {
    series.set_lanes(*stream, {{whole_series(begin)}}, lanes, ops::Sampling::series);
    options.season_scale = true;
    std::vector<ops::AdamWRow> rows;
    for (int64_t step = 1; step <= kStepRows; ++step)
      rows.insert(rows.end(), lanes.size(), ops::adamw_row(rate, 0.9f, 0.999f, 1e-8f, 0, step));
    state.put_rows(*stream, 0, rows);
    for (size_t g = 0; g < lanes.size(); ++g)
      state.upload(*stream, static_cast<int64_t>(g),
                   draw_lane(shape, state.layout(), lanes[g].seed, lanes[g].lookback));
    state.refresh(*stream);
    plan = plan_nbeats(shape, state.lanes(), NbeatsTask::train, options, type, on.kind(), device::best_isa(), pool);
    arena = memory::Ledger::allocate(on, nullptr, memory::Tag::activations, "test", plan.placement.peak_bytes);
  }
  void step() {
    memory::PlannedAllocator memory(arena.data(), &plan.placement);
    model::Exec exec{*stream, memory, activation(), precision, threads};
    nbeats_train_step(exec, state.shape(), state.layout(), state.views(), series.source(), options);
    ++done;
  }
  // Forecasts of (series, cut) pairs, shared by all lanes, lane by lane. `parts` receives the level and the partial
  // forecasts after each stack.
  std::vector<float> predict(const std::vector<int32_t>& picks, std::vector<std::vector<float>>* parts = nullptr) {
    const auto B = static_cast<int64_t>(picks.size()) / 2;
    NbeatsOptions wanted;
    wanted.windows = B;
    wanted.components = parts != nullptr;
    const NbeatsPlan predict_plan = plan_nbeats(state.shape(), state.lanes(), NbeatsTask::predict, wanted, precision,
                                                device.kind(), device::best_isa(), threads);
    const auto room = memory::Ledger::allocate(
        device, nullptr, memory::Tag::activations, "test",
        predict_plan.placement.peak_bytes + memory::align_up(static_cast<int64_t>(picks.size() * sizeof(int32_t))));
    auto* given = static_cast<char*>(room.data()) + predict_plan.placement.peak_bytes;
    stream->copy(given, picks.data(), picks.size() * sizeof(int32_t));
    WindowSource source = series.source();
    source.picks = TensorView(given, tensor::DType::i32, {state.lanes(), B, 2});
    source.picks.stride[0] = 0;
    memory::PlannedAllocator memory(room.data(), &predict_plan.placement);
    model::Exec exec{*stream, memory, activation(), precision, threads};
    const NbeatsForecast forecast =
        nbeats_predict(exec, state.shape(), state.layout(), state.views(), source, B, wanted.components);
    const auto read = [&](const TensorView& v) {
      std::vector<float> values(static_cast<size_t>(v.elements()));
      stream->copy(values.data(), v.data, values.size() * sizeof(float));
      stream->synchronize();
      return values;
    };
    if (parts != nullptr) {
      for (const TensorView& after : forecast.after_stack) parts->push_back(read(after));
      parts->push_back(read(forecast.level));
    }
    return read(forecast.y_hat);
  }
  tensor::DType activation() const { return state.views().copy ? state.views().copy.dtype : tensor::DType::f32; }
};

// Random walks around 50 with a few missing points.
struct Walks {
  std::vector<float> values;
  std::vector<int64_t> begin{0};
  explicit Walks(const std::vector<int64_t>& lengths) {
    uint64_t bits = 1;
    for (const int64_t length : lengths) {
      float x = 50;
      for (int64_t t = 0; t < length; ++t) {
        bits = ops::mixed_bits(bits + 0x9E3779B97F4A7C15ULL);
        x += static_cast<float>(bits >> 40) * 0x1p-24f - 0.5f;
        values.push_back(t % 11 == 4 ? NAN : x);
      }
      begin.push_back(static_cast<int64_t>(values.size()));
    }
  }
};

}  // namespace brim::forecast::testing
