// SPDX-License-Identifier: Apache-2.0
#include "forecast/ensemble.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/thread_pool.h"
#include "base/units.h"
#include "plan/card_measure.h"
#include "train/loop.h"

namespace brim::forecast {

using device::DeviceKind;
using memory::Ledger;

namespace {

constexpr int64_t kPredictWindows = 256;  // of a pass

std::vector<StackSpec> stacks_of(const ForecastSettings& s) {
  std::vector<StackSpec> stacks;
  for (size_t i = 0; i < s.stack_types.size(); ++i) {
    // Seasonal blocks of the published interpretable models are wide, trends narrow.
    const int64_t width = !s.widths.empty() ? s.widths[0] : s.stack_types[i] == StackKind::trend ? 256 : 2048;
    stacks.push_back({s.stack_types[i], s.n_blocks[i], width, s.shared_weights.value_or(false)});
  }
  return stacks;
}

// The shape of all waves of a model: its lanes have the same stacks, and lookbacks of their own.
NbeatsShape shape_of(const NbeatsModel& model) {
  NbeatsShape shape = lane_shape(model, model.lanes[0]);
  for (const NbeatsLane& lane : model.lanes) shape.lookback = std::max<int64_t>(shape.lookback, lane.spec.lookback);
  return shape;
}

std::vector<ops::LaneSpec> specs_of(std::span<const NbeatsLane> lanes) {
  std::vector<ops::LaneSpec> specs;
  for (const NbeatsLane& lane : lanes) specs.push_back(lane.spec);
  return specs;
}

}  // namespace

NbeatsModel ensemble_of(const ForecastSettings& s, const SeriesStore& series) {
  NbeatsModel model;
  model.horizon = s.horizon;
  model.season = season_for(s, series.frequency());
  model.freq = series.numbered() ? "index" : frequency_name(series.frequency());
  model.layers = s.widths.empty() ? 4 : static_cast<int64_t>(s.widths.size());
  model.degree = s.n_basis;
  model.harmonics = s.n_harmonics;
  std::vector<int64_t> lookbacks;
  if (s.input_size > 0) lookbacks = {s.input_size};
  for (const int64_t horizons : s.lookbacks) lookbacks.push_back(horizons * s.horizon);
  for (int64_t repeat = 0; repeat < s.repeats; ++repeat)
    for (const ops::ForecastLoss loss : s.losses)
      for (const int64_t lookback : lookbacks) {
        if (loss == ops::ForecastLoss::quantile)
          fail(ErrorCode::usage, Remedy{"choose smape, mape, mase, mae, mse or huber"},
               "`losses=quantile`: ensembles give medians of point forecasts");
        if (loss == ops::ForecastLoss::mase && model.season >= lookback)
          fail(ErrorCode::usage, Remedy{"choose longer `lookbacks` or other `losses`"},
               "`losses=mase`: a window of {} points holds no two that are a season of {} apart", lookback,
               model.season);
        NbeatsLane lane;
        lane.spec.seed =
            ops::mixed_bits(static_cast<uint64_t>(s.seed) * 0x9E3779B97F4A7C15ULL + model.lanes.size() + 1);
        lane.spec.lookback = static_cast<int32_t>(lookback);
        lane.spec.history =
            static_cast<int32_t>(std::max(1.0, std::round(s.history_size * static_cast<double>(s.horizon))));
        lane.spec.season = static_cast<int32_t>(model.season);
        lane.spec.loss = loss;
        lane.spec.scaler = s.scaler;
        lane.stacks = stacks_of(s);
        model.lanes.push_back(std::move(lane));
      }
  for (const StackSpec& stack : model.lanes[0].stacks)
    if (stack.width % 8 != 0) fail(ErrorCode::usage, "`mlp_units={}`: must be multiples of 8", stack.width);
  return model;
}

int64_t steps_of(const ForecastSettings& s, const SeriesStore& series) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < series.size(); ++i) lengths.push_back(static_cast<int64_t>(series.series(i).size()));
  return steps_of(s, lengths);
}

int64_t steps_of(const ForecastSettings& s, std::span<const int64_t> lengths) {
  if (s.max_steps > 0) return s.max_steps;
  double windows = 0;
  for (const int64_t length : lengths)
    windows += std::clamp(static_cast<double>(length) - 1, 0.0, s.history_size * static_cast<double>(s.horizon));
  return std::max<int64_t>(1, std::llround(s.epochs * windows / static_cast<double>(s.windows_per_step())));
}

