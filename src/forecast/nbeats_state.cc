// SPDX-License-Identifier: Apache-2.0
#include "forecast/nbeats_state.h"

#include "model/weights.h"
#include "ops/rows.h"

namespace brim::forecast {

using memory::Tag;
using tensor::DType;

namespace {

// Visits every piece: its view at `base`, and its bytes by tag.
struct StatePieces {
  NbeatsViews views;
  memory::TagBytes bytes;
};
StatePieces state_pieces(const NbeatsShape& shape, const NbeatsLayout& layout, int64_t G, NbeatsTask task,
                         ops::Precision precision, device::DeviceKind target, char* base) {
  StatePieces p;
  const auto cut = [&](Tag tag, DType type, std::initializer_list<int64_t> dims) {
    TensorView v(nullptr, type, dims);
    v.data = base == nullptr ? nullptr : base + p.bytes.total();
    p.bytes[tag] += memory::align_up(v.bytes());
    return v;
  };
  const DType type = model::activation_type(precision, target);
  const int64_t n = layout.elements;
  NbeatsViews& v = p.views;
  v.master = cut(Tag::master, DType::f32, {G, n});
  if (type != DType::f32) v.copy = cut(Tag::weights, type, {G, n});
  for (const StackSpec& stack : shape.stacks) {
    const int64_t rows = basis_rows(shape, stack.kind);
    v.basis.push_back(rows == 0 ? TensorView() : cut(Tag::weights, DType::f32, {G, rows, shape.output()}));
  }
  v.lanes = cut(Tag::workspace, DType::u8, {G, static_cast<int64_t>(sizeof(ops::LaneSpec))});
  if (shape.covariates.any())
    v.row_lanes = cut(Tag::workspace, DType::u8, {G, static_cast<int64_t>(sizeof(ops::LaneSpec))});
  v.quantiles = cut(Tag::workspace, DType::f32, {shape.quantiles});
  if (task == NbeatsTask::predict) return p;
  v.grad = cut(Tag::gradients, DType::f32, {G, n});
  v.m = cut(Tag::optimizer, DType::f32, {G, n});
  v.v = cut(Tag::optimizer, DType::f32, {G, n});
  v.step = cut(Tag::workspace, DType::i64, {1});
  v.rows = cut(Tag::workspace, DType::f32, {kStepRows, G, ops::kAdamWRowFloats});
  v.losses = cut(Tag::workspace, DType::f32, {kStepRows, G});
  v.norms = cut(Tag::workspace, DType::f32, {kStepRows, G});
  v.factor = cut(Tag::workspace, DType::f32, {G});
  v.norm_scratch = cut(Tag::workspace, DType::u8, {ops::grad_norm_scratch_bytes(n, G)});
  return p;
}

// Elements [begin, end) of a contiguous view.
TensorView part_of(const TensorView& v, int64_t begin, int64_t end) {
  return {static_cast<char*>(v.data) + begin * dtype_bytes(v.dtype), v.dtype, {end - begin}};
}

}  // namespace

memory::TagBytes nbeats_state_bytes(const NbeatsShape& shape, int64_t lanes, NbeatsTask task, ops::Precision precision,
                                    device::DeviceKind target) {
  return state_pieces(shape, nbeats_layout(shape), lanes, task, precision, target, nullptr).bytes;
}

NbeatsState::NbeatsState(device::Device& device, const NbeatsShape& shape, std::span<const ops::LaneSpec> lanes,
                         std::span<const float> quantiles, NbeatsTask task, ops::Precision precision,
                         memory::PlannedMemory* planned)
    : shape_(shape), layout_(nbeats_layout(shape)) {
  const auto G = static_cast<int64_t>(lanes.size());
  BRIM_CHECK(shape.quantiles == static_cast<int64_t>(quantiles.size()) || (shape.quantiles == 1 && quantiles.empty()),
             "{} quantiles, {} levels", shape.quantiles, quantiles.size());
  for (const ops::LaneSpec& lane : lanes)
    BRIM_CHECK(lane.lookback > 0 && lane.lookback <= shape.lookback, "a lane looks back {} points, the wave {}",
               lane.lookback, shape.lookback);
  const memory::TagBytes bytes = nbeats_state_bytes(shape, G, task, precision, device.kind());
  block_ = memory::Ledger::allocate(device, planned, bytes, "lanes");
  views_ = state_pieces(shape, layout_, G, task, precision, device.kind(), static_cast<char*>(block_.data())).views;
  const auto stream = device.make_stream();
  stream->fill_zero(block_.data(), static_cast<size_t>(bytes.total()));  // gaps between parameters stay zero
  stream->copy(views_.lanes.data, lanes.data(), lanes.size_bytes());
  if (views_.row_lanes) {
    std::vector<ops::LaneSpec> rows(lanes.begin(), lanes.end());
    for (ops::LaneSpec& lane : rows) {
      lane.lookback = 1;
      lane.scaler = ops::WindowScaler::none;
    }
    stream->copy(views_.row_lanes.data, rows.data(), rows.size() * sizeof(ops::LaneSpec));
    stream->synchronize();
  }
  const float median = 0.5f;
  stream->copy(views_.quantiles.data, quantiles.empty() ? &median : quantiles.data(),
               static_cast<size_t>(views_.quantiles.bytes()));
  for (size_t s = 0; s < shape.stacks.size(); ++s)
    for (int64_t g = 0; views_.basis[s] && g < G; ++g) {
      const TensorView& basis = views_.basis[s];
      const std::vector<float> values =
          basis_values(shape, shape.stacks[s].kind, lanes[static_cast<size_t>(g)].lookback);
      stream->copy(basis.as<float>() + g * basis.stride[0], values.data(), values.size() * sizeof(float));
      stream->synchronize();
    }
  stream->synchronize();
}

void NbeatsState::upload(device::Stream& stream, int64_t lane, std::span<const float> slab) {
  BRIM_CHECK(static_cast<int64_t>(slab.size()) == layout_.elements, "{} values for {} elements", slab.size(),
             layout_.elements);
  stream.copy(views_.master.as<float>() + lane * layout_.elements, slab.data(), slab.size_bytes());
  stream.synchronize();
}

void NbeatsState::refresh(device::Stream& stream) {
  if (views_.copy) ops::convert(stream, {.x = views_.master, .y = views_.copy});
}

std::vector<float> NbeatsState::read(device::Stream& stream, const TensorView& view) const {
  std::vector<float> values(static_cast<size_t>(view.elements()));
  stream.copy(values.data(), view.data, values.size() * sizeof(float));
  stream.synchronize();
  return values;
}
std::vector<float> NbeatsState::download(device::Stream& stream, int64_t lane) const {
  return read(stream, part_of(views_.master, lane * layout_.elements, (lane + 1) * layout_.elements));
}
void NbeatsState::download(device::Stream& stream, int64_t lane, std::span<float> slab) const {
  BRIM_CHECK(static_cast<int64_t>(slab.size()) == layout_.elements, "{} values for {} elements", slab.size(),
             layout_.elements);
  stream.copy(slab.data(), views_.master.as<float>() + lane * layout_.elements, slab.size_bytes());
  stream.synchronize();
}
std::vector<float> NbeatsState::gradients(device::Stream& stream, int64_t lane) const {
  return read(stream, part_of(views_.grad, lane * layout_.elements, (lane + 1) * layout_.elements));
}

TensorView NbeatsState::moment(int64_t lane, Moment which) const {
  const TensorView& all = which == Moment::first ? views_.m : views_.v;
  return part_of(all, lane * layout_.elements, (lane + 1) * layout_.elements);
}
std::vector<float> NbeatsState::download_moment(device::Stream& stream, int64_t lane, Moment which) const {
  return read(stream, moment(lane, which));
}
void NbeatsState::upload_moment(device::Stream& stream, int64_t lane, Moment which, std::span<const float> values) {
  const TensorView to = moment(lane, which);
  BRIM_CHECK(static_cast<int64_t>(values.size()) == to.elements(), "{} moments, {} wanted", values.size(),
             to.elements());
  stream.copy(to.data, values.data(), values.size_bytes());
  stream.synchronize();
}

void NbeatsState::set_step(device::Stream& stream, int64_t done) {
  stream.copy(views_.step.data, &done, sizeof done);
  stream.synchronize();
}

void NbeatsState::put_rows(device::Stream& stream, int64_t first, std::span<const ops::AdamWRow> rows) {
  const auto G = static_cast<size_t>(lanes());
  const auto count = static_cast<int64_t>(rows.size() / G);
  BRIM_CHECK(rows.size() % G == 0 && count <= kStepRows, "{} rows for {} lanes", rows.size(), G);
  for (int64_t i = 0; i < count; ++i)
    stream.copy(views_.rows.as<float>() + (first + i) % kStepRows * views_.rows.stride[0],
                rows.data() + static_cast<size_t>(i) * G, G * sizeof(ops::AdamWRow));
  stream.synchronize();
}

std::vector<float> NbeatsState::ring_rows(device::Stream& stream, const TensorView& ring, int64_t first,
                                          int64_t count) const {
  const std::vector<float> all = read(stream, ring);
  std::vector<float> wanted;
  for (int64_t i = 0; i < count; ++i) {
    const auto row = all.begin() + (first + i) % kStepRows * lanes();
    wanted.insert(wanted.end(), row, row + lanes());
  }
  return wanted;
}
std::vector<float> NbeatsState::losses(device::Stream& stream, int64_t first, int64_t count) const {
  return ring_rows(stream, views_.losses, first, count);
}
std::vector<float> NbeatsState::norms(device::Stream& stream, int64_t first, int64_t count) const {
  return ring_rows(stream, views_.norms, first, count);
}

}  // namespace brim::forecast
