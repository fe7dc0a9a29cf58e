// SPDX-License-Identifier: Apache-2.0
// brim plan --task forecast: memory for training or rolling an ensemble of forecasting lanes. Trains nothing.
#pragma once
#include <string>
#include <vector>

#include "cli/setting_flags.h"
#include "plan/plan.h"

namespace brim::cli {

// Flags that only forecasting plans have.
void add_forecast_plan_rows(CLI::App& app, FlagValues& values);

struct ForecastPlanTarget {
  plan::DeviceProfile profile;
  device::MemoryInfo memory;
  std::vector<std::string> notes;
};
// `values`: from forecasting's settings table. Throws does_not_fit with the requirements of one lane.
int run_plan_forecast(const std::string& config, const FlagValues& values, const ForecastPlanTarget& target, bool json);

// All reservations with their owners, their sum, and the remaining limit.
void print_ledger(const std::vector<memory::LedgerEntry>& entries, int64_t limit);

}  // namespace brim::cli
