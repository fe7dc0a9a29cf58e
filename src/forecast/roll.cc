// SPDX-License-Identifier: Apache-2.0
#include "forecast/roll.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "base/clock.h"
#include "base/error.h"
#include "base/timeline.h"
#include "base/units.h"
#include "device/device_spans.h"
#include "forecast/roll_header.h"
#include "forecast/state_file.h"

namespace brim::forecast {
namespace {

namespace fs = std::filesystem;

fs::path wave_path(const fs::path& state, int64_t first) { return state / fmt::format("lanes-{:07}.bin", first); }
fs::path base_path(const fs::path& state, int64_t lane) { return state / fmt::format("base-{:07}.bin", lane); }

// Points of each series before the cutoff of the first training: scaling and categories depend on these only.
std::vector<int64_t> known_before(const RollPlan& plan, const SeriesStore& series, int64_t horizon) {
  std::vector<int64_t> known;
  for (int64_t i = 0; i < series.size(); ++i)
    known.push_back(cut_series(plan.trainings.front().fold, horizon, series.first_step(i),
                               static_cast<int64_t>(series.series(i).size()))
                        .train_end);
  return known;
}

class Roller {
 public:
  Roller(EnsembleDevice& on, const ForecastSettings& s, const SeriesStore& series, const NbeatsModel& members,
         const RollPlan& plan, std::span<const int64_t> known, const fs::path& state,
         const std::function<void(const RollProgress&)>& progress, const std::atomic<bool>* stop)
      : on_(on), s_(s), series_(series), members_(members), plan_(plan), state_(state), report_(progress), stop_(stop) {
    run_.lanes.resize(plan.trainings.size() * members.lanes.size());
    spec_ = training_spec(on.precision(), on.threads(), s, members);
    spec_.own_cutoffs = true;
    if (s.early_stop_patience > 0) spec_.validation_windows = std::min(kPredictWindows, series.size());
    if (members.covariates.empty()) return;
    table_ = encode_covariates(members.covariates, series, members.horizon, known);
    spec_.covariates = &table_;
    covariate_line_ = covariate_line(members.covariates, series, known);
  }

  RollRun run() {
    run_.memory = on_.plan(spec_, static_cast<int64_t>(run_.lanes.size()), series_);  // throws before any work is done
    open_state();
    for (int64_t round = 0; round < plan_.rounds && !run_.interrupted; ++round) run_round(round);
    if (run_.interrupted) return std::move(run_);
    check_lanes();
    if (s_.keep_models) save_models();
    return std::move(run_);
  }

 private:
  // Records one timeline entry for the duration of a scope.
  class SpanOf {
   public:
    SpanOf(Roller& roller, RollSpan::What what, size_t lanes)
        : roller_(roller), span_{what, seconds_since(roller.began_ns_), 0, static_cast<int64_t>(lanes)} {}
    ~SpanOf() {
      span_.end = seconds_since(roller_.began_ns_);
      roller_.run_.timeline.push_back(span_);
    }
    SpanOf(const SpanOf&) = delete;
    SpanOf& operator=(const SpanOf&) = delete;

   private:
    Roller& roller_;
    RollSpan span_;
  };

  size_t members() const { return members_.lanes.size(); }
  const RollTraining& training_of(int64_t lane) const { return plan_.trainings[static_cast<size_t>(lane) / members()]; }

  void open_state() {
    std::error_code error;
    fs::create_directories(state_, error);
    if (error) fail(ErrorCode::cannot_write, "{}: {}", state_.string(), error.message());
    std::vector<std::string> lines = run_lines(s_, on_.precision(), {"folds", "shrink"});
    if (!covariate_line_.empty()) lines.push_back(covariate_line_);
    owner_ = fmt::format("{}", fmt::join(lines, "\n"));
    if (const auto was = read_header(state_)) check_header(state_, *was, lines, plan_, series_, s_.extend);
    write_header(state_, lines, plan_, series_, members_.horizon);
    owner_ += fmt::format("\nfirst cutoff {}", plan_.folds.front().cutoff);
    for (const auto& entry : fs::directory_iterator(state_))
      if (entry.path().filename().string().starts_with("lanes-")) read_wave(entry.path());
    for (const RolledLane& lane : run_.lanes) run_.resumed_lanes += lane.done ? 1 : 0;
  }

