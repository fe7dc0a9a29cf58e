// SPDX-License-Identifier: Apache-2.0
// What lanes of one shape hold on a device besides activations: slabs of weights, gradients and moments, their bases,
// and the tables a step reads and writes. One block of memory, charged to the ledger.
#pragma once
#include <span>

#include "device/device.h"
#include "forecast/nbeats_pass.h"
#include "memory/ledger.h"

namespace brim::forecast {

// Steps whose constants are on the device at a time, and whose losses are kept there.
constexpr int64_t kStepRows = 256;

memory::TagBytes nbeats_state_bytes(const NbeatsShape& shape, int64_t lanes, NbeatsTask task, ops::Precision precision,
                                    device::DeviceKind target);

// Of a gradient and of its square, as AdamW keeps them.
enum class Moment : uint8_t { first, second };

class NbeatsState {
 public:
  // `quantiles` are the shape's levels; none for a point forecast.
  NbeatsState(device::Device& device, const NbeatsShape& shape, std::span<const ops::LaneSpec> lanes,
              std::span<const float> quantiles, NbeatsTask task, ops::Precision precision,
              memory::PlannedMemory* planned = nullptr);

  const NbeatsShape& shape() const { return shape_; }
  const NbeatsLayout& layout() const { return layout_; }
  const NbeatsViews& views() const { return views_; }
  int64_t lanes() const { return views_.master.rows(); }

  // A lane's slab of layout().elements. After the last upload, refresh().
  void upload(device::Stream& stream, int64_t lane, std::span<const float> slab);
  void refresh(device::Stream& stream);  // the products' copy from the master
  std::vector<float> download(device::Stream& stream, int64_t lane) const;
  void download(device::Stream& stream, int64_t lane, std::span<float> slab) const;
  std::vector<float> gradients(device::Stream& stream, int64_t lane) const;
  // A lane's first or second moments. A new state's are zero.
  std::vector<float> download_moment(device::Stream& stream, int64_t lane, Moment which) const;
  void upload_moment(device::Stream& stream, int64_t lane, Moment which, std::span<const float> values);

  void set_step(device::Stream& stream, int64_t done);  // steps done so far
  // Constants of steps first, first + 1, …: a row for each lane, at most kStepRows steps.
  void put_rows(device::Stream& stream, int64_t first, std::span<const ops::AdamWRow> rows);
  // Losses, or norms before clipping, of `count` steps from `first` on, lane by lane; of the last kStepRows. A norm
  // that is not a number says that the lane's update was skipped.
  std::vector<float> losses(device::Stream& stream, int64_t first, int64_t count) const;
  std::vector<float> norms(device::Stream& stream, int64_t first, int64_t count) const;

 private:
  std::vector<float> read(device::Stream& stream, const TensorView& view) const;
  TensorView moment(int64_t lane, Moment which) const;
  std::vector<float> ring_rows(device::Stream& stream, const TensorView& ring, int64_t first, int64_t count) const;

  NbeatsShape shape_;
  NbeatsLayout layout_;
  device::DeviceBuffer block_;
  NbeatsViews views_;
};

}  // namespace brim::forecast
