// SPDX-License-Identifier: Apache-2.0
// What a wish becomes on a device: the one place that decides on a precision, for scoring, training and plans of both.
#pragma once
#include <string>

#include "plan/plan.h"

namespace brim {

struct PrecisionChoice {
  Precision precision = Precision::fp32;
  std::string reason;  // in one line
};

// `asked`: auto or a precision's name. auto is bf16 where the device computes it natively (training on a CPU: fp32), on
// a card without bf16 fp16, in training with a loss scale. A precision the device lacks is a usage error, unless it is
// only a `wish` (fp16: true and its like in a file made for another machine): then it is left out, as if auto.
PrecisionChoice resolve_precision(const std::string& asked, bool wish, const DeviceProfile& device, Task task);

}  // namespace brim