EnsembleDevice::EnsembleDevice(const ForecastSettings& s) : device_(open_device(s.device, s.threads)) {
  threads_ = s.threads > 0 ? s.threads : hardware_threads();
  limit_bytes_ = s.memory_limit.on(device_->memory(), device_->name(), s.limit_origin);
  const plan::PrecisionChoice choice = resolve_precision(s.precision, plan::local_profile(*device_), plan::Task::train);
  precision_ = choice.precision;
  precision_reason_ = choice.reason;
  profile_ = plan::measured_profile(*device_, precision_, limit_bytes_);
  Ledger::of(*device_).set_limit(limit_bytes_);
}

EnsemblePlan EnsembleDevice::plan(WaveSpec spec, int64_t lanes, const SeriesStore& series) {
  EnsemblePlan plan;
  plan.limit_bytes = limit_bytes_;
  plan.context_bytes = profile_.context_bytes;
  const auto size = [&](int64_t count) {
    plan.parts = wave_parts(spec, count, series, device_->kind());
    plan.peak_bytes = profile_.context_bytes + total_bytes(plan.parts);
    return plan.peak_bytes;
  };
  for (const bool recompute : {false, true}) {
    if (recompute && spec.task == NbeatsTask::predict) break;
    plan.recompute = spec.options.recompute = recompute;
    if (size(1) > limit_bytes_) continue;
    int64_t fits = 1, too_many = lanes + 1;
    while (too_many - fits > 1) {
      const int64_t middle = (fits + too_many) / 2;
      (size(middle) <= limit_bytes_ ? fits : too_many) = middle;
    }
    plan.waves = (lanes + fits - 1) / fits;
    plan.lanes_per_wave = (lanes + plan.waves - 1) / plan.waves;
    size(plan.lanes_per_wave);
    return plan;
  }
  std::string table;
  for (const memory::LedgerEntry& part : plan.parts)
    table += fmt::format("\n  {:<12} {:<22} {:>12}", tag_name(part.tag), part.owner, format_bytes(part.bytes));
  fail(ErrorCode::does_not_fit,
       Remedy{fmt::format("set `memory_limit={}MiB`, or a smaller `batch_size`", (plan.peak_bytes >> 20) + 1)},
       "does not fit in {} on {}. One lane at a time needs{}\n  {:<12} {:<22} {:>12}\n  {:<35} {:>12}",
       format_bytes(limit_bytes_), device_->name(), table, "context", "driver and program",
       format_bytes(profile_.context_bytes), "in all", format_bytes(plan.peak_bytes));
}

memory::PlannedMemory EnsembleDevice::reserve(const EnsemblePlan& plan, const std::string& name) {
  Ledger& ledger = Ledger::of(*device_);
  hold_context(ledger, profile_);
  return ledger.reserve(name, plan.parts);
}

WaveSpec training_spec(const EnsembleDevice& on, const ForecastSettings& s, const NbeatsModel& model) {
  WaveSpec spec;
  spec.shape = shape_of(model);
  spec.quantiles = model.quantiles;
  spec.options.windows = s.windows_per_step();
  spec.options.mean_of_present = s.mean_of_valid;
  spec.options.max_grad_norm = static_cast<float>(s.max_grad_norm);
  spec.options.season_scale = std::any_of(model.lanes.begin(), model.lanes.end(), [](const NbeatsLane& lane) {
    return lane.spec.loss == ops::ForecastLoss::mase;
  });
  spec.precision = on.precision();
  spec.threads = on.threads();
  return spec;
}

WaveSpec forecasting_spec(const EnsembleDevice& on, const NbeatsModel& model, int64_t windows) {
  WaveSpec spec;
  spec.task = NbeatsTask::predict;
  spec.shape = shape_of(model);
  spec.quantiles = model.quantiles;
  spec.options.windows = std::min(kPredictWindows, windows);
  spec.precision = on.precision();
  spec.threads = on.threads();
  return spec;
}

double median_of(std::span<float> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (static_cast<double>(*middle) + static_cast<double>(*std::max_element(values.begin(), middle))) / 2;
}

