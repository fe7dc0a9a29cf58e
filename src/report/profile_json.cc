// SPDX-License-Identifier: Apache-2.0
// gpu_profile_….json: the fields read by existing news bots, plus additional ones. Unknown numbers are null.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "report/profile.h"

namespace brim::report {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kBytesPerMb = 1024 * 1024;
constexpr int kSchemaVersion = 1;

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }
Json known(double value) { return value >= 0 ? number(value) : Json(nullptr); }  // negative: unknown
template <class T>
Json maybe(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}
Json megabytes(const std::optional<int64_t>& bytes) {
  return bytes ? Json(static_cast<double>(*bytes) / kBytesPerMb) : Json(nullptr);
}

// Existing news bots read one string, which starts with the best speed-up.
std::string notes_text(const std::vector<std::string>& notes, const BatchPoint* best) {
  std::string text = best == nullptr || best->batch_size == 1
                         ? ""
                         : fmt::format("Best speedup: {:.2f}x at batch_size={}", best->speedup, best->batch_size);
  for (const std::string& note : notes) text += (text.empty() ? "" : "; ") + note;
  return text;
}
// Share of the GPU's memory in use, in percent.
Json memory_share(const std::optional<GpuFacts>& gpu) {
  if (!gpu || !gpu->used_mb || !gpu->total_mb || !(*gpu->total_mb > 0)) return nullptr;
  return 100 * *gpu->used_mb / *gpu->total_mb;
}

Json spread_ms(const jobs::Spread& s) {
  return {{"count", s.count},   {"mean", s.mean * 1e3}, {"p50", s.p50 * 1e3}, {"p95", s.p95 * 1e3},
          {"p99", s.p99 * 1e3}, {"min", s.least * 1e3}, {"max", s.most * 1e3}};
}

// Range of repeated measurements; null for a single one.
Json range_json(const jobs::Spread& s) {
  if (s.count < 2) return nullptr;
  return {{"count", s.count}, {"median", number(s.p50)}, {"min", number(s.least)}, {"max", number(s.most)}};
}

Json batch_json(const BatchPoint& b) {
  return {{"batch_size", b.batch_size},
          {"avg_time_ms", b.seconds.mean * 1e3},
          {"items_per_second", number(b.items_per_second)},
          {"speedup_vs_1", number(b.speedup)},
          {"tokens_per_second", b.tokens_per_second > 0 ? number(b.tokens_per_second) : Json(nullptr)},
          {"latency_ms", spread_ms(b.seconds)},
          {"items_per_second_range", range_json(b.rate)},
          {"speedup_range", range_json(b.gain)},
          {"device_busy_ms", b.flops > 0 ? number(b.busy_seconds * 1e3) : Json(nullptr)},
          {"mfu", maybe(b.mfu)},
          {"flops", b.flops > 0 ? number(b.flops) : Json(nullptr)},
          {"bytes", b.bytes > 0 ? number(b.bytes) : Json(nullptr)}};
}

Json size_json(const SizePoint& s) {
  return {{"rows", s.rows},
          {"texts_repeated", s.repeated},
          {"seconds", number(s.run.stats.seconds)},
          {"items_per_second", number(s.rows_per_second())},
          {"items_per_second_range", range_json(s.rate)},
          {"tokens_per_second", s.run.stats.tokens > 0 ? number(s.tokens_per_second()) : Json(nullptr)},
          {"tokens", s.run.stats.tokens},
          {"batches", s.run.stats.batches},
          {"mfu", maybe(s.run.mfu)},
          {"device_busy", maybe(s.run.device_busy)},
          {"energy_joules_per_1000", maybe(s.joules_per_1000)},
          {"held_back_by", s.run.held_back_by}};
}

