// SPDX-License-Identifier: Apache-2.0
#include "engine/precision.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "io/atomic_file.h"
#include "model/fp8.h"
#include "model/weights.h"
#include "ops/int8.h"

namespace brim::engine {

using ops::Precision;

namespace {

constexpr const char* kRecordFile = "brim.json";
constexpr double kEnoughAgreement = 0.98;

// fp8, or int8 on a GPU, for the products that support the model's widths.
static_assert(ops::kInt8Multiple == 16 && model::fp8_takes(16, 16) && !model::fp8_takes(8, 16));
plan::PrecisionChoice narrow_choice(Precision precision, const hub::HfConfig& config) {
  const int64_t H = config.hidden_size, F = config.intermediate_size;
  if (ops::int8_takes(F, H)) return {precision, "requested"};
  const Precision half = model::head_precision(precision, device::DeviceKind::cuda);
  const std::string name = precision_name(precision),
                    rule = fmt::format("uses {} because {} needs multiples of 16", precision_name(half), name);
  if (!ops::int8_takes(H, H)) return {half, fmt::format("{} requested; hidden size {} {}", name, H, rule)};
  return {precision, fmt::format("requested; feed-forward size {} {}", F, rule)};
}

}  // namespace

double recorded_int8_agreement(const std::filesystem::path& dir) {
  const auto path = dir / kRecordFile;
  std::error_code ec;
  if (!std::filesystem::is_regular_file(path, ec)) return -1;
  const auto json = nlohmann::json::parse(read_file(path), nullptr, false);
  if (!json.is_object() || !json.contains("int8_agreement") || !json["int8_agreement"].is_number()) return -1;
  return json["int8_agreement"].get<double>();
}

void record_int8_agreement(const std::filesystem::path& dir, double agreement, int64_t rows) {
  const nlohmann::ordered_json json = {{"version", 1}, {"int8_agreement", agreement}, {"int8_agreement_rows", rows}};
  io::write_file_atomically(dir / kRecordFile, json.dump(2) + "\n");
}

plan::PrecisionChoice choose_precision(const plan::PrecisionRequest& requested, const plan::DeviceProfile& device,
                                       const hub::HfConfig& config, const std::filesystem::path& dir,
                                       bool shares_base) {
  plan::PrecisionChoice choice = resolve_precision(requested, device, plan::Task::score);
  if (!requested.precision && device.kind == device::DeviceKind::cpu) {
    if (config.quantization) return {Precision::int8, "the model is stored in int8"};
    const double agreement = recorded_int8_agreement(dir);
    if (agreement >= kEnoughAgreement && !shares_base)
      return {Precision::int8,
              fmt::format("int8 labels agree with fp32 on {:.2f} % of the rows measured", agreement * 100)};
    if (agreement >= kEnoughAgreement)
      choice.reason += "; int8 only on request, because adapters share the weights of their base";
  }
  const bool narrow = choice.precision == Precision::fp8 || choice.precision == Precision::int8;
  return narrow && device.kind == device::DeviceKind::cuda ? narrow_choice(choice.precision, config) : choice;
}

}  // namespace brim::engine
