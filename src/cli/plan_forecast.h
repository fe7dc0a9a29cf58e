// SPDX-License-Identifier: Apache-2.0
// brim plan --task forecast: what training an ensemble of forecasting lanes, or rolling it, would hold.
#pragma once
#include <string>
#include <vector>

#include "cli/setting_flags.h"
#include "plan/plan.h"

namespace brim::cli {

// Keys that only a forecasting plan has, beside those all plans share.
void add_forecast_plan_rows(CLI::App& app, FlagValues& values);

struct ForecastPlanTarget {
  plan::DeviceProfile profile;
  device::MemoryInfo memory;
  std::vector<std::string> notes;
};
// `values`: of forecasting's table. Throws does_not_fit with what one lane needs.
int run_plan_forecast(const std::string& config, const FlagValues& values, const ForecastPlanTarget& target, bool json);

// Every reservation with its owner, their sum, and what the limit leaves.
void print_ledger(const std::vector<memory::LedgerEntry>& entries, int64_t limit);

}  // namespace brim::cli
