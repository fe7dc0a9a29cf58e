// SPDX-License-Identifier: Apache-2.0
#include "plan/profile_json.h"

#include "base/error.h"
#include "io/json_text.h"
#include "plan/profile_file.h"

namespace brim::plan {

using device::DeviceKind;
using device::Isa;
using device::isa_name;

nlohmann::ordered_json profile_to_json(const DeviceProfile& p) {
  nlohmann::ordered_json j = {{"name", p.name}, {"kind", device_kind_name(p.kind)}};
  if (p.kind == DeviceKind::cpu) {
    j["isa"] = isa_name(p.isa);
    j["threads"] = p.threads;
  } else
    j["compute_capability"] = p.compute_capability;
  j["total_bytes"] = p.total_bytes;
  j["tflops_fp32"] = p.tflops_fp32;
  j["tflops_tf32"] = p.tflops_tf32;
  j["tflops_half"] = p.tflops_half;
  j["tflops_fp8"] = p.tflops_fp8;
  j["tops_int8"] = p.tops_int8;
  if (p.kind == DeviceKind::cuda) j["host_bandwidth"] = p.host_bandwidth;
  j["bandwidth"] = p.bandwidth;
  j["context_bytes"] = p.context_bytes;
  j["bf16"] = p.bf16;
  j["measured"] = p.measured;
  j["context_measured"] = p.context_measured;
  if (p.context_by_free_memory) j["context_by_free_memory"] = true;

  j["runnable"] = p.runnable;
  return j;
}

DeviceProfile profile_of_json(const nlohmann::ordered_json& j) {
  DeviceProfile p;
  p.name = j.at("name").get<std::string>();
  p.kind = j.at("kind") == device_kind_name(DeviceKind::cpu) ? DeviceKind::cpu : DeviceKind::cuda;
  const auto isa = j.value("isa", std::string("generic"));
  for (int i = 0; i <= static_cast<int>(Isa::neon_mm); ++i)
    if (isa == isa_name(static_cast<Isa>(i))) p.isa = static_cast<Isa>(i);
  p.threads = j.value("threads", 1);
  p.compute_capability = j.value("compute_capability", 0);
  p.total_bytes = j.at("total_bytes").get<int64_t>();
  p.tflops_fp32 = j.at("tflops_fp32").get<double>();
  p.tflops_tf32 = j.at("tflops_tf32").get<double>();
  p.tflops_half = j.at("tflops_half").get<double>();
  p.tflops_fp8 = j.at("tflops_fp8").get<double>();
  p.tops_int8 = j.at("tops_int8").get<double>();
  p.host_bandwidth = j.value("host_bandwidth", 0.0);
  p.bandwidth = j.at("bandwidth").get<double>();
  p.context_bytes = j.at("context_bytes").get<int64_t>();
  p.bf16 = j.at("bf16").get<bool>();
  p.measured = j.at("measured").get<bool>();
  p.context_measured = j.at("context_measured").get<bool>();
  p.context_by_free_memory = j.value("context_by_free_memory", false);
  p.runnable = j.at("runnable").get<bool>();
  return p;
}

std::string to_json(const DeviceProfile& profile) { return profile_to_json(profile).dump(2); }

DeviceProfile profile_from_json(const std::string& text) {
  try {
    return profile_of_json(nlohmann::ordered_json::parse(text));
  } catch (const nlohmann::json::exception& e) {
    fail(ErrorCode::bad_data, "not a device profile: {}", io::json_reason(e.what()));
  }
}

namespace {
constexpr int kProfileVersion = 1;  // files without a version are version 1
}

std::string profile_file_text(const DeviceProfile& profile) {
  nlohmann::ordered_json file = {{"version", kProfileVersion}};
  file.update(profile_to_json(profile));
  return file.dump(2) + "\n";
}

std::optional<DeviceProfile> read_profile_file(const std::string& text) {
  DeviceProfile profile = profile_from_json(text);
  if (nlohmann::json::parse(text).value("version", 1) != kProfileVersion) return std::nullopt;
  return profile;
}

}  // namespace brim::plan