TrainedEnsemble train_ensemble(EnsembleDevice& on, const ForecastSettings& s, const SeriesStore& series,
                               NbeatsModel& model, const TellProgress& tell, const std::atomic<bool>* stop) {
  TrainedEnsemble trained;
  WaveTraining job;
  job.spec = training_spec(on, s, model);
  trained.plan = on.plan(job.spec, static_cast<int64_t>(model.lanes.size()), series);
  job.spec.options.recompute = trained.plan.recompute;
  job.steps = steps_of(s, series);
  std::vector<NbeatsLane> good;
  const auto count = static_cast<size_t>(trained.plan.lanes_per_wave);
  for (int64_t w = 0; w < trained.plan.waves; ++w) {
    const size_t first = static_cast<size_t>(w) * count;
    const std::span<NbeatsLane> lanes(&model.lanes[first], std::min(count, model.lanes.size() - first));
    job.spec.lanes = specs_of(lanes);
    memory::PlannedMemory memory = on.reserve(trained.plan, "forecasting");
    TrainedWave wave = train_wave(
        on.device(), s, series, job, &memory,
        [&](int64_t step, double loss) {
          if (tell) tell({w, trained.plan.waves, step, job.steps, loss});
        },
        stop);
    trained.seconds += wave.seconds;
    trained.interrupted = wave.interrupted;
    if (wave.interrupted) return trained;
    for (size_t g = 0; g < lanes.size(); ++g) {
      trained.last_losses.push_back(wave.lanes[g].last_loss);
      if (wave.lanes[g].failed) continue;
      lanes[g].slab =
          move_lane(job.spec.shape, lane_shape(model, lanes[g]), lanes[g].spec.lookback, wave.lanes[g].state.slab);
      good.push_back(std::move(lanes[g]));
    }
  }
  model.lanes = std::move(good);
  return trained;
}

std::vector<double> predict_ensemble(EnsembleDevice& on, const NbeatsModel& model, const SeriesStore& series,
                                     const std::function<void(int64_t done, int64_t total)>& tell,
                                     const std::atomic<bool>* stop) {
  WaveSpec spec = forecasting_spec(on, model, series.size());
  const EnsemblePlan plan = on.plan(spec, static_cast<int64_t>(model.lanes.size()), series);
  const size_t L = model.lanes.size(), H = static_cast<size_t>(model.horizon), S = static_cast<size_t>(series.size());
  std::vector<float> all(S * H * L);  // lanes of a point side by side
  const auto count = static_cast<size_t>(plan.lanes_per_wave);
  for (int64_t w = 0; w < plan.waves; ++w) {
    const size_t first = static_cast<size_t>(w) * count;
    const std::span<const NbeatsLane> lanes(&model.lanes[first], std::min(count, L - first));
    spec.lanes = specs_of(lanes);
    memory::PlannedMemory memory = on.reserve(plan, "forecasting");
    Wave wave(on.device(), spec, series, {}, ops::Sampling::series, &memory);
    for (size_t g = 0; g < lanes.size(); ++g)
      wave.state().upload(wave.stream(), static_cast<int64_t>(g),
                          move_lane(lane_shape(model, lanes[g]), spec.shape, lanes[g].spec.lookback, lanes[g].slab));
    wave.state().refresh(wave.stream());
    for (size_t from = 0; from < S; from += static_cast<size_t>(spec.options.windows)) {
      if (stop != nullptr && stop->load(std::memory_order_relaxed))
        fail(ErrorCode::interrupted, "interrupted; nothing was written");
      const size_t n = std::min(static_cast<size_t>(spec.options.windows), S - from);
      std::vector<std::vector<ops::WindowPick>> windows(1);
      for (size_t i = from; i < from + n; ++i)
        windows[0].push_back(
            {static_cast<int32_t>(i), static_cast<int32_t>(series.series(static_cast<int64_t>(i)).size())});
      const std::vector<float> got = wave.predict(windows);
      for (size_t g = 0; g < lanes.size(); ++g)
        for (size_t i = 0; i < n * H; ++i) all[(from * H + i) * L + first + g] = got[g * n * H + i];
      if (tell) tell(w * series.size() + static_cast<int64_t>(from + n), plan.waves * series.size());
    }
  }
  std::vector<double> medians(S * H);
  for (size_t i = 0; i < medians.size(); ++i) medians[i] = median_of(std::span(all).subspan(i * L, L));
  return medians;
}

}  // namespace brim::forecast
