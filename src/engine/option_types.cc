// SPDX-License-Identifier: Apache-2.0
#include "engine/option_types.h"

#include "engine/engine_options.h"

namespace brim::engine {
namespace {

// The formats of ops::Precision, after automatic, in the same order.
constexpr bool has_order(ops::Precision precision, Precision::Format format) {
  return static_cast<int>(precision) + 1 == static_cast<int>(format);
}
static_assert(has_order(ops::Precision::fp32, Precision::fp32) && has_order(ops::Precision::tf32, Precision::tf32) &&
              has_order(ops::Precision::bf16, Precision::bf16) && has_order(ops::Precision::fp16, Precision::fp16) &&
              has_order(ops::Precision::fp8, Precision::fp8) && has_order(ops::Precision::int8, Precision::int8));

using ChoiceKind = device::DeviceChoice::Kind;
static_assert(static_cast<int>(ChoiceKind::automatic) == static_cast<int>(Device::Kind::automatic) &&
              static_cast<int>(ChoiceKind::cpu) == static_cast<int>(Device::Kind::cpu) &&
              static_cast<int>(ChoiceKind::cuda) == static_cast<int>(Device::Kind::cuda));

}  // namespace

Device read_device(std::string_view text) {
  const device::DeviceChoice choice = device::read_device(text);
  return {static_cast<Device::Kind>(choice.kind), choice.index};
}

Precision read_precision(std::string_view text) {
  const auto precision = plan::read_precision(text).precision;
  return precision ? static_cast<Precision::Format>(static_cast<int>(*precision) + 1) : Precision::automatic;
}

MemoryLimit read_memory_limit(std::string_view text) {
  plan::MemoryLimit read = plan::MemoryLimit::read(text);
  MemoryLimit limit;
  limit.bytes = read.bytes;
  limit.percent = read.percent;
  limit.text = std::move(read.text);
  return limit;
}

LeaveFree read_leave_free(std::string_view text) {
  plan::MemoryLimit read;
  read.set_leave_free(text);
  LeaveFree leave_free;
  leave_free.bytes = read.leave_free_bytes;
  leave_free.text = std::move(read.leave_free_text);
  return leave_free;
}

device::DeviceChoice device_choice(const Device& device) {
  return {static_cast<ChoiceKind>(device.kind), device.index};
}

plan::PrecisionRequest precision_request(const Precision& precision) {
  if (precision.format == Precision::automatic) return {};
  return {static_cast<ops::Precision>(precision.format - 1)};
}

plan::MemoryLimit memory_limit(const MemoryLimit& limit, const LeaveFree& leave_free) {
  return {limit.text, limit.bytes, limit.percent, leave_free.text, leave_free.bytes};
}

EngineOptions engine_options(const ScorerOptions& o) {
  EngineOptions encoder;
  encoder.device = device_choice(o.device);
  encoder.precision = precision_request(o.precision);
  encoder.threads = o.threads;
  encoder.memory_limit = memory_limit(o.memory_limit, o.leave_free);
  encoder.max_length = o.max_length;
  encoder.shares_base = o.share_base;
  encoder.long_text = o.long_text;
  encoder.deterministic = o.deterministic;
  encoder.parked_bytes = o.parked_bytes;
  encoder.cache_bytes = o.cache_bytes;
  encoder.bulk_seconds = o.bulk_seconds;
  encoder.batch_tokens = o.batch_tokens;
  encoder.raw_scores = o.raw_scores && !o.pooling;
  encoder.aggregation = o.aggregation;
  encoder.labels = o.labels;
  encoder.zero_shot = o.zero_shot;
  encoder.entities = o.entities;
  encoder.pooling = o.pooling;
  encoder.prompt_name = o.prompt_name;
  encoder.fill = o.fill;
  encoder.input_bytes = o.input_bytes;
  return encoder;
}

}  // namespace brim::engine
