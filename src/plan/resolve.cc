// SPDX-License-Identifier: Apache-2.0
#include "plan/resolve.h"

#include <map>

#include "base/error.h"
#include "base/settings.h"

namespace brim::plan {

using ops::Precision;

namespace {

PrecisionChoice by_default(const DeviceProfile& d, Task task) {
  if (d.kind == device::DeviceKind::cuda) {
    if (d.bf16)
      return {Precision::bf16,
              task == Task::train ? "fastest format without a loss scale" : "fastest format with the range of fp32"};
    if (d.rate(Precision::fp16) <= 0) return {Precision::fp32, fmt::format("the only format supported by {}", d.name)};
    return {Precision::fp16, fmt::format("{} does not support bf16{}", d.name,
                                         task == Task::train ? "; small gradients need a loss scale" : "")};
  }
  if (task == Task::train) return {Precision::fp32, "default on a CPU"};
  if (d.isa == device::Isa::avx512 || d.isa == device::Isa::amx || d.isa == device::Isa::neon_mm)
    return {Precision::bf16, fmt::format("native on this CPU ({})", isa_name(d.isa))};
  return {Precision::fp32, "this CPU does not support bf16 natively"};
}

}  // namespace

PrecisionRequest read_precision(std::string_view text) {
  if (same_word(text, "auto")) return {};
  const auto precision = ops::precision_from_name(lower_case(text));
  if (!precision) throw BadValue{"use auto, fp32, tf32, bf16, fp16, fp8 or int8"};
  return {precision};
}

std::string precision_text(const PrecisionRequest& request) {
  return request.precision ? precision_name(*request.precision) : "auto";
}

PrecisionChoice resolve_precision(const PrecisionRequest& request, const DeviceProfile& d, Task task) {
  if (!request.precision) {
    PrecisionChoice choice = by_default(d, task);
    if (request.by_switch && d.kind == device::DeviceKind::cpu) choice.reason = "mixed precision applies to GPUs only";
    return choice;
  }
  const Precision requested = *request.precision;
  if (task == Task::train && requested == Precision::int8)
    fail(ErrorCode::usage, "`precision=int8`: training supports fp32, tf32, bf16, fp16 and fp8");
  if (task == Task::train && requested == Precision::fp8 && d.rate(requested) <= 0)
    fail(ErrorCode::usage, Remedy{"set `precision=auto`"},
         "`precision=fp8`: training in fp8 requires sm_89 or newer; {} supports {}", d.name, d.precisions());
  if (d.rate(requested) > 0) return {requested, "requested"};
  if (!request.by_switch)
    fail(ErrorCode::usage, "`precision={}`: {} supports {}", precision_name(requested), d.name, d.precisions());
  return {by_default(d, task).precision,
          fmt::format("{} does not support {}", d.kind == device::DeviceKind::cpu ? "the CPU" : d.name,
                      precision_name(requested))};
}

namespace {

struct Fp8Products {
  int64_t taken = 0, all = 0;
  std::string others;  // sizes of the others
};
Fp8Products count_fp8_products(const model::ModelShape& shape) {
  Fp8Products p;
  std::map<std::pair<int64_t, int64_t>, int64_t> others;
  for (const model::ParamSpec& spec : model_params(shape)) {
    if (spec.kind != model::ParamKind::matrix || spec.head || spec.rows == 0) continue;
    ++p.all;
    if (trains_in_fp8(spec))
      ++p.taken;
    else
      ++others[{spec.rows, spec.cols}];
  }
  for (const auto& [size, count] : others)
    p.others += fmt::format("{}{} of {} x {}", p.others.empty() ? "" : ", ", count, size.first, size.second);
  return p;
}

}  // namespace

PrecisionChoice train_precision(const PrecisionRequest& request, const DeviceProfile& d,
                                const model::ModelShape& shape) {
  const PrecisionChoice choice = resolve_precision(request, d, Task::train);
  if (choice.precision != Precision::fp8) return choice;
  const Fp8Products p = count_fp8_products(shape);
  if (p.taken > 0) return {Precision::fp8, fp8_products(shape)};
  return {Precision::bf16,
          fmt::format("fp8 requested; hidden size {} uses bf16 because fp8 needs multiples of 16", shape.hidden)};
}

std::string fp8_products(const model::ModelShape& shape) {
  const Fp8Products p = count_fp8_products(shape);
  if (p.taken == p.all) return fmt::format("all {} encoder matmuls in fp8, the rest in bf16", p.all);
  return fmt::format("{} of {} encoder matmuls in fp8; in bf16 because fp8 needs multiples of 16: {}", p.taken, p.all,
                     p.others);
}

}  // namespace brim::plan
