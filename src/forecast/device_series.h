// SPDX-License-Identifier: Apache-2.0
// Series of a store on a device (values and offsets), plus the per-lane visibility tables read by window_gather. The
// series stay for the whole run; the tables are replaced for each wave.
#pragma once
#include <span>
#include <vector>

#include "device/device.h"
#include "forecast/covariates.h"
#include "forecast/nbeats_pass.h"
#include "memory/ledger.h"

namespace brim::forecast {

// Visible range [first, end) per series, relative to the start of the series. An empty `first` means 0 for all.
struct LaneCutoffs {
  std::vector<int32_t> end, first;
};

// All points of all series.
LaneCutoffs whole_series(std::span<const int64_t> begin);

class DeviceSeries {
 public:
  // Allocates for `lanes` lanes. With `shared`, all lanes use the same cutoffs and histories, stored once.
  static int64_t bytes(int64_t values, int64_t series, int64_t lanes, bool shared);
  DeviceSeries(device::Device& device, std::span<const float> values, std::span<const int64_t> begin, int64_t lanes,
               bool shared, memory::PlannedMemory* planned = nullptr);

  // Sets the lanes of a wave; `cutoffs` has one entry per lane or one for all. Throws bad_data if a lane has no
  // training window.
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

// Covariates of the windows of a store.
class DeviceCovariates {
 public:
  static int64_t bytes(const CovariateShape& shape, int64_t horizon, int64_t series, int64_t points);
  DeviceCovariates() = default;  // none
  DeviceCovariates(device::Device& device, const CovariateTable& table, std::span<const int64_t> begin,
                   memory::PlannedMemory* planned);
  void add_to(WindowSource& source) const;

 private:
  device::DeviceBuffer block_;
  TensorView future_, past_, fixed_, row_bits_;
};

}  // namespace brim::forecast
