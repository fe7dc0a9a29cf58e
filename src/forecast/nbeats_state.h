// SPDX-License-Identifier: Apache-2.0
// Device state of lanes of one shape, except activations: weights, gradients, moments, bases, and the tables a step
// reads and writes. One allocation, charged to the ledger.
#pragma once
#include <span>

#include "device/device.h"
#include "forecast/nbeats_pass.h"
#include "memory/ledger.h"

namespace brim::forecast {

// Steps for which constants and losses are kept on the device at a time.
constexpr int64_t kStepRows = 256;

memory::TagBytes nbeats_state_bytes(const NbeatsShape& shape, int64_t lanes, NbeatsTask task, ops::Precision precision,
                                    device::DeviceKind target);

// AdamW moments: mean of the gradient and of its square.
enum class Moment : uint8_t { first, second };

class NbeatsState {
 public:
  // `quantiles` are the levels of the shape; empty for point forecasts.
  NbeatsState(device::Device& device, const NbeatsShape& shape, std::span<const ops::LaneSpec> lanes,
              std::span<const float> quantiles, NbeatsTask task, ops::Precision precision,
              memory::PlannedMemory* planned = nullptr);

  const NbeatsShape& shape() const { return shape_; }
  const NbeatsLayout& layout() const { return layout_; }
  const NbeatsViews& views() const { return views_; }
  int64_t lanes() const { return views_.master.rows(); }

  // Uploads a lane's slab of layout().elements. Call refresh() after the last upload.
  void upload(device::Stream& stream, int64_t lane, std::span<const float> slab);
  void refresh(device::Stream& stream);  // updates the matmul copy from the master weights
  std::vector<float> download(device::Stream& stream, int64_t lane) const;
  void download(device::Stream& stream, int64_t lane, std::span<float> slab) const;
  std::vector<float> gradients(device::Stream& stream, int64_t lane) const;
  // First or second moments of a lane; zero in a new state.
  std::vector<float> download_moment(device::Stream& stream, int64_t lane, Moment which) const;
  void upload_moment(device::Stream& stream, int64_t lane, Moment which, std::span<const float> values);

  void set_step(device::Stream& stream, int64_t done);  // number of completed steps
  // Uploads constants of steps first, first + 1, …: one row per lane, at most kStepRows steps.
  void put_rows(device::Stream& stream, int64_t first, std::span<const ops::AdamWRow> rows);
  // Losses, or norms before clipping, of `count` steps starting at `first`, lane by lane; only the last kStepRows steps
  // are available. A non-finite norm means that the lane's update was skipped.
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
