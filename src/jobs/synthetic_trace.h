// SPDX-License-Identifier: Apache-2.0
// Test support for the doctor: synthetic timelines with known answers.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "jobs/doctor.h"

namespace brim::jobs {

// A synthetic timeline, in milliseconds.
class SyntheticRun {
 public:
  explicit SyntheticRun(bool on_card) {
    RunRecord& r = trace.record;
    r.verb = "score";
    r.model = "m";
    r.device = on_card ? "NVIDIA" : "cpu";
    r.precision = "bf16";
    r.on_card = on_card;
    r.inputs = {"in.csv"};
    r.output = "out.csv";
    r.threads = on_card ? 0 : 8;
    r.cores = 8;
    r.machine_cores = 8;
    r.token_budget = 4096;
    r.max_length = 512;
    r.staging_depth = on_card ? 3 : 1;
    r.free_token_budget = 4096;
    r.plan_tokens_per_second = r.free_tokens_per_second = 1e6;
    r.limit_bytes = r.free_limit_bytes = int64_t{1} << 30;
    r.stats.tokenizers = 2;
    r.stats.batches = 10;
    r.stats.tokens = 40960;
    r.stats.rows = 1000;
  }
  SyntheticRun& zone(const std::string& lane, Zone zone, double begin_ms, double end_ms) {
    size_t at = 0;
    while (at < trace.lanes.size() && trace.lanes[at] != lane) ++at;
    if (at == trace.lanes.size()) trace.lanes.push_back(lane);
    trace.events.push_back(
        {std::llround(begin_ms * 1e6), std::llround(end_ms * 1e6), zone, static_cast<int32_t>(at), 0});
    return *this;
  }
  engine::PipelineStats& stats() { return trace.record.stats; }
  RunTrace trace;
};

// Ten batches of `busy` ms, one every `every` ms, starting at `start`.
inline void batches(SyntheticRun& m, double start, double every, double busy) {
  for (int i = 0; i < 10; ++i) {
    if (m.trace.record.on_card)
      m.zone("device", Zone::device_busy, start + i * every, start + i * every + busy);
    else
      m.zone("compute", Zone::compute, start + i * every, start + i * every + busy);
  }
}

struct InjectedFault {
  const char* name;
  Cause cause;
  double predicted_ms;  // for a run of 1000 ms
  std::function<SyntheticRun()> make;
};

// Expects that the cause is named first, with evidence and a change, and that the prediction is within `tolerance` (a
// share) of the known time.
inline Diagnosis expect_named_first(const InjectedFault& fault, double tolerance) {
  const Diagnosis d = diagnose(fault.make().trace);
  EXPECT_NEAR(d.seconds, 1.0, 1e-6);
  EXPECT_GE(d.attributed(), 0.98) << to_text(d);
  EXPECT_NEAR(d.busy_seconds + d.idle_seconds, d.seconds, 1e-6);
  EXPECT_FALSE(d.findings.empty()) << to_text(d);
  if (d.findings.empty()) return d;
  EXPECT_STREQ(cause_name(d.findings[0].cause), cause_name(fault.cause)) << to_text(d);
  EXPECT_NEAR(d.findings[0].predicted_seconds * 1000, fault.predicted_ms, tolerance * fault.predicted_ms) << to_text(d);
  EXPECT_FALSE(d.findings[0].evidence.empty());
  EXPECT_FALSE(d.findings[0].change.empty());
  return d;
}

// The trace in the format of --trace.
inline std::string file_of(const RunTrace& t) {
  nlohmann::json j;
  j["otherData"]["brim"] = nlohmann::json::parse(to_json(t.record));
  j["traceEvents"] = nlohmann::json::array();
  for (size_t i = 0; i < t.lanes.size(); ++i)
    j["traceEvents"].push_back({{"ph", "M"}, {"tid", i}, {"name", "thread_name"}, {"args", {{"name", t.lanes[i]}}}});
  for (const ZoneEvent& e : t.events)
    j["traceEvents"].push_back({{"ph", "X"},
                                {"tid", e.thread},
                                {"name", zone_name(e.zone)},
                                {"ts", static_cast<double>(e.begin_ns) / 1e3},
                                {"dur", static_cast<double>(e.end_ns - e.begin_ns) / 1e3},
                                {"args", {{"n", e.detail}}}});
  return j.dump();
}

}  // namespace brim::jobs
