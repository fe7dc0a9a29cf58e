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

// A device to train on or to forecast with, under the settings' limit.
class EnsembleDevice {
 public:
  explicit EnsembleDevice(const ForecastSettings& settings);

  device::Device& device() { return *device_; }
  ops::Precision precision() const { return precision_; }
  const std::string& precision_reason() const { return precision_reason_; }
  int threads() const { return threads_; }
  // The fewest waves under the limit, as even as can be. Throws does_not_fit with what one lane needs.
  EnsemblePlan plan(WaveSpec spec, int64_t lanes, const SeriesStore& series);
  memory::PlannedMemory reserve(const EnsemblePlan& plan, const std::string& name);

 private:
  std::unique_ptr<device::Device> device_;
  ops::Precision precision_ = ops::Precision::fp32;
  std::string precision_reason_;
  int threads_ = 1;
  int64_t limit_bytes_ = 0;
  plan::DeviceProfile profile_;
};

// Waves of a model's lanes, without lanes: all in one shape, so that a lane's state means the same in each.
WaveSpec training_spec(const EnsembleDevice& on, const ForecastSettings& settings, const NbeatsModel& model);
WaveSpec forecasting_spec(const EnsembleDevice& on, const NbeatsModel& model, int64_t windows);

double median_of(std::span<float> values);  // changes their order

struct EnsembleProgress {
  int64_t wave = 0, waves = 0, step = 0, steps = 0;
  double loss = 0;  // mean over lanes
};
struct TrainedEnsemble {
  EnsemblePlan plan;
  std::vector<float> last_losses;  // of each lane; NaN: it failed
  double seconds = 0;              // of training
  bool interrupted = false;        // then the lanes have no weights
};
using TellProgress = std::function<void(const EnsembleProgress&)>;

// Gives every lane of `model` its weights. A lane whose gradients are no numbers for twenty steps in a row has failed
// and is left out; where all have, throws diverged.
TrainedEnsemble train_ensemble(EnsembleDevice& on, const ForecastSettings& settings, const SeriesStore& series,
                               NbeatsModel& model, const TellProgress& tell, const std::atomic<bool>* stop);

// Medians over the lanes, of every series after its last point: [series][horizon].
std::vector<double> predict_ensemble(EnsembleDevice& on, const NbeatsModel& model, const SeriesStore& series,
                                     const std::function<void(int64_t done, int64_t total)>& tell,
                                     const std::atomic<bool>* stop);

}  // namespace brim::forecast
