// SPDX-License-Identifier: Apache-2.0
// Shared by the subcommands of `brim forecast`. Contains no forecasting logic.
#pragma once
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "cli/setting_flags.h"
#include "forecast/ensemble.h"
#include "forecast/series_store.h"
#include "jobs/run_readings.h"
#include "monitor/live.h"

namespace brim::cli {

struct ForecastFlags {
  CLI::App *train = nullptr, *predict = nullptr, *eval = nullptr, *roll = nullptr;
  std::string config, trace;
  bool json = false, quiet = false;
  FlagValues train_values, predict_values, eval_values, roll_values;
};

// Settings from the file, then from flags; validated, with data given.
forecast::ForecastSettings settings_of(const ForecastFlags& flags, const FlagValues& values);

forecast::SeriesStore read_store(const std::vector<std::string>& paths, rows::SeriesReaderOptions options,
                                 const char* title, bool quiet);

// Reads the covariates that a model was trained with. Throws usage if the settings name others.
rows::SeriesReaderOptions reader_options_for(const forecast::ForecastSettings& settings, const std::string& name,
                                             const forecast::CovariateSpec& trained);

// Adds flags for rows of the settings table; "o,output" also adds a short name.
void add_rows(CLI::App& app, FlagValues& values, std::initializer_list<std::string_view> names);

// Publishes a training run for `brim monitor`.
class ForecastLive {
 public:
  ForecastLive(const char* command, const forecast::ForecastSettings& settings, forecast::EnsembleDevice& on);
  void update(int64_t step, int64_t steps, double loss);  // cheap: publishes five times per second

 private:
  monitor::LivePublisher publisher_;
  monitor::RunRecord record_;
  device::Device& device_;
  int64_t last_ns_ = 0;
};

// Writes timeline and record of a training run for `brim doctor`; does nothing without a file.
class ForecastTrace {
 public:
  explicit ForecastTrace(const std::string& path);
  void begins(forecast::EnsembleDevice& on);
  void ends(const char* verb, const forecast::ForecastSettings& settings, forecast::EnsembleDevice& on,
            const forecast::SeriesStore& series, const forecast::NbeatsModel& members,
            const forecast::EnsemblePlan& plan, int64_t lanes, int64_t steps, bool resumed);
  void write() const;

 private:
  const std::string path_;
  jobs::RunRecord run_;
  jobs::RunReadings readings_;
};

CLI::App* add_roll(CLI::App& app, ForecastFlags& flags);
int run_forecast_roll(const ForecastFlags& flags);
int run_predict(const ForecastFlags& flags);
int run_forecast_eval(const ForecastFlags& flags);

}  // namespace brim::cli