Json plan_json(const ModelProfile& m) {
  if (!m.plan) return nullptr;
  Json tags = Json::object();
  for (int t = 0; t < memory::kTagCount; ++t)
    if (m.plan->bytes.bytes[static_cast<size_t>(t)] > 0)
      tags[tag_name(static_cast<memory::Tag>(t))] = m.plan->bytes.bytes[static_cast<size_t>(t)];
  const SizePoint* s = m.largest();
  return {
      {"planned_bytes", m.plan->peak_bytes},
      {"limit_bytes", m.plan->limit_bytes},
      {"bytes_by_tag", tags},
      {"token_budget", m.plan->token_budget},
      {"planned_tokens_per_second", m.plan->tokens_per_second > 0 ? number(m.plan->tokens_per_second) : Json(nullptr)},
      {"measured_tokens_per_second", s != nullptr ? number(s->tokens_per_second()) : Json(nullptr)},
      {"measured_bytes", maybe(m.own_bytes())},
      {"device_rate_flops", known(m.plan->device.rate(m.plan->precision))},
      {"device_bandwidth_bytes_per_second", number(m.plan->device.bandwidth)},
      {"device_rates_measured", m.plan->device.measured}};
}

Json model_json(const ModelProfile& m) {
  Json batches = Json::array(), sizes = Json::array(), ops = Json::array();
  for (const auto& b : m.batches) batches.push_back(batch_json(b));
  for (const auto& s : m.sizes) sizes.push_back(size_json(s));
  for (const auto& op : m.ops)
    ops.push_back({{"op", op.name},
                   {"flops", op.flops},
                   {"bytes", op.bytes},
                   {"seconds", op.seconds},
                   {"flops_per_byte", op.bytes > 0 ? number(op.flops / op.bytes) : Json(nullptr)},
                   {"flops_per_second", op.seconds > 0 ? number(op.flops / op.seconds) : Json(nullptr)}});
  // On the CPU a model uses no GPU memory, a known 0; on a GPU without this reading it is unknown.
  const Json vram = m.device_kind == device::DeviceKind::cuda ? megabytes(m.own_bytes()) : Json(0.0);
  return {{"model_name", m.name},
          {"model_type", m.type},
          {"load_time_ms", m.cold_load_seconds * 1e3},
          {"inference_time_ms", m.single.p50 * 1e3},
          {"items_per_second", m.single.mean > 0 ? number(1 / m.single.mean) : Json(nullptr)},
          {"vram_used_mb", vram},
          {"batch_results", batches},
          {"notes", notes_text(m.notes, m.best_batch())},
          {"model_dir", m.dir},
          {"family", m.family},
          {"parameters", m.parameters},
          {"device", m.device},
          {"precision", m.precision},
          {"load_time_warm_ms", m.warm_load_seconds * 1e3},
          {"cold_load_cached_share", maybe(m.cached_share)},
          {"latency_ms", spread_ms(m.single)},
          {"mean_tokens", m.mean_tokens},
          {"size_results", sizes},
          {"host_memory_mb", m.device_kind == device::DeviceKind::cpu ? megabytes(m.own_bytes()) : Json(nullptr)},
          {"plan", plan_json(m)},
          {"ops", ops},
          {"accuracy", maybe(m.accuracy)},
          {"macro_f1", maybe(m.macro_f1)},
          {"labelled_rows", m.labelled_rows}};
}

Json llm_run_json(const LlmRun& r) {
  return {
      {"requests", r.calls},
      {"failed", r.failed},
      {"cut", r.cut},
      {"tokens", r.tokens},
      {"tokens_counted_by", r.counted_by_server ? "server" : "pieces"},
      {"tokens_per_second", number(r.overall_tokens_per_second)},
      {"generation_tokens_per_second", r.tokens_per_second.count > 0 ? number(r.tokens_per_second.p50) : Json(nullptr)},
      {"time_to_first_token_ms", spread_ms(r.first_token_s)},
      {"latency_ms", spread_ms(r.seconds)}};
}

