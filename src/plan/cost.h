// SPDX-License-Identifier: Apache-2.0
// How long a pass takes on a device that need not be here: each kind of op runs at the nearer of two roofs, arithmetic
// or memory, and every launch costs a little. Work is affine in the tokens, so two recordings give it for any size.
#pragma once
#include <map>
#include <string>

#include "model/forward_runner.h"
#include "plan/device_profile.h"

namespace brim::plan {

class PassCost {
 public:
  PassCost() = default;
  // Work by op as recorded for two batches of `small_tokens` and `large_tokens`. If both are the same, work is taken to
  // be proportional. Attention was recorded for sequences of `recorded_length` tokens and is wanted for
  // `typical_length`.
  PassCost(const model::OpTotals& small, int64_t small_tokens, const model::OpTotals& large, int64_t large_tokens,
           double recorded_length, double typical_length);
  double seconds(const DeviceProfile& device, ops::Precision precision, int64_t tokens) const;

 private:
  struct Line {
    double calls = 0;
    double flops_fixed = 0, flops_token = 0, bytes_fixed = 0, bytes_token = 0;
  };
  std::map<std::string, Line> ops_;
};

// One optimizer step over `elements` parameters: everything is read and written once, so only memory speed counts, and
// the bus's where the moments pass over it.
double optimizer_seconds(const DeviceProfile& device, int64_t elements, int64_t moment_bytes, int64_t copy_bytes,
                         bool moments_on_host);

}  // namespace brim::plan
