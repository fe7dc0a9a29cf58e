// SPDX-License-Identifier: Apache-2.0
// An ensemble of N-BEATS lanes: a lane for each lookback, loss and repeat, trained in as few waves as the memory limit
// allows, and asked for forecasts together: the median of its lanes. Each lane comes out the same whatever wave it is
// in.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "forecast/lane_training.h"
#include "forecast/nbeats_io.h"

namespace brim::forecast {

// Lanes as the settings ask for them, without weights. The settings have what a preset fills in.
NbeatsModel ensemble_of(const ForecastSettings& settings, const SeriesStore& series);

// Updates of a lane: max_steps, or as many as `epochs` of all windows take.
int64_t steps_of(const ForecastSettings& settings, const SeriesStore& series);
int64_t steps_of(const ForecastSettings& settings, std::span<const int64_t> lengths);  // of the series

struct EnsemblePlan {
  int64_t lanes_per_wave = 0, waves = 0;
  bool recompute = false;
  std::vector<memory::LedgerEntry> parts;  // of the largest wave
  int64_t peak_bytes = 0, limit_bytes = 0, context_bytes = 0;
};

// Where lanes are to run, present or not.
struct LaneTarget {
  std::string name;
  device::DeviceKind kind = device::DeviceKind::cpu;
  int64_t limit_bytes = 0, context_bytes = 0;
};
// The fewest waves under the limit, as even as can be. Throws does_not_fit with what one lane needs.
EnsemblePlan plan_lanes(WaveSpec spec, int64_t lanes, int64_t series, int64_t points, const LaneTarget& target);

// The products' precision: what was asked for, or the device's best that needs no loss scale, since lanes have none.
plan::PrecisionChoice lane_precision(const plan::PrecisionWish& wish, const plan::DeviceProfile& device);

// A device to train on or to forecast with, under the settings' limit.
class EnsembleDevice {
 public:
  explicit EnsembleDevice(const ForecastSettings& settings);

  device::Device& device() { return *device_; }
  ops::Precision precision() const { return precision_; }  // of training
  // Forecasts take a thousandth of training's time: on a CPU they are fp32 unless something else was asked for.
  ops::Precision forecast_precision() const { return forecast_precision_; }
  const std::string& precision_reason() const { return precision_reason_; }
  int threads() const { return threads_; }
  EnsemblePlan plan(const WaveSpec& spec, int64_t lanes, const SeriesStore& series) const;
  // The same in all the memory the device could give.
  EnsemblePlan plan_without_limit(const WaveSpec& spec, int64_t lanes, const SeriesStore& series) const;
  memory::PlannedMemory reserve(const EnsemblePlan& plan, const std::string& name);

 private:
  std::unique_ptr<device::Device> device_;
  ops::Precision precision_ = ops::Precision::fp32, forecast_precision_ = ops::Precision::fp32;
  std::string precision_reason_;
  int threads_ = 1;
  int64_t limit_bytes_ = 0;
  bool limit_is_given_ = false;
  mutable plan::DeviceProfile profile_;  // measured when a plan depends on it
};

// Whether what driver and libraries hold must be measured (seconds, once per card and build) before lanes are planned:
// under a limit that was given, and where lanes want more than half of what there is. Else an estimate will do.
bool needs_measured_context(bool limit_is_given, int64_t lanes_bytes, int64_t limit_bytes);

// Waves of a model's lanes, without lanes: all in one shape, so that a lane's state means the same in each.
WaveSpec training_spec(ops::Precision precision, int threads, const ForecastSettings& settings,
                       const NbeatsModel& model);
WaveSpec forecasting_spec(const EnsembleDevice& on, const NbeatsModel& model, int64_t windows);

// Lanes that are not trained yet, wave by wave: first those of the checkpoint, where all of them are wanted and still
// fit together, then the others in as few waves as fit now. An empty `checkpoint` is none.
std::vector<std::vector<int64_t>> split_lanes(const EnsembleDevice& on, const WaveSpec& spec, const SeriesStore& series,
                                              std::vector<int64_t> todo, const std::filesystem::path& checkpoint,
                                              const std::string& owner);

double median_of(std::span<float> values);  // changes their order

struct EnsembleProgress {
  int64_t wave = 0, waves = 0, step = 0, steps = 0;
  double loss = 0;  // mean over lanes
};
struct TrainedEnsemble {
  EnsemblePlan plan;
  std::vector<float> last_losses;          // of each lane; NaN: it failed
  std::vector<int64_t> best_steps;         // of each lane; -1: it was not validated
  std::vector<std::vector<float>> curves;  // of each lane: mean losses of kCurveSteps steps
  int64_t resumed_lanes = 0;               // that were trained before
  double seconds = 0, busy_seconds = 0;    // of training; the device computed
  bool interrupted = false;                // then the lanes have no weights
};
using TellProgress = std::function<void(const EnsembleProgress&)>;

// Gives every lane of `model` its weights. A lane whose gradients are no numbers for twenty steps in a row has failed
// and is left out; where all have, throws diverged. With early_stop_patience the last horizon of every series is kept
// back, and a lane ends as it was when it forecast that best. `state`, where named, is a directory of this run alone:
// what it holds is gone on with, under another limit too, or refused where it is of other settings or data. The caller
// removes it with the model saved.
TrainedEnsemble train_ensemble(EnsembleDevice& on, const ForecastSettings& settings, const SeriesStore& series,
                               NbeatsModel& model, const std::filesystem::path& state, const TellProgress& tell,
                               const std::atomic<bool>* stop);

// Forecasts of every series after its last point, medians over the lanes.
struct EnsembleForecasts {
  int64_t horizon = 0;
  std::vector<float> quantiles;     // of each point, ascending; none: the point alone
  std::vector<double> values;       // [series][quantile][horizon]
  std::vector<std::string> stacks;  // where components were wanted: "level", then each stack's kind
  std::vector<double> components;   // [series][of stacks][horizon]: what each adds, means over the lanes

  std::vector<double> of(int64_t series, size_t quantile) const;
  std::vector<double> point(int64_t series) const { return of(series, quantiles.size() / 2); }
};
EnsembleForecasts predict_ensemble(EnsembleDevice& on, const NbeatsModel& model, const SeriesStore& series,
                                   bool components, const std::function<void(int64_t done, int64_t total)>& tell,
                                   const std::atomic<bool>* stop);

}  // namespace brim::forecast
