// SPDX-License-Identifier: Apache-2.0
// A store's series on a device (values, where each begins) and what lanes may see of them: the tables window_gather
// reads. Series stay for the whole run; the tables are those of a wave and are replaced with the next one.
#pragma once
#include <span>
#include <vector>

#include "device/device.h"
#include "forecast/nbeats_pass.h"
#include "memory/ledger.h"

namespace brim::forecast {

// Points of each series a lane may see: [first, end), counted from the series' beginning. No `first`: from the first.
struct LaneCutoffs {
  std::vector<int32_t> end, first;
};

// All points of all series.
LaneCutoffs whole_series(std::span<const int64_t> begin);

class DeviceSeries {
 public:
  // Room for `lanes` lanes. With `shared` cutoffs and histories are the same for all of them and stored once.
  static int64_t bytes(int64_t values, int64_t series, int64_t lanes, bool shared);
  DeviceSeries(device::Device& device, std::span<const float> values, std::span<const int64_t> begin, int64_t lanes,
               bool shared, memory::PlannedMemory* planned = nullptr);

  // The lanes of a wave: cutoffs of each, or one for all. Throws bad_data where a lane has no window to learn from.
  void set_lanes(device::Stream& stream, std::span<const LaneCutoffs> cutoffs, std::span<const ops::LaneSpec> lanes,
                 ops::Sampling sampling);
  const WindowSource& source() const { return source_; }

 private:
  int64_t series_, most_lanes_;
  bool shared_;
  device::DeviceBuffer block_;
  WindowSource source_;
  char *end_ = nullptr, *first_ = nullptr, *weights_ = nullptr;
};

}  // namespace brim::forecast
