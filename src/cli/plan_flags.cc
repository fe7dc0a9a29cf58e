// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_flags.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/units.h"
#include "cli/render.h"

namespace brim::cli {

plan::Task asked_task(const PlanFlags& f) {
  if (f.task.empty()) return f.config.empty() ? plan::Task::score : plan::Task::train;
  if (f.task != "score" && f.task != "train") fail(ErrorCode::usage, "--task {}: use score, train or forecast", f.task);
  if (!f.forecast.empty()) fail(ErrorCode::usage, "--{}: requires --task forecast", dashed(f.forecast.begin()->first));
  return f.task == "train" ? plan::Task::train : plan::Task::score;
}

namespace {

std::optional<jobs::CustomCard> card_of(const PlanFlags& f) {
  if (f.vram.empty() && f.tflops == 0 && f.bandwidth == 0) return std::nullopt;
  if (!f.device.empty())
    fail(ErrorCode::usage, "--device {}: cannot be combined with --vram, --tflops and --bandwidth", f.device);
  const auto vram = parse_bytes(f.vram);
  if (!vram) fail(ErrorCode::usage, "--vram{}: must be a memory size such as 8GiB", f.vram.empty() ? "" : " " + f.vram);
  if (const std::string meant = with_unit(f.vram); !meant.empty())
    fail(ErrorCode::usage, "--vram {}: missing unit (did you mean {}?)", f.vram, meant);
  return jobs::CustomCard{*vram, f.tflops, f.bandwidth};
}

}  // namespace

jobs::PlanSpec spec_of(const PlanFlags& f) {
  jobs::PlanSpec spec;
  spec.task = asked_task(f);
  spec.config = f.config;
  spec.adapter = f.adapter;
  spec.settings = f.settings;
  spec.typical_length = f.typical_length;
  spec.zero_shot = f.zero_shot.read();
  spec.entities = f.entities.read();
  spec.several = f.models.size() > 1;
  spec.device = f.device;
  spec.card = card_of(f);
  spec.threads = f.threads;
  spec.measure = f.measure;
  return spec;
}

std::vector<std::string> in_flags(std::vector<std::string> lines) {
  for (std::string& line : lines) line = rendered(line);
  return lines;
}

plan::Plan in_flags(plan::Plan p) {
  p.why = in_flags(std::move(p.why));
  p.notes = in_flags(std::move(p.notes));
  return p;
}

std::string text_of(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string device_line(const plan::DeviceProfile& d) {
  std::string text = fmt::format("{}, {}", d.name, format_bytes(d.total_bytes));
  if (d.kind == device::DeviceKind::cuda && !d.context_measured)
    text +=
        fmt::format(", sm_{}; {} of driver memory are estimated", d.compute_capability, format_bytes(d.context_bytes));
  else if (d.context_by_free_memory)
    text += fmt::format("; {} of driver memory were measured by the change in free memory (NVML reports none)",
                        format_bytes(d.context_bytes));
  return text;
}

}  // namespace brim::cli
