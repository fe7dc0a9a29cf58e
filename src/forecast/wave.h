// SPDX-License-Identifier: Apache-2.0
// Lanes computed together on a device: their state, the visible series, an arena for a pass, and on a GPU the captured
// step. Memory use is known before construction.
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
  NbeatsShape shape;  // with the longest lookback of the lanes
  std::vector<ops::LaneSpec> lanes;
  NbeatsTask task = NbeatsTask::train;
  NbeatsOptions options;
  std::vector<float> quantiles;  // levels of the shape; empty for point forecasts
  ops::Precision precision = ops::Precision::fp32;
  int threads = 1;
  bool own_cutoffs = false;                    // lanes see different ranges of the series
  const CovariateTable* covariates = nullptr;  // only plans of shapes with covariates need none
  int64_t validation_windows = 0;              // windows per forecast pass of a training wave
};

// Memory of a wave of `lanes` lanes for `series` series with `points` points in total, by purpose.
std::vector<memory::LedgerEntry> wave_parts(const WaveSpec& spec, int64_t lanes, int64_t series, int64_t points,
                                            device::DeviceKind kind);

class Wave {
 public:
  // `cutoffs` has one entry per lane if spec.own_cutoffs; otherwise it is empty and lanes see all points.
  Wave(device::Device& device, const WaveSpec& spec, const SeriesStore& series, std::span<const LaneCutoffs> cutoffs,
       ops::Sampling sampling, memory::PlannedMemory* planned);

  NbeatsState& state() { return state_; }
  device::Stream& stream() { return *stream_; }
  int64_t lanes() const { return static_cast<int64_t>(spec_.lanes.size()); }
  double flops() const { return plan_.flops; }  // per pass

  // Uploads the weights of all lanes: slab_of(lane) in the layout of the wave's shape, called from several threads.
  // Call state().refresh() afterwards.
  void upload(const std::function<std::vector<float>(size_t lane)>& slab_of);
  void step();  // asynchronous; the first step is eager, later ones use a graph if supported
  // Forecasts of windows (a series and the index after its last known point), shared by all lanes or one list of equal
  // size per lane: [lane][window][quantile][horizon], in the units of the series. `after_stack` receives the level
  // [lane][window] and the partial forecasts after each stack; this requires components in the wave options.
  std::vector<float> predict(std::span<const std::vector<ops::WindowPick>> windows,
                             std::vector<std::vector<float>>* after_stack = nullptr);

 private:
  model::Exec exec(memory::PlannedAllocator& memory);

  const WaveSpec spec_;
  std::unique_ptr<device::Stream> stream_;
  NbeatsState state_;
  DeviceSeries data_;
  DeviceCovariates covariates_;
  WindowSource source_;
  NbeatsPlan plan_, validation_plan_;
  device::DeviceBuffer arena_, picks_;
  std::unique_ptr<device::Graph> graph_;
  bool warm_ = false;
};

}  // namespace brim::forecast