  void read_wave(const fs::path& path) {
    auto file = StateReader::open(path, owner_);
    if (!file) return;
    for (const int64_t id : file->list<int64_t>()) {
      RolledLane lane;
      lane.done = true;
      lane.failed = file->get<bool>();
      lane.last_loss = file->get<float>();
      lane.curve = file->list<float>();
      lane.forecasts = file->list<float>();
      // The last fold of a training may have had fewer cutoffs than it has in an extended run.
      const auto at = static_cast<size_t>(id);
      if (at < run_.lanes.size() && lane.forecasts.size() == forecast_values(training_of(id)))
        run_.lanes[at] = std::move(lane);
    }
  }

  void write_wave(const std::vector<int64_t>& ids) {
    StateWriter file(wave_path(state_, ids.front()), owner_);
    file.list(ids);
    for (const int64_t id : ids) {
      const RolledLane& lane = run_.lanes[static_cast<size_t>(id)];
      file.put(lane.failed);
      file.put(lane.last_loss);
      file.list(lane.curve);
      file.list(lane.forecasts);
    }
    file.commit();
  }

  size_t forecast_values(const RollTraining& training) const {
    size_t windows = 0;
    for (const int64_t cutoff : training.cutoffs)
      windows += windows_at(series_, members_, training.fold, cutoff).size();
    return windows * static_cast<size_t>(members_.horizon);
  }

  void run_round(int64_t round) {
    std::vector<int64_t> todo;
    for (size_t i = 0; i < run_.lanes.size(); ++i)
      if (!run_.lanes[i].done && training_of(static_cast<int64_t>(i)).round == round)
        todo.push_back(static_cast<int64_t>(i));
    for (const auto& ids : split_lanes(on_, spec_, series_, std::move(todo), state_ / "wave.bin", owner_)) {
      if (run_.interrupted) return;
      run_wave(ids);
    }
  }

  void run_wave(const std::vector<int64_t>& ids) {
    WaveTraining job;
    job.spec = spec_;
    job.lanes = ids;
    job.checkpoint = state_ / "wave.bin";
    job.owner = owner_;
    for (const int64_t id : ids) {
      const RollTraining& training = training_of(id);
      BRIM_CHECK(job.steps == 0 || job.steps == training.steps, "{} steps beside {}", training.steps, job.steps);
      job.steps = training.steps;
      job.steps_before = training.steps_before;
      job.keep_moments = job.keep_moments || training.keeps_moments || s_.warm == WarmStart::chain;
      ops::LaneSpec spec = members_.lanes[static_cast<size_t>(id) % members()].spec;
      spec.seed = ops::mixed_bits(spec.seed + 0x9E3779B97F4A7C15ULL * (3 * static_cast<uint64_t>(training.fold.cutoff) +
                                                                       static_cast<uint64_t>(training.kind) + 1));
      job.spec.lanes.push_back(spec);
      job.cutoffs.push_back(cutoffs_of(training.fold, false));
      if (s_.early_stop_patience > 0) job.validation.push_back(hold_out_last(training.fold, job.cutoffs.back()));
      job.start.push_back(start_of(id));
    }
    const EnsemblePlan memory_plan = on_.plan(spec_, static_cast<int64_t>(ids.size()), series_);
    BRIM_CHECK(memory_plan.waves == 1, "{} lanes in {} waves", ids.size(), memory_plan.waves);
    job.spec.options.recompute = memory_plan.recompute;
    TrainedWave trained;
    {
      const SpanOf span(*this, RollSpan::What::training, ids.size());
      memory::PlannedMemory memory = on_.reserve(memory_plan, "rolling training");
      trained = train_wave(
          on_.device(), s_, series_, job, &memory,
          [&](int64_t step, double loss) { report(ids, step, job.steps, loss); }, stop_);
    }
    run_.seconds += trained.seconds;
    run_.busy_seconds += trained.busy_seconds;
    run_.interrupted = trained.interrupted;
    if (run_.interrupted) return;
    for (size_t g = 0; g < ids.size(); ++g) {
      RolledLane& lane = run_.lanes[static_cast<size_t>(ids[g])];
      lane.failed = trained.lanes[g].failed;
      lane.last_loss = trained.lanes[g].last_loss;
      lane.curve = std::move(trained.lanes[g].curve);
    }
    {
      const SpanOf span(*this, RollSpan::What::forecasting, ids.size());
      forecast(ids, job, trained);
    }
    const SpanOf span(*this, RollSpan::What::saving, ids.size());
    const ScopedZone zone(Zone::checkpoint);
    for (size_t g = 0; g < ids.size(); ++g) keep_state(ids[g], trained.lanes[g].state);
    write_wave(ids);
    for (const int64_t id : ids) run_.lanes[static_cast<size_t>(id)].done = true;
    ++run_.waves;
    std::error_code ignored;
    fs::remove(job.checkpoint, ignored);
    // Keep the last two links of a chain: the last one may be needed for forecasts if the run is extended.
    if (s_.warm == WarmStart::chain && !s_.keep_models)
      for (const int64_t id : ids)
        if (const int64_t base = training_of(id).base; base >= 0)
          if (const int64_t before = plan_.trainings[static_cast<size_t>(base)].base; before >= 0)
            fs::remove(base_path(state_, lane_of(before, id)), ignored);
  }

