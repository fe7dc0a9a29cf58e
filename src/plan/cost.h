// SPDX-License-Identifier: Apache-2.0
// Predicts the time of a pass with a roofline model, also for devices that are not present: each kind of op is limited
// by arithmetic or memory bandwidth, plus a launch overhead. Work is affine in tokens, so two recordings give it for
// any size.
#pragma once
#include <map>
#include <string>

#include "base/timeline.h"
#include "model/forward_runner.h"
#include "plan/device_profile.h"

namespace brim::plan {

class PassCost {
 public:
  PassCost() = default;
  // Work per op recorded for two batches of `small_tokens` and `large_tokens`; if both are equal, work is assumed to be
  // proportional. Attention is scaled from sequences of `recorded_length` tokens to `typical_length`.
  PassCost(const model::OpTotals& small, int64_t small_tokens, const model::OpTotals& large, int64_t large_tokens,
           double recorded_length, double typical_length);
  double seconds(const DeviceProfile& device, ops::Precision precision, int64_t tokens) const;

 private:
  struct Line {
    ZoneKind kind = ZoneKind::row_op;
    double calls = 0;
    double flops_fixed = 0, flops_token = 0, bytes_fixed = 0, bytes_token = 0;
  };
  std::map<std::string, Line> ops_;
};

// One optimizer step over `elements` parameters. Everything is read and written once, so only memory bandwidth matters,
// and bus bandwidth if the moments are on the host.
double optimizer_seconds(const DeviceProfile& device, int64_t elements, int64_t moment_bytes, int64_t copy_bytes,
                         bool moments_on_host);

}  // namespace brim::plan
