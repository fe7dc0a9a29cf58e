// SPDX-License-Identifier: Apache-2.0
#include "model/train_state.h"

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/thread_pool.h"
#include "memory/ledger.h"
#include "memory/placement.h"
#include "model/state_layout.h"
#include "model/weights.h"
#include "ops/amax.h"
#include "ops/fp8_cast.h"
#include "ops/rows.h"

namespace brim::model {

using device::DeviceKind;
using device::Isa;
using device::Stream;
using ops::LinearWeight;
using ops::Precision;
using tensor::DType;
using tensor::TensorView;

TrainState::TrainState(device::Device& device, const ModelShape& shape, Precision precision, Optimizer optimizer,
                       Moments location, memory::PlannedMemory* planned)
    : device_(device),
      shape_(shape),
      precision_(precision),
      optimizer_(optimizer),
      architecture_(make_architecture(shape)),
      layout_(slab_layout(shape)) {
  const Isa isa = device::best_isa();
  const StateLayout layout = state_layout(shape_, layout_, precision, optimizer, location, device.kind(), isa);
  block_ = memory::Ledger::allocate(device, planned, layout.bytes, "training state");
  const auto piece = [&](const StateLayout::Piece& p) {
    return Bytes(static_cast<std::byte*>(block_.data()) + p.at, static_cast<size_t>(p.bytes));
  };
  master_ = piece(layout.master);
  grad_ = piece(layout.grad);
  copy_ = piece(layout.copy);
  packed_ = piece(layout.packed);
  m_ = piece(layout.m);
  v_ = piece(layout.v);
  moment_scales_ = piece(layout.moment_scales);
  if (location == Moments::host) {
    BRIM_CHECK(optimizer == Optimizer::adamw, "moments on the host require 32-bit AdamW");
    const auto moments = static_cast<size_t>(moment_bytes(layout_, optimizer));
    for (auto [moment, buffer] : {std::pair(&m_, &m_on_host_), std::pair(&v_, &v_on_host_)}) {
      *buffer = device.allocate_host(moments);
      *moment = Bytes(static_cast<std::byte*>(buffer->data()), moments);
    }
    const int64_t each = window_elements(layout_);
    const Bytes windows = piece(layout.windows);
    load_stream_ = device.make_stream();
    store_stream_ = device.make_stream();
    for (int i = 0; i < kWindows; ++i)
      windows_.push_back({slab(windows, DType::f32, 2 * i * each, (2 * i + 1) * each),
                          slab(windows, DType::f32, (2 * i + 1) * each, (2 * i + 2) * each), make_event(device, false),
                          make_event(device, false), make_event(device, false)});
  }
  const auto address = [](Bytes bytes) { return bytes.empty() ? nullptr : reinterpret_cast<char*>(bytes.data()); };
  params_ = make_params(layout_, precision, device.kind(), isa,
                        {address(master_), address(grad_), address(copy_), address(packed_),
                         address(piece(layout.codes)), address(piece(layout.table))});
  fp8_params_ = fp8_params_of(layout_, precision);
  fp8_ = fp8_table(static_cast<int64_t>(fp8_params_.size()), address(piece(layout.table)));
  if (fp8_.history)
    fp8_history_ = Bytes(static_cast<std::byte*>(fp8_.history.data), static_cast<size_t>(fp8_.history.bytes()));
  const SmallLayout small = small_layout(shape_, layout_);
  char* base = address(piece(layout.small));
  norm_ = TensorView(base, DType::f32, {1});
  factor_ = TensorView(base + small.factor, DType::f32, {1});
  constants_ = TensorView(base + small.constants, DType::f32, {1, 1, ops::kAdamWRowFloats});
  norm_scratch_ = TensorView(base + small.norm_scratch, DType::u8, {ops::grad_norm_scratch_bytes(layout_.trained())});
  class_weights_at_ = base + small.class_weights;
  auto stream = device.make_stream();
  for (const Bytes bytes : {m_, v_}) {
    if (location == Moments::host)
      std::memset(bytes.data(), 0, bytes.size());
    else
      stream->fill_zero(bytes.data(), bytes.size());
  }
  stream->fill_zero(moment_scales_.data(), moment_scales_.size());
  stream->fill_zero(grad_.data(), grad_.size());
  if (const Bytes table = piece(layout.table); !table.empty()) stream->fill_zero(table.data(), table.size());
  list_fp8_matrices(*stream);
  stream->synchronize();
}

TrainState::~TrainState() = default;

void TrainState::set_class_weights(Stream& stream, const std::vector<float>& weights) {
  BRIM_CHECK(static_cast<int64_t>(weights.size()) == shape_.sequence_classes, "{} class weights for {} classes",
             weights.size(), shape_.sequence_classes);
  class_weights_ = TensorView(class_weights_at_, DType::f32, {shape_.sequence_classes});
  stream.copy(class_weights_.data, weights.data(), weights.size() * 4);
  stream.synchronize();
}

TensorView TrainState::slab(Bytes bytes, DType dtype, int64_t begin, int64_t end) const {
  return TensorView(bytes.data() + begin * dtype_bytes(dtype), dtype, {end - begin});
}

void TrainState::upload(Stream& stream, const std::vector<float>& master) {
  BRIM_CHECK(static_cast<int64_t>(master.size()) == layout_.elements(), "{} values for {} elements", master.size(),
             layout_.elements());
  if (copy_.empty()) {
    stream.copy(master_.data(), master.data(), master.size() * 4);
  } else {
    const DType compute = activation_type(precision_, device_.kind());
    const auto trained = static_cast<size_t>(layout_.trained());
    stream.copy(master_.data(), master.data(), trained * 4);
    const std::span<const float> frozen = std::span(master).subspan(trained);
    if (!shape_.lora) frozen_.assign(frozen.begin(), frozen.end());
    std::vector<std::byte> narrow(frozen.size() * static_cast<size_t>(dtype_bytes(compute)));
    convert_elements(frozen.data(), DType::f32, narrow.data(), compute, static_cast<int64_t>(frozen.size()));
    if (!narrow.empty())
      stream.copy(slab(copy_, compute, layout_.trained(), layout_.elements()).data, narrow.data(), narrow.size());
    stream.synchronize();
  }
  refresh(stream, true);
  stream.synchronize();
}

std::vector<float> TrainState::download(Stream& stream) const {
  std::vector<float> master(static_cast<size_t>(layout_.elements()));
  stream.copy(master.data(), master_.data(),
              (copy_.empty() ? master.size() : static_cast<size_t>(layout_.trained())) * 4);
  std::copy(frozen_.begin(), frozen_.end(), master.end() - static_cast<std::ptrdiff_t>(frozen_.size()));
  stream.synchronize();
  return master;
}

std::span<const float> TrainState::on_host(Stream& stream, std::vector<float>& copy) const {
  if (device_.kind() == DeviceKind::cpu)
    return {reinterpret_cast<const float*>(master_.data()), static_cast<size_t>(layout_.elements())};
  copy = download(stream);
  return copy;
}

std::vector<std::span<const std::byte>> TrainState::moments_on_host(Stream& stream,
                                                                    std::vector<std::byte>& copy) const {
  if (store_stream_) store_stream_->synchronize();
  std::vector<std::span<const std::byte>> parts;
  if (device_.kind() == DeviceKind::cpu) {
    for (const Bytes bytes : {m_, v_, moment_scales_, fp8_history_}) parts.emplace_back(bytes);
    return parts;
  }
  copy.resize(all_moment_bytes());
  size_t at = 0;
  for (const Bytes bytes : {m_, v_, moment_scales_, fp8_history_}) {
    if (!bytes.empty()) stream.copy(copy.data() + at, bytes.data(), bytes.size());
    at += bytes.size();
  }
  stream.synchronize();
  parts.emplace_back(copy);
  return parts;
}

void TrainState::upload_moments(Stream& stream, const MappedFile& all) {
  const size_t wanted = all_moment_bytes();
  BRIM_CHECK(all.size() == wanted, "{} bytes of moments, expected {}", all.size(), wanted);
  if (store_stream_) store_stream_->synchronize();
  constexpr size_t kPiece = size_t{1} << 20;  // limits how much of the file is in memory
  size_t at = 0;
  has_history_ = !fp8_history_.empty();
  for (const Bytes bytes : {m_, v_, moment_scales_, fp8_history_})
    for (size_t done = 0; done < bytes.size();) {
      const size_t n = std::min(kPiece, bytes.size() - done);
      stream.copy(bytes.data() + done, all.data() + at, n);
      stream.synchronize();
      all.release(at, n);
      done += n;
      at += n;
    }
}

void TrainState::refresh(Stream& stream, bool frozen) {
  if (!copy_.empty()) {
    const DType compute = activation_type(precision_, device_.kind());
    const int64_t n = layout_.trained();
    ops::convert(stream, {.x = slab(master_, DType::f32, 0, n), .y = slab(copy_, compute, 0, n)});
    refresh_fp8(stream);
    return;
  }
  refresh_fp8(stream);
  if (packed_.empty()) return;
  // CPU: repack the matrices from the master weights.
  std::vector<std::pair<TensorView, LinearWeight>> work;
  for (size_t i = 0; i < params_.size(); ++i) {
    const Param& p = params_[i];
    if (layout_.params[i].frozen && !frozen) continue;
    if (p.matrix.N > 0) work.emplace_back(p.plain, p.matrix);
    if (p.first.N == 0) continue;
    work.emplace_back(p.plain.slice_rows(0, p.first.N), p.first);
    work.emplace_back(p.plain.slice_rows(p.first.N, p.plain.rows()), p.rest);
  }
  auto pack = [&](size_t i, int) {
    linear_pack(work[i].first, {}, work[i].second.precision, work[i].second.isa, work[i].second.data.data, nullptr);
  };
  if (ThreadPool* pool = static_cast<device::CpuStream&>(stream).pool()) {
    pool->parallel_for(work.size(), pack);
  } else {
    for (size_t i = 0; i < work.size(); ++i) pack(i, 0);
  }
}

void TrainState::list_fp8_matrices(Stream& stream) {
  if (fp8_params_.empty()) return;
  std::vector<ops::Fp8MatrixPlace> places;
  for (const size_t i : fp8_params_) {
    const Param& p = params_[i];
    places.push_back({.x = p.plain.data,
                      .rows = static_cast<uint8_t*>(p.fp8.rows.data),
                      .columns = static_cast<uint8_t*>(p.fp8.columns.data),
                      .N = static_cast<int32_t>(p.plain.rows()),
                      .K = static_cast<int32_t>(p.plain.cols()),
                      .first_tile = static_cast<int32_t>(fp8_tiles_)});
    fp8_tiles_ += ops::fp8_tiles(p.plain.rows(), p.plain.cols());
    fp8_elements_ += p.plain.elements();
  }
  stream.copy(fp8_.places.data, places.data(), static_cast<size_t>(fp8_.places.bytes()));
  stream.synchronize();
}

void TrainState::refresh_fp8(Stream& stream) {
  if (fp8_params_.empty()) return;
  ops::fp8_cast_matrices(stream, {.places = fp8_.places,
                                  .amax = fp8_.w_amax,
                                  .scale = fp8_.w_scale,
                                  .inverse = fp8_.w_inverse,
                                  .tiles = fp8_tiles_,
                                  .elements = fp8_elements_});
}

void TrainState::begin_step(Stream& stream, float unit) {
  if (fp8_params_.empty()) return;
  fp8_unit_ = unit;
  constexpr float kMargin =
      2;  // headroom for values twice as large as in the last sixteen steps, at the cost of one e4m3 binade
  ops::fp8_delayed_scale(stream, {.history = fp8_.history,
                                  .scale = fp8_.scale,
                                  .inverse = fp8_.inverse,
                                  .first_gradient = static_cast<int64_t>(fp8_params_.size()),
                                  .unit = unit,
                                  .margin = kMargin});
}

void TrainState::remember_fp8(Stream& stream) {
  if (fp8_params_.empty()) return;
  ops::fp8_remember(stream, {.amax = fp8_.amax,
                             .history = fp8_.history,
                             .first_gradient = static_cast<int64_t>(fp8_params_.size()),
                             .unit = fp8_unit_});
  has_history_ = true;
}

void TrainState::end_calibration(Stream& stream) {
  remember_fp8(stream);
  zero_grad(stream);
}

void TrainState::zero_grad(Stream& stream) { stream.fill_zero(grad_.data(), grad_.size()); }

void TrainState::step(Stream& stream, const StepSettings& s, int) {
  ops::GradNormArgs norm{.grad = slab(grad_, DType::f32, 0, layout_.trained()),
                         .norm = norm_,
                         .factor = factor_,
                         .scratch = norm_scratch_};
  norm.grad_scale = s.grad_scale;
  norm.max_norm = s.max_grad_norm;
  grad_norm(stream, norm);
  ops::set_step(stream,
                {.rows = constants_, .row = ops::adamw_row(s.lr, s.beta1, s.beta2, s.eps, s.weight_decay, s.step)});
  const DType compute = activation_type(precision_, device_.kind());
  const bool narrow = optimizer_ == Optimizer::adamw_8bit;
  const int64_t matrices = layout_.begin[1];
  // Matrices and embeddings have the same settings: one call if their moments have the same type.
  struct Part {
    int64_t begin, end;
    bool decay, narrow;
  };
  std::vector<Part> parts;
  if (narrow)
    parts = {{0, matrices, true, true}, {matrices, layout_.begin[2], true, false}};
  else
    parts = {{0, layout_.begin[2], true, false}};
  parts.push_back({layout_.begin[2], layout_.trained(), false, false});
  for (const Window& w : windows_) w.stored->wait(*load_stream_);  // do not read before the previous step has written
  for (const Part& part : parts) {
    if (part.end == part.begin) continue;
    ops::AdamWArgs args;
    args.master = slab(master_, DType::f32, part.begin, part.end);
    args.grad = slab(grad_, DType::f32, part.begin, part.end);
    if (part.narrow) {
      args.m = slab(m_, DType::u8, part.begin, part.end);
      args.v = slab(v_, DType::u8, part.begin, part.end);
      args.m_scale = slab(moment_scales_, DType::f32, 0, moment_blocks(layout_));
      args.v_scale = slab(moment_scales_, DType::f32, moment_blocks(layout_), 2 * moment_blocks(layout_));
    } else {
      // With 8-bit matrices, the f32 part starts after their bytes.
      const int64_t shift = narrow ? memory::align_up(matrices) - matrices * 4 : 0;
      for (auto [view, buffer] : {std::pair(&args.m, &m_), std::pair(&args.v, &v_)}) {
        *view = slab(*buffer, DType::f32, part.begin, part.end);
        view->data = static_cast<char*>(view->data) + shift;
      }
    }
    if (!copy_.empty()) args.copy = slab(copy_, compute, part.begin, part.end);
    args.grad_factor = factor_;
    args.table.rows = constants_;
    args.decayed = part.decay;
    if (windows_.empty())
      adamw(stream, args);
    else
      step_through_windows(stream, args, part.begin);
  }
  if (!packed_.empty())
    refresh(stream);
  else
    refresh_fp8(stream);
  remember_fp8(stream);
  zero_grad(stream);
}

void TrainState::step_through_windows(Stream& stream, const ops::AdamWArgs& part, int64_t begin) {
  const int64_t each = windows_[0].m.elements(), n = part.master.elements();
  for (int64_t at = 0; at < n; at += each) {
    const int64_t count = std::min(each, n - at);
    Window& w = windows_[next_window_];
    next_window_ = (next_window_ + 1) % windows_.size();
    const auto bytes = static_cast<size_t>(count * 4);
    auto* m = reinterpret_cast<float*>(m_.data()) + begin + at;
    auto* v = reinterpret_cast<float*>(v_.data()) + begin + at;
    w.stored->wait(*load_stream_);  // wait until its previous contents are stored
    load_stream_->copy(w.m.data, m, bytes);
    load_stream_->copy(w.v.data, v, bytes);
    w.loaded->record(*load_stream_);
    w.loaded->wait(stream);
    ops::AdamWArgs piece = part;
    for (TensorView* view : {&piece.master, &piece.grad, &piece.copy})
      if (*view) *view = view->slice_rows(at, at + count);
    piece.m = w.m.slice_rows(0, count);
    piece.v = w.v.slice_rows(0, count);
    adamw(stream, piece);
    w.stepped->record(stream);
    w.stepped->wait(*store_stream_);
    store_stream_->copy(m, w.m.data, bytes);
    store_stream_->copy(v, w.v.data, bytes);
    w.stored->record(*store_stream_);
  }
}

}  // namespace brim::model