  int64_t lane_of(int64_t training, int64_t like) const {
    return training * static_cast<int64_t>(members()) + like % static_cast<int64_t>(members());
  }

  LaneCutoffs cutoffs_of(const Fold& fold, bool all_known) const {
    LaneCutoffs c;
    for (int64_t i = 0; i < series_.size(); ++i) {
      const auto length = static_cast<int64_t>(series_.series(i).size());
      const FoldCut cut = cut_series(fold, members_.horizon, series_.first_step(i), length);
      c.first.push_back(static_cast<int32_t>(cut.train_begin));
      c.end.push_back(static_cast<int32_t>(all_known ? length : cut.train_end));
    }
    return c;
  }

  // For early stopping: removes the last horizon of the training data from the cutoffs, and returns its windows.
  std::vector<ops::WindowPick> hold_out_last(const Fold& fold, LaneCutoffs& cutoffs) const {
    std::vector<ops::WindowPick> windows;
    for (size_t i = 0; i < cutoffs.end.size(); ++i) {
      const auto known = static_cast<int32_t>(cutoffs.end[i] - members_.horizon);
      if (known - cutoffs.first[i] >= 2) windows.push_back({static_cast<int32_t>(i), known});
      cutoffs.end[i] = std::max(cutoffs.first[i], known);
    }
    if (windows.empty())
      fail(ErrorCode::bad_data, Remedy{"set `early_stop_patience_steps=0`, fewer `folds` or a shorter `horizon`"},
           "fold {}: no series has two points before the last {}, which early stopping holds out", fold.index,
           format_count(members_.horizon, "point"));
    return validated_windows(windows);
  }

  LaneState start_of(int64_t id) const {
    const int64_t base = training_of(id).base;
    if (base < 0) return {};
    auto file = StateReader::open(base_path(state_, lane_of(base, id)), owner_);
    if (!file)
      fail(ErrorCode::bad_data, Remedy{"remove the directory and start over"},
           "{}: is missing or damaged but required by later folds", base_path(state_, lane_of(base, id)).string());
    LaneState from;
    from.slab = file->list<float>();
    if (training_of(id).keeps_moments) {
      from.first = file->list<float>();
      from.second = file->list<float>();
    }
    return from;
  }

  void keep_state(int64_t id, const LaneState& state) {
    const auto training = static_cast<size_t>(id) / members();
    const bool link = s_.warm == WarmStart::chain && plan_.trainings[training].kind == RollTraining::Kind::fold;
    if (!s_.keep_models && !link && !plan_.is_base(training)) return;
    StateWriter file(base_path(state_, id), owner_);
    file.list(state.slab);
    file.list(state.first);
    file.list(state.second);
    file.commit();
  }

