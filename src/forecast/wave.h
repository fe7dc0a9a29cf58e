// SPDX-License-Identifier: Apache-2.0
// Lanes that are computed at one time on a device: their state, the series they see, an arena for a pass, and on a card
// the captured step. What it will hold is known before it is made.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "device/graph.h"
#include "forecast/device_series.h"
#include "forecast/nbeats_state.h"
#include "forecast/series_store.h"

namespace brim::forecast {

struct WaveSpec {
  NbeatsShape shape;  // lookback of the longest lane
  std::vector<ops::LaneSpec> lanes;
  NbeatsTask task = NbeatsTask::train;
  NbeatsOptions options;
  std::vector<float> quantiles;  // the shape's levels; none for a point forecast
  ops::Precision precision = ops::Precision::fp32;
  int threads = 1;
  bool own_cutoffs = false;        // lanes see different parts of the series
  int64_t validation_windows = 0;  // a wave that trains can forecast as many at a time
};

// What a wave of `lanes` lanes of that kind reserves for `series` series of `points` points in all, by purpose.
std::vector<memory::LedgerEntry> wave_parts(const WaveSpec& spec, int64_t lanes, int64_t series, int64_t points,
                                            device::DeviceKind kind);

class Wave {
 public:
  // `cutoffs`: of each lane, where they are its own; else none, and lanes see all points.
  Wave(device::Device& device, const WaveSpec& spec, const SeriesStore& series, std::span<const LaneCutoffs> cutoffs,
       ops::Sampling sampling, memory::PlannedMemory* planned);

  NbeatsState& state() { return state_; }
  device::Stream& stream() { return *stream_; }
  int64_t lanes() const { return static_cast<int64_t>(spec_.lanes.size()); }
  double flops() const { return plan_.flops; }  // of a pass

  // Every lane's weights: slab_of(lane) in the layout of the wave's shape, called by several threads at once. Then
  // state().refresh().
  void upload(const std::function<std::vector<float>(size_t lane)>& slab_of);
  void step();  // on the stream, without waiting; the first one is op by op, later ones a graph where there can be one
  // Forecasts of windows (a series, and the point after its last known one), the same for all lanes or of each its own,
  // all of one number: [lane][window][quantile][horizon], in the series' own units. `after_stack` gets the same as it
  // is after each stack, and before them the level [lane][window]; the wave's options must want components then.
  std::vector<float> predict(std::span<const std::vector<ops::WindowPick>> windows,
                             std::vector<std::vector<float>>* after_stack = nullptr);

 private:
  model::Exec exec(memory::PlannedAllocator& memory);

  const WaveSpec spec_;
  std::unique_ptr<device::Stream> stream_;
  NbeatsState state_;
  DeviceSeries data_;
  NbeatsPlan plan_, validation_plan_;
  device::DeviceBuffer arena_, picks_;
  std::unique_ptr<device::Graph> graph_;
  bool warm_ = false;
};

}  // namespace brim::forecast