Json llm_json(const LlmProfile& l) {
  Json j = {{"model_name", l.model},
            {"model_type", "llm"},
            {"load_time_ms", l.server_load_s ? Json(*l.server_load_s * 1e3) : Json(nullptr)},
            {"inference_time_ms", l.alone.seconds.p50 * 1e3},
            {"items_per_second", l.alone.seconds.mean > 0 ? number(1 / l.alone.seconds.mean) : Json(nullptr)},
            {"vram_used_mb", megabytes(l.server_bytes)},
            {"batch_results", Json::array()},
            {"notes", notes_text(l.notes, nullptr)},
            {"api", l.api},
            {"url", l.url},
            {"max_tokens", l.max_tokens},
            {"first_request_ms", l.first_request_s * 1e3}};
  j.update(llm_run_json(l.alone));
  j["vram_by_process"] = nullptr;
  if (l.vram) {
    j["vram_by_process"] = Json::array();
    for (const auto& p : *l.vram)
      j["vram_by_process"].push_back({{"pid", p.pid}, {"name", p.name}, {"mb", megabytes(p.bytes)}, {"brim", p.ours}});
  }
  return j;
}

Json sharing_json(const Profile& p) {
  if (!p.llm || !p.llm->sharing) return nullptr;
  const SharingCost& s = *p.llm->sharing;
  const auto share = [](double together, double alone) { return alone > 0 ? number(together / alone) : Json(nullptr); };
  return {{"sentiment_model", s.sentiment_model},
          {"llm_model", p.llm->model},
          {"sentiment_alone_items_per_second", number(s.items_alone)},
          {"sentiment_together_items_per_second", number(s.items_together)},
          {"sentiment_speed_kept", share(s.items_together, s.items_alone)},
          {"llm_alone_tokens_per_second", number(p.llm->alone.overall_tokens_per_second)},
          {"llm_together_tokens_per_second", number(s.together.overall_tokens_per_second)},
          {"llm_speed_kept", share(s.together.overall_tokens_per_second, p.llm->alone.overall_tokens_per_second)},
          {"llm_together", llm_run_json(s.together)}};
}

}  // namespace

std::string profile_json(const Profile& p) {
  Json results = Json::array(), agreement = Json::array();
  for (const auto& m : p.models) results.push_back(model_json(m));
  if (p.llm) results.push_back(llm_json(*p.llm));
  for (const auto& a : p.agreement)
    agreement.push_back({{"a", a.a}, {"b", a.b}, {"rows", a.rows}, {"agreement", a.share}});
  const auto& gpu = p.machine.gpu;
  const Json j = {{"schema_version", kSchemaVersion},
                  {"generated_at", p.generated_at},
                  {"mode", p.mode},
                  {"system_info",
                   {{"used_mb", gpu ? maybe(gpu->used_mb) : Json(nullptr)},
                    {"total_mb", gpu ? maybe(gpu->total_mb) : Json(nullptr)},
                    {"utilization_pct", memory_share(gpu)},
                    {"gpu_utilization_pct", gpu ? maybe(gpu->utilization_pct) : Json(nullptr)},
                    {"temperature_c", gpu ? maybe(gpu->temperature_c) : Json(nullptr)}}},
                  {"machine",
                   {{"cpu", p.machine.cpu},
                    {"cores", p.machine.cores},
                    {"memory_bytes", p.machine.memory_bytes},
                    {"system", p.machine.system},
                    {"gpu", gpu ? Json(gpu->name) : Json(nullptr)},
                    {"driver", gpu ? Json(gpu->driver) : Json(nullptr)},
                    {"gpu_unavailable", gpu ? Json(nullptr) : Json(p.machine.why_no_gpu)}}},
                  {"texts", {{"source", p.texts_source}, {"count", p.texts}}},
                  {"results", results},
                  {"agreement", agreement},
                  {"sharing", sharing_json(p)},
                  {"recommendations", p.recommendations},
                  {"notes", p.notes}};
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace brim::report