  void forecast(const std::vector<int64_t>& ids, const WaveTraining& job, const TrainedWave& trained) {
    const ScopedZone zone(Zone::evaluate);
    std::vector<std::vector<ops::WindowPick>> windows;
    size_t most = 0;
    for (const int64_t id : ids) {
      windows.emplace_back();
      for (const int64_t cutoff : training_of(id).cutoffs) {
        const auto at = windows_at(series_, members_, training_of(id).fold, cutoff);
        windows.back().insert(windows.back().end(), at.begin(), at.end());
      }
      most = std::max(most, windows.back().size());
    }
    if (most == 0) return;
    WaveSpec spec = forecasting_spec(on_, members_, static_cast<int64_t>(most));
    spec.own_cutoffs = true;
    spec.covariates = spec_.covariates;
    const EnsemblePlan plan = on_.plan(spec, static_cast<int64_t>(ids.size()), series_);
    const auto count = static_cast<size_t>(plan.lanes_per_wave);
    for (size_t from = 0; from < ids.size(); from += count) {
      const size_t G = std::min(count, ids.size() - from);
      spec.lanes.assign(job.spec.lanes.begin() + static_cast<std::ptrdiff_t>(from),
                        job.spec.lanes.begin() + static_cast<std::ptrdiff_t>(from + G));
      std::vector<LaneCutoffs> known;
      for (size_t g = 0; g < G; ++g) known.push_back(cutoffs_of(training_of(ids[from + g]).fold, true));
      memory::PlannedMemory memory = on_.reserve(plan, "rolling forecasts");
      Wave wave(on_.device(), spec, series_, known, ops::Sampling::series, &memory);
      const auto spans = device::DeviceSpans::make(on_.device(), wave.stream(), "device", Zone::device_busy);
      for (size_t g = 0; g < G; ++g)
        wave.state().upload(wave.stream(), static_cast<int64_t>(g), trained.lanes[from + g].state.slab);
      wave.state().refresh(wave.stream());
      if (spans) spans->begin();
      forecast_lanes(wave, spec, {ids.data() + from, G}, {windows.data() + from, G}, most);
      if (spans) {
        spans->end();
        wave.stream().synchronize();
        spans->record_completed();
      }
    }
  }

  void forecast_lanes(Wave& wave, const WaveSpec& spec, std::span<const int64_t> ids,
                      std::span<const std::vector<ops::WindowPick>> windows, size_t most) {
    const auto H = static_cast<size_t>(members_.horizon), B = static_cast<size_t>(spec.options.windows),
               Q = static_cast<size_t>(spec.shape.quantiles);
    for (size_t first = 0; first < most; first += B) {
      const size_t n = std::min(B, most - first);
      std::vector<std::vector<ops::WindowPick>> part(ids.size());
      for (size_t g = 0; g < ids.size(); ++g)
        for (size_t i = first; i < first + n; ++i)  // pad with a repeated window; ignored later
          part[g].push_back(windows[g].empty() ? ops::WindowPick{0, 0}
                                               : windows[g][std::min(i, windows[g].size() - 1)]);
      const std::vector<float> got = wave.predict(part);
      for (size_t g = 0; g < ids.size(); ++g) {
        const size_t own = std::min(n, windows[g].size() - std::min(first, windows[g].size()));
        auto& forecasts = run_.lanes[static_cast<size_t>(ids[g])].forecasts;
        for (size_t i = 0; i < own; ++i) {  // the median, for quantile models
          const auto begin = got.begin() + static_cast<std::ptrdiff_t>(((g * n + i) * Q + Q / 2) * H);
          forecasts.insert(forecasts.end(), begin, begin + static_cast<std::ptrdiff_t>(H));
        }
      }
    }
  }

  void report(const std::vector<int64_t>& ids, int64_t step, int64_t steps, double loss) const {
    if (!report_) return;
    RollProgress p{0, static_cast<int64_t>(run_.lanes.size()), static_cast<int64_t>(ids.size()), step, steps, loss};
    for (const RolledLane& lane : run_.lanes) p.lanes_done += lane.done ? 1 : 0;
    report_(p);
  }

