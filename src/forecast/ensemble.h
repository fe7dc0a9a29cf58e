// SPDX-License-Identifier: Apache-2.0
// N-BEATS ensembles: one lane per lookback, loss and repeat, trained in as few waves as the memory limit allows; the
// forecast is the median over lanes. A lane's result does not depend on the wave it is trained in.
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

// Lanes described by the settings, without weights. Presets must already be applied to the settings.
NbeatsModel ensemble_of(const ForecastSettings& settings, const SeriesStore& series);

// A trained model, with weights, as the start of a training on `series`. Throws usage for settings that differ from the
// model's, bad_data for another frequency.
NbeatsModel continued_ensemble(const ForecastSettings& settings, const SeriesStore& series, NbeatsModel from);
// Before that: sets horizon, stacks, lookbacks and losses to those of the model, and its history unless given. Throws
// usage if the others are given.
void take_shape(ForecastSettings& settings, const NbeatsModel& from);

// Optimizer steps per lane: max_steps, or the number of steps in `epochs` passes over all windows.
int64_t steps_of(const ForecastSettings& settings, const SeriesStore& series);
int64_t steps_of(const ForecastSettings& settings, std::span<const int64_t> lengths);  // series lengths

struct EnsemblePlan {
  int64_t lanes_per_wave = 0, waves = 0;
  bool recompute = false;
  std::vector<memory::LedgerEntry> parts;  // for the largest wave
  int64_t peak_bytes = 0, limit_bytes = 0, context_bytes = 0;
};

// Device to plan for; it need not be present.
struct LaneTarget {
  std::string name;
  device::DeviceKind kind = device::DeviceKind::cpu;
  int64_t limit_bytes = 0, context_bytes = 0;
};
// Smallest number of equally sized waves under the limit. Throws does_not_fit with the requirement of one lane.
EnsemblePlan plan_lanes(WaveSpec spec, int64_t lanes, int64_t series, int64_t points, const LaneTarget& target);

// Matmul precision: as requested, or the device's best without loss scaling, which lanes do not support.
plan::PrecisionChoice lane_precision(const plan::PrecisionRequest& request, const plan::DeviceProfile& device);

// Device for training or forecasting, under the memory limit from the settings.
class EnsembleDevice {
 public:
  explicit EnsembleDevice(const ForecastSettings& settings);

  device::Device& device() { return *device_; }
  ops::Precision precision() const { return precision_; }  // for training
  // Forecasting takes a thousandth of the training time, so a CPU uses fp32 unless requested otherwise.
  ops::Precision forecast_precision() const { return forecast_precision_; }
  const std::string& precision_reason() const { return precision_reason_; }
  int threads() const { return threads_; }
  EnsemblePlan plan(const WaveSpec& spec, int64_t lanes, const SeriesStore& series) const;
  // Plan with all memory of the device.
  EnsemblePlan plan_without_limit(const WaveSpec& spec, int64_t lanes, const SeriesStore& series) const;
  memory::PlannedMemory reserve(const EnsemblePlan& plan, const std::string& name);

 private:
  std::unique_ptr<device::Device> device_;
  ops::Precision precision_ = ops::Precision::fp32, forecast_precision_ = ops::Precision::fp32;
  std::string precision_reason_;
  int threads_ = 1;
  int64_t limit_bytes_ = 0;
  bool limit_is_given_ = false;
  mutable plan::DeviceProfile profile_;  // measured only if a plan depends on it
};

// Whether the driver and library overhead must be measured (takes seconds, once per GPU and build) before planning:
// with an explicit limit, or if the lanes need more than half of the memory. Otherwise an estimate is enough.
bool needs_measured_context(bool limit_is_given, int64_t lanes_bytes, int64_t limit_bytes);

// Wave specification for a model, without lanes. All waves share one shape, so lane states are interchangeable.
WaveSpec training_spec(ops::Precision precision, int threads, const ForecastSettings& settings,
                       const NbeatsModel& model);
WaveSpec forecasting_spec(const EnsembleDevice& on, const NbeatsModel& model, int64_t windows);

// Splits untrained lanes into waves: first the lanes of the checkpoint, if all are wanted and still fit together, then
// the rest in as few waves as fit now. `checkpoint` may be empty.
std::vector<std::vector<int64_t>> split_lanes(const EnsembleDevice& on, const WaveSpec& spec, const SeriesStore& series,
                                              std::vector<int64_t> todo, const std::filesystem::path& checkpoint,
                                              const std::string& owner);

constexpr int64_t kPredictWindows = 256;  // most windows per forecast pass
// At most 1,024 of these windows, evenly spaced: enough to stop early.
std::vector<ops::WindowPick> validated_windows(const std::vector<ops::WindowPick>& windows);

double median_of(std::span<float> values);  // reorders `values`

struct EnsembleProgress {
  int64_t wave = 0, waves = 0, step = 0, steps = 0;
  double loss = 0;  // mean over lanes
};
struct TrainedEnsemble {
  EnsemblePlan plan;
  std::vector<float> last_losses;          // per lane; NaN if failed
  std::vector<int64_t> best_steps;         // per lane; -1 if not validated
  std::vector<std::vector<float>> curves;  // per lane: mean loss per kCurveSteps steps
  int64_t resumed_lanes = 0;               // trained by an earlier process
  double seconds = 0, busy_seconds = 0;    // training time; device compute time
  bool interrupted = false;                // if set, the lanes have no weights
};
using OnEnsembleProgress = std::function<void(const EnsembleProgress&)>;

// Trains all lanes of `model`, from their weights if they have any. A lane whose gradients are not finite for twenty
// steps in a row has failed and is left out; throws diverged if all fail. With early_stop_patience the last horizon of
// every series is held out, and each lane keeps its best weights on it. `state`, if not empty, is a directory used by
// this run only: training resumes from it, also under another memory limit, and is rejected if the settings or data
// differ. The caller removes it after saving the model.
TrainedEnsemble train_ensemble(EnsembleDevice& on, const ForecastSettings& settings, const SeriesStore& series,
                               NbeatsModel& model, const std::filesystem::path& state,
                               const OnEnsembleProgress& progress, const std::atomic<bool>* stop);

// Forecasts for each series after its last point: medians over lanes. predict_ensemble() throws bad_model if a lane's
// output is not finite.
struct EnsembleForecasts {
  int64_t horizon = 0;
  std::vector<float> quantiles;     // per point, ascending; empty for point forecasts
  std::vector<double> values;       // [series][quantile][horizon]
  std::vector<std::string> stacks;  // if components are requested: "level", then the kind of each stack
  std::vector<double> components;   // [series][stack][horizon]: contribution of each, averaged over lanes

  std::vector<double> of(int64_t series, size_t quantile) const;
  std::vector<double> point(int64_t series) const { return of(series, quantiles.size() / 2); }
};
EnsembleForecasts predict_ensemble(EnsembleDevice& on, const NbeatsModel& model, const SeriesStore& series,
                                   bool components, const std::function<void(int64_t done, int64_t total)>& progress,
                                   const std::atomic<bool>* stop);

}  // namespace brim::forecast
