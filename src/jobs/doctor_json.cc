// SPDX-License-Identifier: Apache-2.0
// Converts a diagnosis to JSON and back.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/settings.h"
#include "io/json_text.h"
#include "jobs/doctor.h"

namespace brim::jobs {

using Json = nlohmann::ordered_json;

std::string to_json(const Diagnosis& d) {
  Json j = {{"schema_version", 1},
            {"seconds", d.seconds},
            {"busy_seconds", d.busy_seconds},
            {"idle_seconds", d.idle_seconds},
            {"attributed", d.attributed()},
            {"verdict", d.verdict},
            {"findings", Json::array()},
            {"idle_by_cause", Json::object()},
            {"nothing_to_gain", d.nothing_to_gain()},
            {"facts", d.facts}};
  for (size_t c = 0; c < d.idle.size(); ++c) j["idle_by_cause"][cause_name(static_cast<Cause>(c))] = d.idle[c];
  for (const Finding& f : d.findings) {
    Json settings = Json::array();
    for (const SettingChange& s : f.settings) settings.push_back({{"flag", dashed(s.name)}, {"value", s.value}});
    j["findings"].push_back({{"cause", cause_name(f.cause)},
                             {"idle_seconds", f.idle_seconds},
                             {"predicted_seconds", f.predicted_seconds},
                             {"gain", f.gain},
                             {"evidence", f.evidence},
                             {"change", f.change},
                             {"settings", settings}});
  }
  return j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);  // paths may contain arbitrary bytes
}

Diagnosis diagnosis_from_json(const std::string& text) {
  try {
    const Json j = Json::parse(text);
    Diagnosis d;
    j.at("seconds").get_to(d.seconds);
    j.at("busy_seconds").get_to(d.busy_seconds);
    j.at("idle_seconds").get_to(d.idle_seconds);
    j.at("verdict").get_to(d.verdict);
    j.at("facts").get_to(d.facts);
    for (size_t c = 0; c < d.idle.size(); ++c)
      d.idle[c] = j.at("idle_by_cause").value(cause_name(static_cast<Cause>(c)), 0.0);  // older files have fewer causes
    for (const Json& item : j.at("findings")) {
      Finding f;
      const auto cause = cause_from_name(item.at("cause").get<std::string>());
      if (!cause) fail(ErrorCode::bad_data, "unknown cause {} in the diagnosis", item.at("cause").dump());
      f.cause = *cause;
      item.at("idle_seconds").get_to(f.idle_seconds);
      item.at("predicted_seconds").get_to(f.predicted_seconds);
      item.at("gain").get_to(f.gain);
      item.at("evidence").get_to(f.evidence);
      item.at("change").get_to(f.change);
      for (const Json& s : item.at("settings"))
        f.settings.push_back({underscored(s.at("flag").get<std::string>()), s.at("value").get<std::string>()});
      d.findings.push_back(std::move(f));
    }
    return d;
  } catch (const Json::exception& e) {
    fail(ErrorCode::bad_data, "not a diagnosis: {}", io::json_reason(e.what()));
  }
}

}  // namespace brim::jobs
