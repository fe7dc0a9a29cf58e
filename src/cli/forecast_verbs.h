// SPDX-License-Identifier: Apache-2.0
// Shared by the subcommands of `brim forecast`. Contains no forecasting logic.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/progress.h"
#include "cli/setting_flags.h"
#include "jobs/run_readings.h"
#include "monitor/live.h"
#include "report/forecast_run.h"

namespace brim::cli {

struct ForecastFlags {
  CLI::App *train = nullptr, *predict = nullptr, *eval = nullptr, *roll = nullptr;
  std::string config, trace;
  bool json = false, quiet = false;
  FlagValues train_values, predict_values, eval_values, roll_values;
};

// Adds flags for rows of the settings table.
void add_rows(CLI::App& app, FlagValues& values, const std::vector<std::string_view>& names);

// Shows a run on the terminal, publishes it for `brim monitor`, and writes its trace for `brim doctor`.
class ForecastTerminal final : public report::ForecastObserver {
 public:
  ForecastTerminal(bool quiet, const std::string& trace);
  void progress(const std::string& title, double done, double total, const std::string& text) override;
  void progress_ends() override;
  void note(const std::string& text) override;
  void line(const std::string& text) override;
  void opened(const char* command, const forecast::ForecastSettings& settings, forecast::EnsembleDevice& on) override;
  void training_begins(forecast::EnsembleDevice& on) override;
  void training_step(int64_t step, int64_t steps, double loss) override;
  void training_ends(const report::ForecastWork& work, forecast::EnsembleDevice& on) override;

 private:
  const bool quiet_;
  const std::string trace_;
  std::string title_;
  std::unique_ptr<Progress> bar_;
  monitor::LivePublisher publisher_;
  monitor::RunRecord live_;
  device::Device* device_ = nullptr;
  int64_t last_ns_ = 0;
  jobs::RunRecord run_;
  jobs::RunReadings readings_;
};

}  // namespace brim::cli
