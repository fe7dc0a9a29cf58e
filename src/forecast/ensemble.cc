// SPDX-License-Identifier: Apache-2.0
#include "forecast/ensemble.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "base/error.h"
#include "base/thread_pool.h"
#include "base/timeline.h"
#include "base/units.h"
#include "device/cuda_info.h"
#include "forecast/state_file.h"
#include "io/quote_text.h"
#include "plan/card_measure.h"

namespace brim::forecast {

using device::DeviceKind;
using memory::Ledger;

namespace {

// Shape shared by all waves of a model: lanes have the same stacks but may differ in lookback.
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

plan::PrecisionChoice lane_precision(const plan::PrecisionRequest& request, const plan::DeviceProfile& device) {
  // CPUs with bf16 matrix instructions are more than twice as fast in bf16, at a cost of 0.003 weekly OWA
  // (docs/archive/measurements.md).
  if (device.kind == DeviceKind::cpu && !request.precision) return resolve_precision({}, device, plan::Task::score);
  if (request.precision == ops::Precision::fp8)
    fail(ErrorCode::usage, "`precision=fp8` is not supported for training; use fp32, tf32 or bf16");
  const plan::PrecisionChoice choice = resolve_precision(request, device, plan::Task::train);
  if (choice.precision != ops::Precision::fp16) return choice;
  return {ops::Precision::fp32,
          fmt::format("{} does not support bf16, and fp16 would require loss scaling", device.name)};
}

EnsembleDevice::EnsembleDevice(const ForecastSettings& s) : device_(open_device(s.device, s.threads)) {
  load_all_kernels(*device_);
  threads_ = s.threads > 0 ? s.threads : hardware_threads();
  limit_bytes_ = s.memory_limit.on(device_->memory(), device_->name(), s.limit_origin);
  const plan::PrecisionChoice choice = lane_precision(s.precision, plan::local_profile(*device_));
  precision_ = choice.precision;
  precision_reason_ = choice.reason;
  const bool by_default = device_->kind() == DeviceKind::cpu && !s.precision.precision;
  forecast_precision_ = by_default ? ops::Precision::fp32 : precision_;
  limit_is_given_ = s.memory_limit.bytes > 0 || s.memory_limit.percent > 0;
  profile_ = limit_is_given_ ? plan::measured_profile(*device_, precision_, limit_bytes_)
                             : plan::cached_profile(*device_, precision_);
  Ledger::of(*device_).set_limit(limit_bytes_);
}

EnsemblePlan plan_lanes(WaveSpec spec, int64_t lanes, int64_t series, int64_t points, const LaneTarget& target) {
  EnsemblePlan plan;
  plan.limit_bytes = target.limit_bytes;
  plan.context_bytes = target.context_bytes;
  const auto size = [&](int64_t count) {
    plan.parts = wave_parts(spec, count, series, points, target.kind);
    plan.peak_bytes = target.context_bytes + total_bytes(plan.parts);
    return plan.peak_bytes;
  };
  for (const bool recompute : {false, true}) {
    if (recompute && spec.task == NbeatsTask::predict) break;
    plan.recompute = spec.options.recompute = recompute;
    if (size(1) > target.limit_bytes) continue;
    int64_t fits = 1, too_many = lanes + 1;
    while (too_many - fits > 1) {
      const int64_t middle = (fits + too_many) / 2;
      (size(middle) <= target.limit_bytes ? fits : too_many) = middle;
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
       Remedy{fmt::format("set `memory_limit={}MiB` or a smaller `batch_size`", (plan.peak_bytes >> 20) + 1)},
       "does not fit in {} on {}. One lane requires{}\n  {:<12} {:<22} {:>12}\n  {:<35} {:>12}",
       format_bytes(target.limit_bytes), target.name, table, "context", "driver and program",
       format_bytes(target.context_bytes), "total", format_bytes(plan.peak_bytes));
}

bool needs_measured_context(bool limit_is_given, int64_t lanes_bytes, int64_t limit_bytes) {
  return limit_is_given || lanes_bytes > limit_bytes / 2;
}

EnsemblePlan EnsembleDevice::plan(const WaveSpec& spec, int64_t lanes, const SeriesStore& series) const {
  const auto points = static_cast<int64_t>(series.values().size());
  if (!profile_.context_measured &&
      needs_measured_context(
          limit_is_given_, total_bytes(wave_parts(spec, lanes, series.size(), points, device_->kind())), limit_bytes_))
    profile_ = plan::measured_profile(*device_, precision_, limit_bytes_);
  return plan_lanes(spec, lanes, series.size(), points,
                    {device_->name(), device_->kind(), limit_bytes_, profile_.context_bytes});
}

EnsemblePlan EnsembleDevice::plan_without_limit(const WaveSpec& spec, int64_t lanes, const SeriesStore& series) const {
  const int64_t limit = std::max(limit_bytes_, plan::MemoryLimit().on(device_->memory()));
  return plan_lanes(spec, lanes, series.size(), static_cast<int64_t>(series.values().size()),
                    {device_->name(), device_->kind(), limit, profile_.context_bytes});
}

memory::PlannedMemory EnsembleDevice::reserve(const EnsemblePlan& plan, const std::string& name) {
  Ledger& ledger = Ledger::of(*device_);
  hold_context(ledger, profile_);
  return ledger.reserve(name, plan.parts);
}

WaveSpec training_spec(ops::Precision precision, int threads, const ForecastSettings& s, const NbeatsModel& model) {
  WaveSpec spec;
  spec.shape = shape_of(model);
  spec.quantiles = model.quantiles;
  spec.options.windows = s.windows_per_step();
  spec.options.mean_of_present = s.mean_of_valid;
  spec.options.max_grad_norm = static_cast<float>(s.max_grad_norm);
  spec.options.season_scale = std::any_of(model.lanes.begin(), model.lanes.end(), [](const NbeatsLane& lane) {
    return lane.spec.loss == ops::ForecastLoss::mase;
  });
  spec.precision = precision;
  spec.threads = threads;
  return spec;
}

WaveSpec forecasting_spec(const EnsembleDevice& on, const NbeatsModel& model, int64_t windows) {
  WaveSpec spec;
  spec.task = NbeatsTask::predict;
  spec.shape = shape_of(model);
  spec.quantiles = model.quantiles;
  spec.options.windows = std::min(kPredictWindows, windows);
  spec.precision = on.forecast_precision();
  spec.threads = on.threads();
  return spec;
}

std::vector<std::vector<int64_t>> split_lanes(const EnsembleDevice& on, const WaveSpec& spec, const SeriesStore& series,
                                              std::vector<int64_t> todo, const std::filesystem::path& checkpoint,
                                              const std::string& owner) {
  const auto is_among = [](const std::vector<int64_t>& ids, int64_t id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  std::vector<std::vector<int64_t>> waves;
  std::vector<int64_t> begun;
  if (!checkpoint.empty()) begun = checkpointed_lanes(checkpoint, owner);
  if (!begun.empty() && std::all_of(begun.begin(), begun.end(), [&](int64_t id) { return is_among(todo, id); }) &&
      on.plan(spec, static_cast<int64_t>(begun.size()), series).waves == 1) {
    std::erase_if(todo, [&](int64_t id) { return is_among(begun, id); });
    waves.push_back(std::move(begun));
  }
  if (todo.empty()) return waves;
  const int64_t count = on.plan(spec, static_cast<int64_t>(todo.size()), series).lanes_per_wave;
  for (auto first = todo.begin(); first != todo.end();) {
    const auto last = first + std::min<std::ptrdiff_t>(count, todo.end() - first);
    waves.emplace_back(first, last);
    first = last;
  }
  return waves;
}

std::vector<ops::WindowPick> validated_windows(const std::vector<ops::WindowPick>& windows) {
  constexpr int64_t kMost = 1024;
  const auto n = static_cast<int64_t>(windows.size());
  std::vector<ops::WindowPick> some;
  for (int64_t i = 0; i < std::min(n, kMost); ++i)
    some.push_back(windows[static_cast<size_t>(i * n / std::min(n, kMost))]);
  return some;
}

double median_of(std::span<float> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (static_cast<double>(*middle) + static_cast<double>(*std::max_element(values.begin(), middle))) / 2;
}

namespace {

constexpr const char* kTrainingOwner = "training run";

std::string data_hash(const SeriesStore& series) {
  train::ContentHash hash;
  for (int64_t i = 0; i < series.size(); ++i) {
    hash.add(std::string_view(series.id(i)));
    const int64_t first = series.first_step(i);
    hash.add(&first, sizeof first);
  }
  hash.add_all(series.begin());
  hash.add_all(series.values());
  for (const rows::CovariateValues& values : series.covariates()) {
    hash.add(std::string_view(values.column.name));
    for (const std::string& category : values.categories) hash.add(std::string_view(category));
    hash.add_all(std::span<const float>(values.values));
  }
  return hash.hex();
}

// Checks that `state` belongs to this run and returns its fingerprint.
std::string open_training(const std::filesystem::path& state, const std::vector<std::string>& lines) {
  std::error_code error;
  std::filesystem::create_directories(state, error);
  if (error) fail(ErrorCode::cannot_write, "{}: {}", state.string(), error.message());
  const std::filesystem::path path = state / "run.bin";
  if (auto was = StateReader::open(path, kTrainingOwner))
    for (const std::string& line : lines)
      if (const std::string other = was->text(); other != line)
        fail(ErrorCode::cannot_write,
             Remedy{fmt::format("set `{}` to continue it, or set `output` to another directory", other)},
             "{}: contains a training run with `{}`, but this run has `{}`", state.parent_path().string(), other, line);
  StateWriter file(path, kTrainingOwner);
  for (const std::string& line : lines) file.text(line);
  file.commit();
  return fmt::format("{}", fmt::join(lines, "\n"));
}

using LanesById = std::map<int64_t, TrainedLane>;

void write_trained(const std::filesystem::path& path, const std::string& owner, const std::vector<int64_t>& ids,
                   const TrainedWave& wave) {
  StateWriter file(path, owner);
  file.list(ids);
  for (const TrainedLane& lane : wave.lanes) {
    file.put(lane.failed);
    file.put(lane.last_loss);
    file.put(lane.best_step);
    file.list(lane.curve);
    file.list(lane.state.slab);
  }
  file.commit();
}

bool read_trained(const std::filesystem::path& path, const std::string& owner, LanesById& lanes) {
  auto file = StateReader::open(path, owner);
  if (!file) return false;
  for (const int64_t id : file->list<int64_t>()) {
    TrainedLane& lane = lanes[id];
    lane.failed = file->get<bool>();
    lane.last_loss = file->get<float>();
    lane.best_step = file->get<int64_t>();
    lane.curve = file->list<float>();
    lane.state.slab = file->list<float>();
  }
  return true;
}

// The last horizon of every series that has enough history before it.
std::vector<ops::WindowPick> validation_windows(const SeriesStore& series, int64_t horizon) {
  std::vector<ops::WindowPick> windows;
  for (int64_t i = 0; i < series.size(); ++i)
    if (const auto known = static_cast<int64_t>(series.series(i).size()) - horizon; known >= 2)
      windows.push_back({static_cast<int32_t>(i), static_cast<int32_t>(known)});
  if (windows.empty())
    fail(ErrorCode::bad_data, Remedy{"set `early_stop_patience_steps=0` or a shorter `horizon`"},
         "no series has two points before its last {}, which early stopping holds out", horizon);
  return validated_windows(windows);
}

// Training targets for the last step of the horizon need series longer than the horizon.
void check_lengths(const ForecastSettings& s, const SeriesStore& series) {
  BRIM_CHECK(series.size() > 0, "no series to train on");
  int64_t longest = 0;
  for (int64_t i = 1; i < series.size(); ++i)
    if (series.series(i).size() > series.series(longest).size()) longest = i;
  const auto points = static_cast<int64_t>(series.series(longest).size());
  if (points <= s.horizon)
    fail(ErrorCode::bad_data,
         Remedy{points > 1 ? fmt::format("set `horizon={}` or less, or provide longer series", points - 1)
                           : "provide longer series"},
         "{}: the longest series, {}, has {}, but a horizon of {} requires {}", s.data.empty() ? "data" : s.data[0],
         io::quote_text(series.id(longest)), format_count(points, "point"), s.horizon, s.horizon + 1);
}

// Opens the directory of an interrupted training, whose lanes it reads. Returns the number of waves that were saved.
int64_t resume_lanes(const ForecastSettings& s, ops::Precision precision, const SeriesStore& series,
                     const NbeatsModel& model, const std::filesystem::path& state, WaveTraining& job,
                     LanesById& lanes) {
  std::vector<std::string> lines = run_lines(s, precision);
  lines.push_back("data=" + data_hash(series));
  if (!model.lanes[0].slab.empty()) {
    train::ContentHash weights;
    for (const NbeatsLane& lane : model.lanes) weights.add_all(std::span<const float>(lane.slab));
    lines.push_back("weights=" + weights.hex());
  }
  job.owner = open_training(state, lines);
  job.checkpoint = state / "wave.bin";
  int64_t waves = 0;
  for (const auto& entry : std::filesystem::directory_iterator(state))
    if (entry.path().filename().string().starts_with("lanes-") && read_trained(entry.path(), job.owner, lanes)) ++waves;
  return waves;
}

// Sets the lanes of the next wave, and their start, cutoffs and validation windows.
void set_lanes(WaveTraining& job, const std::vector<int64_t>& ids, const NbeatsModel& model, const SeriesStore& series,
               int64_t horizon) {
  job.spec.lanes.clear();
  for (const int64_t id : ids) job.spec.lanes.push_back(model.lanes[static_cast<size_t>(id)].spec);
  job.lanes = ids;
  job.start.clear();
  for (const int64_t id : ids)
    if (const NbeatsLane& lane = model.lanes[static_cast<size_t>(id)]; !lane.slab.empty())
      job.start.push_back({move_lane(lane_shape(model, lane), job.spec.shape, lane.spec.lookback, lane.slab), {}, {}});
  if (!job.spec.own_cutoffs) return;
  LaneCutoffs kept_back = whole_series(series.begin());
  for (int32_t& end : kept_back.end) end = std::max<int32_t>(0, end - static_cast<int32_t>(horizon));
  job.cutoffs.assign(ids.size(), kept_back);
  job.validation.resize(ids.size(), job.validation[0]);
}

// Moves the lanes that did not fail into the model; `shape` is that of their waves.
void keep_trained(LanesById& lanes, const NbeatsShape& shape, int threads, NbeatsModel& model,
                  TrainedEnsemble& trained) {
  std::vector<NbeatsLane> good;
  std::vector<std::vector<float>> slabs;  // in the layout of their waves
  for (auto& [id, made] : lanes) {
    trained.last_losses.push_back(made.last_loss);
    trained.best_steps.push_back(made.best_step);
    trained.curves.push_back(std::move(made.curve));
    if (made.failed) continue;
    good.push_back(std::move(model.lanes[static_cast<size_t>(id)]));
    slabs.push_back(std::move(made.state.slab));
  }
  ThreadPool pool(std::clamp(threads, 1, 16));
  pool.parallel_for(good.size(), [&](size_t i, int) {
    NbeatsLane& lane = good[i];
    lane.slab = move_lane(shape, lane_shape(model, lane), lane.spec.lookback, slabs[i]);
    std::vector<float>().swap(slabs[i]);  // assigning {} would keep the capacity
  });
  if (good.empty())
    fail(ErrorCode::diverged, Remedy{"set a smaller `learning_rate`"},
         "all lanes diverged: their gradients were not finite for 20 steps in a row");
  model.lanes = std::move(good);
}

}  // namespace

TrainedEnsemble train_ensemble(EnsembleDevice& on, const ForecastSettings& s, const SeriesStore& series,
                               NbeatsModel& model, const std::filesystem::path& state,
                               const OnEnsembleProgress& progress, const std::atomic<bool>* stop) {
  check_lengths(s, series);
  TrainedEnsemble trained;
  WaveTraining job;
  job.spec = training_spec(on.precision(), on.threads(), s, model);
  CovariateTable covariates;
  if (!model.covariates.empty()) covariates = encode_covariates(model.covariates, series, model.horizon);
  job.spec.covariates = &covariates;
  if (s.early_stop_patience > 0) {
    job.validation = {validation_windows(series, s.horizon)};
    job.spec.validation_windows = std::min<int64_t>(kPredictWindows, static_cast<int64_t>(job.validation[0].size()));
    job.spec.own_cutoffs = true;
  }
  trained.plan = on.plan(job.spec, static_cast<int64_t>(model.lanes.size()), series);
  job.steps = steps_of(s, series);
  LanesById lanes;
  const int64_t waves_before = state.empty() ? 0 : resume_lanes(s, on.precision(), series, model, state, job, lanes);
  trained.resumed_lanes = static_cast<int64_t>(lanes.size());
  std::vector<int64_t> todo;
  for (int64_t id = 0; id < static_cast<int64_t>(model.lanes.size()); ++id)
    if (!lanes.contains(id)) todo.push_back(id);
  const std::vector<std::vector<int64_t>> waves =
      split_lanes(on, job.spec, series, std::move(todo), job.checkpoint, job.owner);
  for (size_t w = 0; w < waves.size(); ++w) {
    const std::vector<int64_t>& ids = waves[w];
    const EnsemblePlan plan = on.plan(job.spec, static_cast<int64_t>(ids.size()), series);
    job.spec.options.recompute = plan.recompute;
    set_lanes(job, ids, model, series, s.horizon);
    memory::PlannedMemory memory = on.reserve(plan, "forecasting");
    TrainedWave wave = train_wave(
        on.device(), s, series, job, &memory,
        [&](int64_t step, double loss) {
          if (progress)
            progress({waves_before + static_cast<int64_t>(w), waves_before + static_cast<int64_t>(waves.size()), step,
                      job.steps, loss});
        },
        stop);
    trained.seconds += wave.seconds;
    trained.busy_seconds += wave.busy_seconds;
    trained.interrupted = wave.interrupted;
    if (wave.interrupted) return trained;
    const ScopedZone zone(Zone::checkpoint);
    // The last wave's lanes are saved with the model right afterwards; its checkpoint remains until then.
    if (!state.empty() && w + 1 < waves.size())
      write_trained(state / fmt::format("lanes-{:07}.bin", ids.front()), job.owner, ids, wave);
    for (size_t g = 0; g < ids.size(); ++g) lanes[ids[g]] = std::move(wave.lanes[g]);
  }
  keep_trained(lanes, job.spec.shape, on.threads(), model, trained);
  return trained;
}

std::vector<double> EnsembleForecasts::of(int64_t series, size_t quantile) const {
  const auto Q = std::max<int64_t>(1, static_cast<int64_t>(quantiles.size()));
  const auto first = values.begin() + (series * Q + static_cast<int64_t>(quantile)) * horizon;
  return {first, first + horizon};
}

EnsembleForecasts predict_ensemble(EnsembleDevice& on, const NbeatsModel& model, const SeriesStore& series,
                                   bool components, const std::function<void(int64_t done, int64_t total)>& progress,
                                   const std::atomic<bool>* stop) {
  WaveSpec spec = forecasting_spec(on, model, series.size());
  CovariateTable covariates;
  if (!model.covariates.empty()) covariates = encode_covariates(model.covariates, series, model.horizon);
  spec.covariates = &covariates;
  spec.options.components = components;
  const EnsemblePlan plan = on.plan(spec, static_cast<int64_t>(model.lanes.size()), series);
  const size_t L = model.lanes.size(), H = static_cast<size_t>(model.horizon), S = static_cast<size_t>(series.size()),
               Q = static_cast<size_t>(spec.shape.quantiles), each = Q * H;
  EnsembleForecasts out;
  out.horizon = model.horizon;
  out.quantiles = model.quantiles;
  if (components) {
    out.stacks = {"level"};
    for (const StackSpec& stack : model.lanes[0].stacks) out.stacks.emplace_back(stack_kind_name(stack.kind));
    out.components.resize(S * out.stacks.size() * H);
  }
  std::vector<float> all(S * each * L);  // [series][point][lane]
  const auto count = static_cast<size_t>(plan.lanes_per_wave);
  for (int64_t w = 0; w < plan.waves; ++w) {
    const size_t first = static_cast<size_t>(w) * count;
    const std::span<const NbeatsLane> lanes(&model.lanes[first], std::min(count, L - first));
    spec.lanes = specs_of(lanes);
    memory::PlannedMemory memory = on.reserve(plan, "forecasting");
    Wave wave(on.device(), spec, series, {}, ops::Sampling::series, &memory);
    wave.upload([&](size_t g) {
      return move_lane(lane_shape(model, lanes[g]), spec.shape, lanes[g].spec.lookback, lanes[g].slab);
    });
    wave.state().refresh(wave.stream());
    for (size_t from = 0; from < S; from += static_cast<size_t>(spec.options.windows)) {
      if (stop != nullptr && stop->load(std::memory_order_relaxed))
        fail(ErrorCode::interrupted, "interrupted; nothing was written");
      const size_t n = std::min(static_cast<size_t>(spec.options.windows), S - from);
      std::vector<std::vector<ops::WindowPick>> windows(1);
      for (size_t i = from; i < from + n; ++i)
        windows[0].push_back(
            {static_cast<int32_t>(i), static_cast<int32_t>(series.series(static_cast<int64_t>(i)).size())});
      std::vector<std::vector<float>> after;
      const std::vector<float> got = wave.predict(windows, components ? &after : nullptr);
      for (size_t g = 0; g < lanes.size(); ++g)
        for (size_t i = 0; i < n * each; ++i) all[(from * each + i) * L + first + g] = got[g * n * each + i];
      for (size_t c = 0; c < out.stacks.size(); ++c)
        for (size_t g = 0; g < lanes.size(); ++g)
          for (size_t i = 0; i < n; ++i)
            for (size_t h = 0; h < H; ++h) {
              const size_t at = ((g * n + i) * Q + Q / 2) * H + h;
              const auto level = static_cast<double>(after[0][g * n + i]);
              const double added =
                  c == 0 ? level
                         : static_cast<double>(after[c][at]) - (c == 1 ? level : static_cast<double>(after[c - 1][at]));
              out.components[((from + i) * out.stacks.size() + c) * H + h] += added / static_cast<double>(L);
            }
      if (progress) progress(w * series.size() + static_cast<int64_t>(from + n), plan.waves * series.size());
    }
  }
  // Checked before the medians, which could hide the NaN of one lane.
  const auto bad = std::find_if(all.begin(), all.end(), [](float v) { return !std::isfinite(v); });
  if (bad != all.end())
    fail(ErrorCode::bad_model, Remedy{"check the model's weights and the values of this series"},
         "the forecast of series {} is not finite",
         io::quote_text(series.id((bad - all.begin()) / static_cast<int64_t>(each * L))));
  out.values.resize(S * each);
  for (size_t i = 0; i < out.values.size(); ++i) out.values[i] = median_of(std::span(all).subspan(i * L, L));
  // Sort crossed quantiles.
  std::vector<double> point(Q);
  for (size_t s = 0; s < S && Q > 1; ++s)
    for (size_t h = 0; h < H; ++h) {
      for (size_t q = 0; q < Q; ++q) point[q] = out.values[(s * Q + q) * H + h];
      std::sort(point.begin(), point.end());
      for (size_t q = 0; q < Q; ++q) out.values[(s * Q + q) * H + h] = point[q];
    }
  return out;
}

}  // namespace brim::forecast
