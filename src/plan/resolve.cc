// SPDX-License-Identifier: Apache-2.0
#include "plan/resolve.h"

#include "base/error.h"

namespace brim {
namespace {

PrecisionChoice by_default(const DeviceProfile& d, Task task) {
  if (d.kind == DeviceKind::cuda) {
    if (d.bf16)
      return {Precision::bf16, task == Task::train ? "the card's fastest format that needs no loss scale"
                                                   : "the card's fastest format with fp32's range"};
    if (d.rate(Precision::fp16) <= 0) return {Precision::fp32, fmt::format("{} computes in nothing else", d.name)};
    return {Precision::fp16,
            fmt::format("no bf16 on {}{}", d.name, task == Task::train ? ": a loss scale keeps small gradients" : "")};
  }
  if (task == Task::train) return {Precision::fp32, "default on a CPU"};
  if (d.isa == Isa::avx512 || d.isa == Isa::amx || d.isa == Isa::neon_mm)
    return {Precision::bf16, fmt::format("native on this CPU ({})", isa_name(d.isa))};
  return {Precision::fp32, "this CPU has no native bf16"};
}

}  // namespace

PrecisionChoice resolve_precision(const std::string& asked, bool wish, const DeviceProfile& d, Task task) {
  if (asked == "auto") {
    PrecisionChoice choice = by_default(d, task);
    if (wish && d.kind == DeviceKind::cpu) choice.reason = "mixed precision applies on a GPU only";
    return choice;
  }
  const bool train = task == Task::train;
  const auto precision = precision_from_name(asked);
  if (!precision)
    fail(ErrorCode::usage, "`precision={}`: use auto, fp32, tf32, bf16{}", asked,
         train ? " or fp16" : ", fp16, fp8 or int8");
  if (train && (*precision == Precision::fp8 || *precision == Precision::int8))
    fail(ErrorCode::usage, "`precision={}`: training runs in fp32, tf32, bf16 or fp16", asked);
  if (d.rate(*precision) > 0) return {*precision, "asked for"};
  if (!wish) fail(ErrorCode::usage, "`precision={}`: {} computes in {}", asked, d.name, d.precisions());
  return {by_default(d, task).precision,
          fmt::format("{} has no {}", d.kind == DeviceKind::cpu ? "the CPU" : d.name, asked)};
}

}  // namespace brim
