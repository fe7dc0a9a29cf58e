// SPDX-License-Identifier: Apache-2.0
// Resolves a requested precision on a device, for scoring, training and their plans. Memory limits are resolved in
// plan.h.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "base/settings.h"
#include "plan/plan.h"

namespace brim::plan {

// Setting rows for the two parts of a memory limit.
template <class S>
SettingValue<S> memory_limit_value(MemoryLimit S::*m) {
  return {[m](S& s, std::string_view v) { (s.*m).set_limit(v); }, [m](const S& s) { return (s.*m).text; }, {}, {}};
}
template <class S>
SettingValue<S> leave_free_value(MemoryLimit S::*m) {
  return {[m](S& s, std::string_view v) { (s.*m).set_leave_free(v); },
          [m](const S& s) { return (s.*m).leave_free_text; },
          {},
          {}};
}
constexpr const char* kLeaveFreeHelp = "memory to leave free for other processes (8GiB)";

struct PrecisionChoice {
  ops::Precision precision = ops::Precision::fp32;
  std::string reason;  // one line
};

// Requested precision.
struct PrecisionRequest {
  std::optional<ops::Precision> precision;  // nullopt for auto
  bool by_switch = false;                   // from `fp16: true` or similar in a shared file: ignored if unsupported
  bool operator==(const PrecisionRequest&) const = default;
};
PrecisionRequest read_precision(std::string_view text);       // "auto" or a precision name; throws BadValue
std::string precision_text(const PrecisionRequest& request);  // inverse of read_precision

// auto is bf16 if the device supports it natively (except CPU training: fp32), otherwise fp16 on a GPU, with loss
// scaling in training. Requesting an unsupported precision is a usage error, unless set by a switch: then auto applies.
PrecisionChoice resolve_precision(const PrecisionRequest& request, const DeviceProfile& device, Task task);
// Like resolve_precision, for training a text model: fp8 becomes bf16 if none of its products can use fp8.
PrecisionChoice train_precision(const PrecisionRequest& request, const DeviceProfile& device,
                                const model::ModelShape& shape);
// One-line description of the products that fp8 training computes in fp8.
std::string fp8_products(const model::ModelShape& shape);

}  // namespace brim::plan
