// SPDX-License-Identifier: Apache-2.0
// What a wish becomes on a device: the one place that decides on a precision, for scoring, training and plans of both.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "base/settings.h"
#include "plan/plan.h"

namespace brim::plan {

// How tables of settings read the two halves of a limit.
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
constexpr const char* kLeaveFreeHelp =
    "with `memory_limit=auto`: leave so much of what is free at the start to others: 8GiB";

struct PrecisionChoice {
  ops::Precision precision = ops::Precision::fp32;
  std::string reason;  // in one line
};

// What was asked for.
struct PrecisionWish {
  std::optional<ops::Precision> precision;  // none: auto
  bool by_switch = false;  // fp16: true and its like, in a file made for another machine: left out where it cannot be
  bool operator==(const PrecisionWish&) const = default;
};
PrecisionWish read_precision(std::string_view text);    // auto or a precision's name; throws BadValue
std::string precision_text(const PrecisionWish& wish);  // as read_precision takes it

// auto is bf16 where the device computes it natively (training on a CPU: fp32), on a card without bf16 fp16, in
// training with a loss scale. A precision the device lacks is a usage error, unless it was asked for by a switch: then
// as auto.
PrecisionChoice resolve_precision(const PrecisionWish& wish, const DeviceProfile& device, Task task);
// The same for training a text model: fp8 is bf16 where none of its products takes part.
PrecisionChoice train_precision(const PrecisionWish& wish, const DeviceProfile& device, const model::ModelShape& shape);
// Which of a model's products training in fp8 multiplies in it, in one line.
std::string fp8_products(const model::ModelShape& shape);

}  // namespace brim::plan