  void check_lanes() const {
    for (size_t t = 0; t < plan_.trainings.size(); ++t) {
      const auto first = run_.lanes.begin() + static_cast<std::ptrdiff_t>(t * members());
      if (std::all_of(first, first + static_cast<std::ptrdiff_t>(members()),
                      [](const RolledLane& lane) { return lane.failed; }))
        fail(ErrorCode::diverged, Remedy{"set a smaller `learning_rate`"},
             "training {} of {}: all lanes diverged (non-finite gradients)", t + 1, plan_.trainings.size());
    }
  }

  void save_models() const {
    for (size_t t = 0; t < plan_.trainings.size(); ++t) {
      const RollTraining& training = plan_.trainings[t];
      if (training.kind != RollTraining::Kind::fold) continue;
      NbeatsModel model = members_;
      model.lanes.clear();
      for (size_t m = 0; m < members(); ++m) {
        const auto id = static_cast<int64_t>(t * members() + m);
        auto file = StateReader::open(base_path(state_, id), owner_);
        if (!file || run_.lanes[static_cast<size_t>(id)].failed) continue;
        NbeatsLane lane = members_.lanes[m];
        lane.slab = move_lane(spec_.shape, lane_shape(members_, lane), lane.spec.lookback, file->list<float>());
        model.lanes.push_back(std::move(lane));
      }
      if (!model.lanes.empty())
        save_nbeats(state_.parent_path() / "models" / std::to_string(training.fold.index), model);
    }
  }

  EnsembleDevice& on_;
  const ForecastSettings& s_;
  const SeriesStore& series_;
  const NbeatsModel& members_;
  const RollPlan& plan_;
  const fs::path state_;
  const std::function<void(const RollProgress&)>& report_;
  const std::atomic<bool>* const stop_;
  WaveSpec spec_;
  CovariateTable table_;
  std::string covariate_line_;  // empty without covariates
  std::string owner_;
  const int64_t began_ns_ = now_ns();
  RollRun run_;
};

}  // namespace

RollRun run_roll(EnsembleDevice& on, const ForecastSettings& s, const SeriesStore& series, const NbeatsModel& members,
                 const RollPlan& plan, const std::filesystem::path& state,
                 const std::function<void(const RollProgress&)>& progress, const std::atomic<bool>* stop) {
  const std::vector<int64_t> known = known_before(plan, series, members.horizon);
  NbeatsModel fitted = members;
  if (const CovariateSpec& all = members.covariates; !all.empty())
    fitted.covariates = fit_covariates(series, all.calendar, all.history, known);
  return Roller(on, s, series, fitted, plan, known, state, progress, stop).run();
}

std::optional<int64_t> rolled_first_cutoff(const std::filesystem::path& state) {
  const auto header = read_header(state);
  return header ? std::optional(header->first_cutoff) : std::nullopt;
}

bool take_rolled_settings(ForecastSettings& s, const std::filesystem::path& state) {
  const auto header = read_header(state);
  if (!header) return false;
  const auto take = [&](std::string_view name) {
    for (const std::string& line : header->lines)
      if (line.starts_with(name) && line.size() > name.size() + 1 && line[name.size()] == '=')
        forecast_settings().apply(s, name, line.substr(name.size() + 1), "");
  };
  if (s.lookbacks.empty() && s.input_size == 0) take("lookbacks");
  if (s.history_size == 0) take("history_size");
  if (s.max_steps == 0 && s.epochs == 0) take("max_steps");
  return true;
}

std::vector<double> rolled_medians(const RollRun& run, const NbeatsModel& members, size_t training, size_t first,
                                   size_t windows) {
  const size_t M = members.lanes.size(), H = static_cast<size_t>(members.horizon);
  std::vector<double> medians(windows * H);
  std::vector<float> values;
  for (size_t i = 0; i < medians.size(); ++i) {
    values.clear();
    for (size_t m = 0; m < M; ++m)
      if (const RolledLane& lane = run.lanes[training * M + m]; !lane.failed)
        values.push_back(lane.forecasts[first * H + i]);
    medians[i] = median_of(values);
  }
  return medians;
}

}  // namespace brim::forecast
