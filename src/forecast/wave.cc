// SPDX-License-Identifier: Apache-2.0
#include "forecast/wave.h"

#include <algorithm>

#include "base/error.h"
#include "base/thread_pool.h"
#include "memory/placement.h"

namespace brim::forecast {

using memory::Ledger;
using memory::Tag;

namespace {

constexpr const char* kArena = "pass";
constexpr const char* kPicks = "windows to forecast";

int64_t forecast_windows(const WaveSpec& spec) {
  return spec.task == NbeatsTask::predict ? spec.options.windows : spec.validation_windows;
}

int64_t picks_bytes(const WaveSpec& spec, int64_t lanes) {
  const auto each = static_cast<int64_t>(sizeof(ops::WindowPick));
  return memory::align_up((spec.own_cutoffs ? lanes : 1) * forecast_windows(spec) * each);
}
// Rows of the covariates of these windows.
int64_t rows_bytes(const WaveSpec& spec, int64_t lanes) {
  const auto each = static_cast<int64_t>(sizeof(int32_t));
  return spec.shape.covariates.any() ? memory::align_up(lanes * forecast_windows(spec) * each) : 0;
}

NbeatsPlan plan_of(const WaveSpec& spec, int64_t lanes, device::DeviceKind kind) {
  return plan_nbeats(spec.shape, lanes, spec.task, spec.options, spec.precision, kind, device::best_isa(),
                     spec.threads);
}

// Plan of the validation passes of a training wave.
NbeatsPlan validation_plan_of(const WaveSpec& spec, int64_t lanes, device::DeviceKind kind) {
  if (spec.validation_windows == 0) return {};
  NbeatsOptions options;
  options.windows = spec.validation_windows;
  return plan_nbeats(spec.shape, lanes, NbeatsTask::predict, options, spec.precision, kind, device::best_isa(),
                     spec.threads);
}

// Driver memory for a captured step: on an H200 about 4 MiB more for the 360 ops of 30 blocks than for 40.
int64_t graph_bytes(const NbeatsPlan& plan) {
  constexpr int64_t kBytesPerOp = 16 << 10;
  int64_t calls = 0;
  for (const auto& [name, total] : plan.ops) calls += total.calls;
  return memory::align_up(calls * kBytesPerOp);
}

int64_t arena_bytes(const NbeatsPlan& plan, const NbeatsPlan& validation) {
  return std::max(plan.placement.peak_bytes, validation.placement.peak_bytes);
}

}  // namespace

std::vector<memory::LedgerEntry> wave_parts(const WaveSpec& spec, int64_t lanes, int64_t series, int64_t points,
                                            device::DeviceKind kind) {
  std::vector<memory::LedgerEntry> parts;
  const memory::TagBytes state = nbeats_state_bytes(spec.shape, lanes, spec.task, spec.precision, kind);
  for (int t = 0; t < memory::kTagCount; ++t)
    if (const auto tag = static_cast<Tag>(t); state[tag] > 0) parts.push_back({tag, "lanes", state[tag]});
  parts.push_back({Tag::token_set, "series", DeviceSeries::bytes(points, series, lanes, !spec.own_cutoffs)});
  if (spec.shape.covariates.any())
    parts.push_back({Tag::token_set, "covariates",
                     DeviceCovariates::bytes(spec.shape.covariates, spec.shape.horizon, series, points)});
  const NbeatsPlan plan = plan_of(spec, lanes, kind);
  parts.push_back({Tag::activations, kArena, arena_bytes(plan, validation_plan_of(spec, lanes, kind))});
  if (kind == device::DeviceKind::cuda && spec.task == NbeatsTask::train)
    parts.push_back({Tag::graphs, "captured step", graph_bytes(plan)});
  if (const int64_t bytes = picks_bytes(spec, lanes) + rows_bytes(spec, lanes); bytes > 0)
    parts.push_back({Tag::staging, kPicks, bytes});
  return parts;
}

Wave::Wave(device::Device& device, const WaveSpec& spec, const SeriesStore& series,
           std::span<const LaneCutoffs> cutoffs, ops::Sampling sampling, memory::PlannedMemory* planned)
    : spec_(spec),
      stream_(device.make_stream()),
      state_(device, spec.shape, spec.lanes, spec.quantiles, spec.task, spec.precision, planned),
      data_(device, series.values(), series.begin(), lanes(), !spec.own_cutoffs, planned),
      plan_(plan_of(spec, lanes(), device.kind())),
      validation_plan_(validation_plan_of(spec, lanes(), device.kind())),
      arena_(Ledger::allocate(device, planned, Tag::activations, kArena, arena_bytes(plan_, validation_plan_))) {
  BRIM_CHECK(cutoffs.size() == (spec.own_cutoffs ? spec.lanes.size() : 0), "{} cutoffs for {} lanes", cutoffs.size(),
             spec.lanes.size());
  if (const int64_t bytes = picks_bytes(spec, lanes()) + rows_bytes(spec, lanes()); bytes > 0)
    picks_ = Ledger::allocate(device, planned, Tag::staging, kPicks, bytes);
  const std::vector<LaneCutoffs> whole = {whole_series(series.begin())};
  data_.set_lanes(*stream_, spec.own_cutoffs ? cutoffs : whole, spec.lanes, sampling);
  source_ = data_.source();
  if (!spec.shape.covariates.any()) return;
  BRIM_CHECK(spec.covariates != nullptr && spec.covariates->shape == spec.shape.covariates,
             "a wave with covariates requires their values");
  covariates_ = DeviceCovariates(device, *spec.covariates, series.begin(), planned);
  covariates_.add_to(source_);
}

model::Exec Wave::exec(memory::PlannedAllocator& memory) {
  const TensorView& copy = state_.views().copy;
  return {*stream_, memory, copy ? copy.dtype : tensor::DType::f32, spec_.precision, spec_.threads};
}

void Wave::upload(const std::function<std::vector<float>(size_t lane)>& slab_of) {
  // Eighteen large lanes take seconds on one core. Lanes are processed in few, equally sized rounds to bound host
  // memory.
  constexpr size_t kMostTogether = 16;
  const size_t G = spec_.lanes.size(), most = std::min(kMostTogether, static_cast<size_t>(std::max(1, spec_.threads))),
               rounds = (G + most - 1) / most, together = (G + rounds - 1) / rounds;
  ThreadPool pool(static_cast<int>(together));
  std::vector<std::vector<float>> slabs(together);
  for (size_t first = 0; first < G; first += together) {
    const size_t count = std::min(together, G - first);
    pool.parallel_for(count, [&](size_t i, int) { slabs[i] = slab_of(first + i); });
    for (size_t i = 0; i < count; ++i) state_.upload(*stream_, static_cast<int64_t>(first + i), slabs[i]);
  }
}

void Wave::step() {
  if (graph_) return graph_->launch(*stream_);
  const auto run = [&] {
    memory::PlannedAllocator memory(arena_.data(), &plan_.placement);
    model::Exec e = exec(memory);
    nbeats_train_step(e, state_.shape(), state_.layout(), state_.views(), source_, spec_.options);
  };
  // Matmul algorithms are selected on first use, which is not possible during capture.
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

std::vector<float> Wave::predict(std::span<const std::vector<ops::WindowPick>> windows,
                                 std::vector<std::vector<float>>* after_stack) {
  const int64_t B = forecast_windows(spec_);
  const size_t rows = spec_.own_cutoffs ? spec_.lanes.size() : 1, count = windows.empty() ? 0 : windows[0].size();
  BRIM_CHECK(windows.size() == rows && count > 0 && static_cast<int64_t>(count) <= B &&
                 (after_stack == nullptr || spec_.options.components),
             "{} lists of {} windows, planned for {} of {}", windows.size(), count, rows, B);
  std::vector<ops::WindowPick> picks;
  for (const auto& own : windows) {
    BRIM_CHECK(own.size() == count, "lanes with {} and {} windows", own.size(), count);
    picks.insert(picks.end(), own.begin(), own.end());
    picks.resize(picks.size() + static_cast<size_t>(B) - count, own.back());  // repeat the last window
  }
  stream_->copy(picks_.data(), picks.data(), picks.size() * sizeof(ops::WindowPick));
  WindowSource source = source_;
  source.picks = TensorView(picks_.data(), tensor::DType::i32, {lanes(), B, 2});
  if (!spec_.own_cutoffs) source.picks.stride[0] = 0;
  std::vector<int32_t> row_numbers;
  if (spec_.shape.covariates.any()) {
    for (int64_t i = 0; i < lanes() * B; ++i) {
      const ops::WindowPick pick = picks[static_cast<size_t>(spec_.own_cutoffs ? i : i % B)];
      row_numbers.push_back(spec_.covariates->row(pick.series, pick.cut));
    }
    auto* to = static_cast<char*>(picks_.data()) + picks_bytes(spec_, lanes());
    stream_->copy(to, row_numbers.data(), row_numbers.size() * sizeof(int32_t));
    source.rows = TensorView(to, tensor::DType::i32, {lanes() * B});
  }
  const NbeatsPlan& plan = spec_.task == NbeatsTask::predict ? plan_ : validation_plan_;
  memory::PlannedAllocator memory(arena_.data(), &plan.placement);
  model::Exec e = exec(memory);
  const NbeatsForecast f =
      nbeats_predict(e, state_.shape(), state_.layout(), state_.views(), source, B, after_stack != nullptr);
  const auto wanted = [&](const TensorView& view) {
    std::vector<float> all(static_cast<size_t>(view.elements())), out;
    stream_->copy(all.data(), view.data, all.size() * sizeof(float));
    stream_->synchronize();
    const auto each = view.elements() / (lanes() * B), own = static_cast<int64_t>(count) * each;
    for (int64_t g = 0; g < lanes(); ++g)
      out.insert(out.end(), all.begin() + g * B * each, all.begin() + g * B * each + own);
    return out;
  };
  if (after_stack != nullptr) {
    after_stack->push_back(wanted(f.level));
    for (const TensorView& view : f.after_stack) after_stack->push_back(wanted(view));
  }
  return wanted(f.y_hat);
}

}  // namespace brim::forecast
