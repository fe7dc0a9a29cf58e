// SPDX-License-Identifier: Apache-2.0
// The error of a plan that exceeds its limit: the memory of the smallest plan by part, and settings that fit. Does not
// search for plans (plan.cc).
#pragma once
#include "plan/plan.h"

namespace brim::plan {

// Throws does_not_fit. `smallest`: the plan of the request with the fewest bytes.
[[noreturn]] void fail_does_not_fit(const PlanRequest& request, const Plan& smallest);

}  // namespace brim::plan
