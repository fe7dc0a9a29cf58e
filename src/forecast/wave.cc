// SPDX-License-Identifier: Apache-2.0
#include "forecast/wave.h"

#include <algorithm>

#include "base/error.h"
#include "memory/placement.h"

namespace brim::forecast {

using memory::Ledger;
using memory::Tag;

namespace {

constexpr const char* kArena = "pass";
constexpr const char* kPicks = "windows to forecast";

int64_t picks_bytes(const WaveSpec& spec) {
  return spec.task == NbeatsTask::predict ? memory::align_up(spec.options.windows * 8) : 0;
}

NbeatsPlan plan_of(const WaveSpec& spec, int64_t lanes, device::DeviceKind kind) {
  return plan_nbeats(spec.shape, lanes, spec.task, spec.options, spec.precision, kind, device::best_isa(),
                     spec.threads);
}

}  // namespace

std::vector<memory::LedgerEntry> wave_parts(const WaveSpec& spec, int64_t lanes, const SeriesStore& series,
                                            device::DeviceKind kind) {
  std::vector<memory::LedgerEntry> parts;
  const memory::TagBytes state = nbeats_state_bytes(spec.shape, lanes, spec.task, spec.precision, kind);
  for (int t = 0; t < memory::kTagCount; ++t)
    if (const auto tag = static_cast<Tag>(t); state[tag] > 0) parts.push_back({tag, "lanes", state[tag]});
  parts.push_back({Tag::token_set, "series",
                   DeviceSeries::bytes(static_cast<int64_t>(series.values().size()), series.size(), lanes, true)});
  parts.push_back({Tag::activations, kArena, plan_of(spec, lanes, kind).placement.peak_bytes});
  if (picks_bytes(spec) > 0) parts.push_back({Tag::staging, kPicks, picks_bytes(spec)});
  return parts;
}

Wave::Wave(device::Device& device, const WaveSpec& spec, const SeriesStore& series, ops::Sampling sampling,
           memory::PlannedMemory* planned)
    : spec_(spec),
      series_(series),
      stream_(device.make_stream()),
      state_(device, spec.shape, spec.lanes, {}, spec.task, spec.precision, planned),
      data_(device, series.values(), series.begin(), static_cast<int64_t>(spec.lanes.size()), true, planned),
      plan_(plan_of(spec, static_cast<int64_t>(spec.lanes.size()), device.kind())),
      arena_(Ledger::allocate(device, planned, Tag::activations, kArena, plan_.placement.peak_bytes)) {
  if (picks_bytes(spec) > 0) picks_ = Ledger::allocate(device, planned, Tag::staging, kPicks, picks_bytes(spec));
  data_.set_lanes(*stream_, {{whole_series(series.begin())}}, spec.lanes, sampling);
}

model::Exec Wave::exec(memory::PlannedAllocator& memory) {
  const TensorView& copy = state_.views().copy;
  return {*stream_, memory, copy ? copy.dtype : tensor::DType::f32, spec_.precision, spec_.threads};
}

void Wave::step() {
  if (graph_) return graph_->launch(*stream_);
  const auto run = [&] {
    memory::PlannedAllocator memory(arena_.data(), &plan_.placement);
    model::Exec e = exec(memory);
    nbeats_train_step(e, state_.shape(), state_.layout(), state_.views(), data_.source(), spec_.options);
  };
  // Algorithms are chosen when a product is met first, which a capture could not do.
  if (!warm_ || !can_capture(*stream_)) {
    run();
    warm_ = true;
    return;
  }
  begin_capture(*stream_);
  try {
    run();
  } catch (...) {
    abort_capture(*stream_);
    throw;
  }
  graph_ = end_capture(*stream_);
  graph_->launch(*stream_);
}

std::vector<float> Wave::predict(int64_t first, int64_t count) {
  BRIM_CHECK(spec_.task == NbeatsTask::predict && count <= spec_.options.windows, "{} windows, planned for {}", count,
             spec_.options.windows);
  const int64_t B = spec_.options.windows;
  std::vector<int32_t> picks;
  for (int64_t i = 0; i < B; ++i) {  // the last one again where there are fewer
    const int64_t series = first + std::min(i, count - 1);
    picks.push_back(static_cast<int32_t>(series));
    picks.push_back(static_cast<int32_t>(series_.series(series).size()));
  }
  stream_->copy(picks_.data(), picks.data(), picks.size() * sizeof(int32_t));
  WindowSource source = data_.source();
  source.picks = TensorView(picks_.data(), tensor::DType::i32, {lanes(), B, 2});
  source.picks.stride[0] = 0;
  memory::PlannedAllocator memory(arena_.data(), &plan_.placement);
  model::Exec e = exec(memory);
  const NbeatsForecast f = nbeats_predict(e, state_.shape(), state_.layout(), state_.views(), source, B);
  std::vector<float> all(static_cast<size_t>(f.y_hat.elements()));
  stream_->copy(all.data(), f.y_hat.data, all.size() * sizeof(float));
  stream_->synchronize();
  const int64_t H = spec_.shape.horizon;
  std::vector<float> wanted;
  for (int64_t g = 0; g < lanes(); ++g)
    wanted.insert(wanted.end(), all.begin() + g * B * H, all.begin() + (g * B + count) * H);
  return wanted;
}

}  // namespace brim::forecast
