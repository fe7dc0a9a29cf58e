// SPDX-License-Identifier: Apache-2.0
// Tests the doctor on synthetic timelines with known answers: each injected cause must be named first, with the run
// time without it; a good run must get no advice; a file that is not a Brim trace must be rejected.
#include "jobs/doctor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "jobs/doctor_machine.h"
#include "jobs/synthetic_trace.h"

namespace brim::jobs {
namespace {

// In each, the device computes 40 ms out of every 100 unless noted, so 400 ms remain without the fault.
std::vector<InjectedFault> host_faults() {
  return {
      {"reader", Cause::reader, 400,
       [] {
         SyntheticRun m(true);
         batches(m, 60, 100, 40);
         for (int i = 0; i < 10; ++i)
           m.zone("reader", Zone::read, i * 100, i * 100 + 60).zone("compute", Zone::wait_input, i * 100, i * 100 + 60);
         m.zone("tokenizer 0", Zone::tokenize, 30, 31);
         m.stats().read_cpu_seconds = 0;
         return m;
       }},
      {"tokenizer", Cause::tokenizer, 400,  // 600 ms of two threads' work; six threads need 200
       [] {
         SyntheticRun m(true);
         m.zone("tokenizer 0", Zone::tokenize, 0, 0.001);  // the first chunk is small, so startup is negligible
         batches(m, 60, 100, 40);
         for (int i = 0; i < 10; ++i) {
           m.zone("tokenizer 0", Zone::tokenize, i * 100, i * 100 + 60)
               .zone("tokenizer 1", Zone::tokenize, i * 100, i * 100 + 60);
           m.zone("compute", Zone::wait_input, i * 100, i * 100 + 60)
               .zone("reader", Zone::wait_output, i * 100, i * 100 + 60);
         }
         return m;
       }},
      {"packer", Cause::packer, 460,  // packing the first batch is unavoidable
       [] {
         SyntheticRun m(true);
         batches(m, 60, 100, 40);
         for (int i = 0; i < 10; ++i) m.zone("compute", i % 2 == 0 ? Zone::pack : Zone::collect, i * 100, i * 100 + 60);
         return m;
       }},
      {"copy of a slow link", Cause::copy, 400,
       [] {
         SyntheticRun m(true);
         batches(m, 60, 100, 40);
         for (int i = 0; i < 10; ++i)
           m.zone("compute", Zone::wait_device, i * 100, i * 100 + 60).zone("copy", Zone::copy, i * 100, i * 100 + 60);
         return m;
       }},
      {"copies not overlapped", Cause::copy, 600,  // 600 ms of host work remain
       [] {
         SyntheticRun m(true);
         m.trace.record.staging_depth = 1;
         batches(m, 60, 100, 40);
         for (int i = 0; i < 10; ++i) {
           m.zone("compute", Zone::collect, i * 100, i * 100 + 20)
               .zone("compute", Zone::pack, i * 100 + 20, i * 100 + 40);
           m.zone("compute", Zone::stage, i * 100 + 40, i * 100 + 60);
         }
         return m;
       }},
  };
}

std::vector<InjectedFault> transfer_faults() {
  return {
      // Timeline of DeviceQueue with one slot: the device works 80 of 100 ms, then results are copied, the host wakes,
      // delivers them, fills the only slot, copies it and launches. Only packing overlaps.
      {"one slot", Cause::copy, 800,
       [] {
         SyntheticRun m(true);
         m.trace.record.staging_depth = 1;
         for (int i = 0; i < 10; ++i) {
           const double t = i * 100;
           m.zone("compute", Zone::stage, t, t + 5).zone("copy", Zone::copy, t + 4, t + 7);
           m.zone("compute", Zone::compute, t + 5, t + 12).zone("device", Zone::device_busy, t + 8, t + 88);
           m.zone("compute", Zone::pack, t + 12, t + 40).zone("compute", Zone::wait_device, t + 40, t + 91);
           m.zone("copy back", Zone::copy, t + 88, t + 90).zone("compute", Zone::collect, t + 91, t + 100);
           m.zone("tokenizer 0", Zone::tokenize, t + 10, t + 90);  // concurrent, so neither is blamed
           m.zone("reader", Zone::wait_room, t + 10, t + 100);
         }
         return m;
       }},
      // The same setting when it is not the bottleneck: packing takes nine times the device's time, so overlap hides a
      // tenth of it.
      {"one slot and a slow packer", Cause::packer, 280,  // packing the first batch is unavoidable
       [] {
         SyntheticRun m(true);
         m.trace.record.staging_depth = 1;
         batches(m, 90, 100, 10);
         for (int i = 0; i < 10; ++i) m.zone("compute", Zone::pack, i * 100, i * 100 + 90);
         return m;
       }},
      {"a slow link while the host packs", Cause::copy, 400,
       [] {
         SyntheticRun m(true);
         batches(m, 60, 100, 40);
         for (int i = 0; i < 10; ++i)
           m.zone("compute", Zone::pack, i * 100, i * 100 + 30).zone("copy", Zone::copy, i * 100, i * 100 + 60);
         return m;
       }},
      {"launch", Cause::launch, 400,
       [] {
         SyntheticRun m(true);
         batches(m, 60, 100, 40);
         for (int i = 0; i < 10; ++i) m.zone("compute", Zone::compute, i * 100, i * 100 + 60);
         return m;
       }},
      {"sync", Cause::sync, 400,
       [] {
         SyntheticRun m(true);
         batches(m, 60, 100, 40);
         for (int i = 0; i < 10; ++i) m.zone("compute", Zone::wait_device, i * 100, i * 100 + 60);
         return m;
       }},
  };
}

std::vector<InjectedFault> output_faults() {
  return {
      {"writer", Cause::writer, 400,
       [] {
         SyntheticRun m(true);
         batches(m, 0, 100, 40);
         for (int i = 0; i < 10; ++i) {
           m.zone("writer", Zone::write, i * 100 + 40, i * 100 + 100)
               .zone("compute", Zone::wait_input, i * 100 + 40, i * 100 + 100);
           m.zone("reader", Zone::wait_room, i * 100 + 40, i * 100 + 100);
         }
         return m;
       }},
      {"writer at the end", Cause::writer, 400,
       [] {
         SyntheticRun m(true);
         batches(m, 0, 40, 40);
         m.zone("writer", Zone::write, 40, 1000);
         m.stats().sink_cpu_seconds = 0;
         return m;
       }},
      {"small batches", Cause::small_batch, 500,  // always busy, but at half the attainable speed
       [] {
         SyntheticRun m(true);
         batches(m, 0, 100, 100);
         m.trace.record.free_token_budget = 65536, m.trace.record.free_tokens_per_second = 2e6,
         m.trace.record.free_limit_bytes = int64_t{8} << 30;
         return m;
       }},
      {"tiny batches on a card", Cause::small_batch,
       200,  // 9 ms of compute and 6 of delivery remain, but reading takes 200
       [] {
         SyntheticRun m(true);
         batches(m, 0, 100, 90);
         for (int i = 0; i < 10; ++i)
           m.zone("compute", Zone::collect, i * 100 + 90, i * 100 + 100)
               .zone("reader", Zone::read, i * 100, i * 100 + 20);
         m.trace.record.free_token_budget = 65536, m.trace.record.free_tokens_per_second = 100e6,
         m.trace.record.free_limit_bytes = int64_t{8} << 30;
         return m;
       }},
      {"memory that others hold", Cause::memory, 500,
       [] {
         SyntheticRun m(true);
         batches(m, 0, 100, 100);
         m.trace.record.free_token_budget = 65536, m.trace.record.free_tokens_per_second = 2e6,
         m.trace.record.free_limit_bytes = int64_t{8} << 30;
         m.trace.record.card.other_bytes = int64_t{7} << 30, m.trace.record.card.other_processes = 1;
         return m;
       }},
  };
}

std::vector<InjectedFault> machine_faults() {
  return {
      {"paging", Cause::memory, 800,
       [] {
         SyntheticRun m(false);
         batches(m, 0, 100, 100);
         m.stats().major_faults = 2000;
         return m;
       }},
      {"throttle", Cause::throttle, 600,
       [] {
         SyntheticRun m(true);
         batches(m, 0, 100, 100);
         m.trace.record.card.sm_clock_mhz = 1200;
         m.trace.record.card.max_sm_clock_mhz = 2000;
         m.trace.record.card.throttle = {"hardware thermal"};
         return m;
       }},
      {"heat at the power cap", Cause::throttle, 750,  // with only the power cap active, the GPU reached 1600 MHz
       [] {
         SyntheticRun m(true);
         batches(m, 0, 100, 100);
         m.trace.record.card.sm_clock_mhz = 1200;
         m.trace.record.card.max_sm_clock_mhz = 2000;
         m.trace.record.card.unhindered_clock_mhz = 1600;
         m.trace.record.card.throttle = {"power cap", "software thermal"};
         m.trace.record.card.power_w = 690;
         m.trace.record.card.power_limit_w = 700;
         return m;
       }},
      {"a power cap that power does not explain", Cause::throttle, 250,
       [] {
         SyntheticRun m(true);
         batches(m, 0, 100, 100);
         m.trace.record.card.sm_clock_mhz = 500;
         m.trace.record.card.max_sm_clock_mhz = 2000;
         m.trace.record.card.throttle = {"power cap"};
         m.trace.record.card.power_w = 200;
         m.trace.record.card.power_limit_w = 700;
         return m;
       }},
      {"other process on the CPU", Cause::other_process,
       600,  // 8 cores for 1 s: 4.8 s used by the run, 3.2 s by others
       [] {
         SyntheticRun m(false);
         m.trace.record.threads = 8;
         m.trace.record.plan_tokens_per_second = m.trace.record.free_tokens_per_second =
             40960 / 0.6;  // consistent with the plan
         batches(m, 0, 100, 100);
         m.stats().cpu_seconds = 4.8;
         m.stats().other_cpu_seconds = 3.2;
         m.stats().run_delay_seconds = 3.2;
         return m;
       }},
      {"reader on the CPU", Cause::reader, 400,
       [] {
         SyntheticRun m(false);
         batches(m, 60, 100, 40);
         for (int i = 0; i < 10; ++i)
           m.zone("reader", Zone::read, i * 100, i * 100 + 60).zone("compute", Zone::wait_input, i * 100, i * 100 + 60);
         m.stats().cpu_seconds = 1.6;
         return m;
       }},
      {"too few threads for the rules", Cause::tokenizer, 250,  // VADER: 2 of 8 cores, all busy
       [] {
         SyntheticRun m(false);
         m.trace.record.model = "vader";
         m.trace.record.token_budget = 0;
         m.stats().batches = 0;
         m.stats().tokens = 0;
         m.zone("tokenizer 0", Zone::tokenize, 0, 1000)
             .zone("tokenizer 1", Zone::tokenize, 0, 1000)
             .zone("reader", Zone::wait_output, 0, 1000);
         m.stats().cpu_seconds = 2;
         m.stats().tokenize_cpu_seconds = 2;
         return m;
       }},
  };
}

std::vector<InjectedFault> injected_faults() {
  std::vector<InjectedFault> all;
  for (std::vector<InjectedFault> (*group)() : {host_faults, transfer_faults, output_faults, machine_faults})
    for (const InjectedFault& fault : group()) all.push_back(fault);
  return all;
}

TEST(Doctor, RanksEachInjectedFaultFirstAndPredictsTheGain) {
  for (const InjectedFault& fault : injected_faults()) {
    SCOPED_TRACE(fault.name);
    const Diagnosis d = expect_named_first(fault, 0.1);
    for (size_t i = 1; i < d.findings.size(); ++i) EXPECT_GE(d.findings[i - 1].gain, d.findings[i].gain);
  }
}

TEST(Doctor, ExcludesWarmUp) {
  const std::vector<InjectedFault> all = injected_faults();
  const auto reader =
      std::find_if(all.begin(), all.end(), [](const InjectedFault& p) { return p.cause == Cause::reader; });
  const Diagnosis plain = diagnose(reader->make().trace);
  SyntheticRun warmed = reader->make();
  for (ZoneEvent& e : warmed.trace.events) {
    e.begin_ns += 500'000'000;
    e.end_ns += 500'000'000;
  }
  warmed.zone("device", Zone::device_busy, 0, 40).zone("device", Zone::device_busy, 80, 200);
  std::stable_sort(warmed.trace.events.begin(), warmed.trace.events.end(),
                   [](const ZoneEvent& a, const ZoneEvent& b) { return a.begin_ns < b.begin_ns; });
  const Diagnosis later = diagnose(warmed.trace);
  EXPECT_DOUBLE_EQ(later.seconds, plain.seconds);
  EXPECT_DOUBLE_EQ(later.busy_seconds, plain.busy_seconds);
  ASSERT_FALSE(later.findings.empty());
  EXPECT_EQ(later.findings[0].cause, Cause::reader);
}

TEST(Doctor, ReportsWhenNothingCanBeGained) {
  for (const bool on_card : {true, false}) {
    SyntheticRun m(on_card);
    batches(m, 2, 100, 99);
    m.zone("reader", Zone::read, 0, 1)
        .zone("tokenizer 0", Zone::tokenize, 1, 2)
        .zone("writer", Zone::write, 1001, 1002);
    m.stats().cpu_seconds = 1;
    m.stats().read_cpu_seconds = 0.001;
    m.stats().sink_cpu_seconds = 0.001;
    m.stats().other_cpu_seconds = 0.05;
    const Diagnosis d = diagnose(m.trace);
    EXPECT_TRUE(d.nothing_to_gain()) << to_text(d);
    EXPECT_NE(to_text(d).find("no bottleneck found"), std::string::npos);
    EXPECT_GE(d.attributed(), 0.98);
    EXPECT_EQ(to_env_file(d).find("BRIM_"), std::string::npos);
  }
}

// A healthy H200 under full load: 690 of 700 W, clocks down because of it.
void at_power_cap(SyntheticRun& m, double watts) {
  CardRecord& c = m.trace.record.card;
  c.sm_clock_mhz = 1400;
  c.max_sm_clock_mhz = 1980;
  c.unhindered_clock_mhz = 1400;
  c.throttle = {"power cap"};
  c.power_w = watts;
  c.power_limit_w = 700;
}

TEST(Doctor, ReportsAPowerCapAsAFact) {
  SyntheticRun busy(true);
  batches(busy, 0, 100, 99);
  at_power_cap(busy, 690);
  const Diagnosis alone = diagnose(busy.trace);
  EXPECT_TRUE(alone.nothing_to_gain()) << to_text(alone);
  EXPECT_NE(alone.verdict.find("no bottleneck found: the GPU is at its power limit (690 of 700 W"), std::string::npos)
      << alone.verdict;
  ASSERT_EQ(alone.facts.size(), 1u);
  EXPECT_NE(alone.facts[0].find("1400 of 1980 MHz"), std::string::npos) << alone.facts[0];
  EXPECT_NE(to_text(alone).find(alone.facts[0]), std::string::npos);
  busy.trace.record.card.power_w.reset();  // a driver that does not report power
  busy.trace.record.card.power_limit_w.reset();
  EXPECT_TRUE(diagnose(busy.trace).nothing_to_gain());

  // In addition to it, every fault keeps its rank and its prediction. A GPU that idles between batches draws less on
  // average.
  for (const InjectedFault& fault : injected_faults()) {
    SyntheticRun m = fault.make();
    if (!m.trace.record.on_card || fault.cause == Cause::throttle) continue;
    SCOPED_TRACE(fault.name);
    const Diagnosis without = diagnose(m.trace);
    at_power_cap(m, 100 + 590 * without.busy_seconds / without.seconds);
    const Diagnosis with = diagnose(m.trace);
    EXPECT_EQ(with.findings, without.findings) << to_text(with);
    EXPECT_EQ(with.facts.size(), 1u);
  }
}

TEST(Doctor, SuggestsResettingLockedClocks) {
  SyntheticRun m(true);
  batches(m, 0, 100, 100);
  m.trace.record.card.sm_clock_mhz = 1000;
  m.trace.record.card.max_sm_clock_mhz = 2000;
  m.trace.record.card.throttle = {"application clocks"};
  const Diagnosis d = diagnose(m.trace);
  ASSERT_FALSE(d.findings.empty());
  EXPECT_NE(d.findings[0].change.find("nvidia-smi -rac"), std::string::npos) << d.findings[0].change;
}

TEST(DoctorTrace, ReadsGpuCountersDuringWorkOnly) {
  const auto sample = [](int clock, double watts, std::vector<std::string> reasons) {
    monitor::GpuSample s;
    s.sm_clock_mhz = clock;
    s.max_sm_clock_mhz = 1980;
    s.power_w = watts;
    s.power_limit_w = 700;
    s.throttle = std::move(reasons);
    return s;
  };
  CardReadings readings;
  readings.add(sample(345, 90, {"idle"}));  // before the first batch: its clocks are not a slowdown
  readings.add(sample(1500, 690, {"power cap"}));
  readings.add(sample(1300, 690, {"power cap"}));
  readings.add(sample(800, 330, {"hardware slowdown", "hardware thermal"}));
  const CardRecord& r = readings.record();
  EXPECT_EQ(r.sm_clock_mhz, 1200);
  EXPECT_EQ(r.unhindered_clock_mhz, 1400);
  EXPECT_EQ(r.max_sm_clock_mhz, 1980);
  EXPECT_NEAR(r.power_w.value_or(0), 450, 1e-9);
  EXPECT_EQ(r.throttle, (std::vector<std::string>{"power cap", "hardware slowdown", "hardware thermal"}));
  nlohmann::json older =
      nlohmann::json::parse(to_json(RunRecord{}));  // a reading missing in an older trace counts as not taken
  older["card"].erase("power_w");
  older["card"]["sm_clock_mhz"] = -1;
  older["stats"]["other_cpu_seconds"] = -1;
  const RunRecord read = monitor::record_from_json(older.dump());
  EXPECT_EQ(read.card, CardRecord{});
  EXPECT_EQ(read.stats.other_cpu_seconds, std::nullopt);
  CardReadings silent;
  silent.add({});
  EXPECT_EQ(silent.record(), CardRecord{});
}

// A fault that hides a second one gains only up to the second one's limit.
TEST(Doctor, LimitsPredictionsByTheNextStage) {
  SyntheticRun m(true);
  batches(m, 60, 100, 40);
  for (int i = 0; i < 10; ++i) {
    m.zone("reader", Zone::read, i * 100, i * 100 + 60).zone("compute", Zone::wait_input, i * 100, i * 100 + 60);
    m.zone("writer", Zone::write, i * 100, i * 100 + 80);
  }
  m.stats().sink_cpu_seconds = 0.8;
  const Diagnosis d = diagnose(m.trace);
  ASSERT_FALSE(d.findings.empty());
  EXPECT_EQ(d.findings[0].cause, Cause::reader);
  EXPECT_NEAR(d.findings[0].predicted_seconds, 0.8, 1e-6);
}

TEST(Doctor, PrefersAMeasuredProbeToThePrediction) {
  SyntheticRun m(true);
  batches(m, 0, 100, 100);
  m.trace.record.free_token_budget = 65536;
  m.trace.record.free_tokens_per_second = 8e6;
  EXPECT_TRUE(wants_probe(m.trace));
  EXPECT_NEAR(diagnose(m.trace).findings.at(0).predicted_seconds, 0.125, 1e-6);
  EXPECT_NEAR(diagnose(m.trace, BudgetProbe{1e6, 2e6}).findings.at(0).predicted_seconds, 0.5, 1e-6);
  EXPECT_TRUE(diagnose(m.trace, BudgetProbe{1e6, 1e6}).nothing_to_gain());
}

TEST(Doctor, WritesSettingsToAnEnvFile) {
  SyntheticRun m(true);
  batches(m, 0, 100, 100);
  m.trace.record.free_token_budget = 65536;
  m.trace.record.free_tokens_per_second = 2e6;
  EXPECT_NE(to_env_file(diagnose(m.trace)).find("\nBRIM_MEMORY_LIMIT=auto\n"), std::string::npos);
  EXPECT_EQ((SettingChange{"tokenizer_threads", "6"}).variable(), "BRIM_TOKENIZER_THREADS");
}

TEST(Doctor, JsonRoundTrip) {
  for (const InjectedFault& fault : injected_faults()) {
    const Diagnosis d = diagnose(fault.make().trace);
    EXPECT_EQ(diagnosis_from_json(to_json(d)), d) << fault.name;
  }
  for (const char* broken :
       {"", "{", "[]", "{}", R"({"seconds":"x"})",
        R"({"seconds":1,"busy_seconds":1,"idle_seconds":0,"verdict":"","idle_by_cause":{},"findings":[]})"})
    EXPECT_THROW((void)diagnosis_from_json(broken), Error) << broken;
}

TEST(DoctorTrace, WatchesTheGpuOfTheRun) {
  ::setenv("BRIM_NVML_LIBRARY", BRIM_NVML_STAND_IN, 1);
  ::setenv("BRIM_NVML_SCENARIO", "name=A,pci=17,throttle=64,power=100|name=B,pci=65,throttle=4,power=690", 1);
  CardRecord record;
  for (int attempt = 0; attempt < 50 && !record.power_w; ++attempt) {
    CardWatch watch("0000:65:00.0");
    std::this_thread::sleep_for(std::chrono::milliseconds(250 * (attempt + 1)));
    record = watch.stop();
  }
  ::unsetenv("BRIM_NVML_LIBRARY"), ::unsetenv("BRIM_NVML_SCENARIO");
  EXPECT_EQ(record.throttle, std::vector<std::string>{"power cap"});
  EXPECT_EQ(record.power_w, 690);
  EXPECT_EQ(record.power_limit_w, 700);
}

TEST(DoctorTrace, FileGivesTheSameDiagnosisAsTheRun) {
  for (const InjectedFault& fault : injected_faults()) {
    SCOPED_TRACE(fault.name);
    RunTrace t = fault.make().trace;
    std::stable_sort(t.events.begin(), t.events.end(),
                     [](const ZoneEvent& a, const ZoneEvent& b) { return a.begin_ns < b.begin_ns; });
    const RunTrace read = parse_trace(file_of(t), "run.json");
    EXPECT_EQ(read.lanes, t.lanes);
    EXPECT_EQ(to_json(read.record), to_json(t.record));
    EXPECT_EQ(diagnose(read), diagnose(t));
  }
}

TEST(DoctorTrace, ReadsTimelineOutput) {
  Timeline::clear();
  Timeline::enable(true);
  Timeline::name_thread("compute");
  Timeline::record(Zone::compute, 1000, 2'001'000, 77);
  Timeline::record(Zone::linear, 1000, 2000, 0);
  Timeline::record(Timeline::add_lane("device"), Zone::device_busy, 5000, 1'005'000, 9);
  Timeline::enable(false);
  const SyntheticRun m(true);
  const RunTrace t = parse_trace(Timeline::chrome_trace(to_json(m.trace.record)), "run.json");
  ASSERT_EQ(t.events.size(), 2u);
  EXPECT_EQ(t.events[0].detail, 77);
  EXPECT_EQ(t.events[1].zone, Zone::device_busy);
  EXPECT_EQ(t.events[1].begin_ns - t.events[0].begin_ns, 4000);
  EXPECT_EQ(t.lanes[static_cast<size_t>(t.events[1].thread)], "device");
  Timeline::clear();
}

// tests/data/formats_0.1/README.md
TEST(DoctorTrace, ReadsATraceOfAnEarlierVersion) {
  const RunTrace t = read_trace(std::filesystem::path(BRIM_SOURCE_DIR) / "tests/data/formats_0.1/server/run.json");
  EXPECT_EQ(t.record.verb, "score");
  EXPECT_EQ(t.record.device, "NVIDIA");
  EXPECT_EQ(t.record.planned_bytes, int64_t{900} << 20);
  EXPECT_EQ(t.record.stats.tokens, 40960);
  EXPECT_EQ(t.record.stats.rows, 1000);
  EXPECT_EQ(t.record.token_budget, 4096);
  EXPECT_EQ(t.events.size(), 20u);
  const Diagnosis d = diagnose(t);
  EXPECT_NEAR(d.seconds, 1.0, 1e-6);
  EXPECT_NEAR(d.busy_seconds, 0.4, 1e-6);
  EXPECT_FALSE(d.findings.empty()) << to_text(d);
}

TEST(DoctorTrace, RejectsOtherTraces) {
  const SyntheticRun m(true);
  nlohmann::json other_version = nlohmann::json::parse(to_json(m.trace.record));
  other_version["schema_version"] = 99;
  const std::string whole = file_of(m.trace);
  for (const std::string& bad :
       {std::string(""), std::string("not json"), std::string("[]"), std::string("{}"), std::string("[1,2]"),
        std::string("null"),
        std::string(R"({"traceEvents":[{"ph":"X","name":"read","ts":0,"dur":5,"tid":1,"pid":1}]})"),  // a trace of
                                                                                                      // another program
        std::string(R"({"traceEvents":[],"otherData":{"brim":{}}})"),
        std::string(R"({"traceEvents":[],"otherData":{"brim":7}})"),
        R"({"traceEvents":[],"otherData":{"brim":)" + to_json(m.trace.record) + "}}",  // no events
        R"({"traceEvents":[],"otherData":{"brim":)" + other_version.dump() + "}}", whole.substr(0, whole.size() / 2)}) {
    try {
      (void)parse_trace(bad, "run.json");
      FAIL() << bad.substr(0, 80);
    } catch (const Error& e) {
      EXPECT_EQ(exit_code(e.code()), 3) << bad.substr(0, 80);
      EXPECT_NE(std::string(e.what()).find("run.json"), std::string::npos) << e.what();
    }
  }
}

TEST(DoctorTrace, IgnoresUnknownEvents) {
  RunTrace t = injected_faults()[0].make().trace;
  nlohmann::json j = nlohmann::json::parse(file_of(t));
  for (const char* event :
       {R"({"ph":"X","tid":-5,"name":"read","ts":1,"dur":1})", R"({"ph":"X","tid":900,"name":"read","ts":1,"dur":1})",
        R"({"ph":"X","tid":0,"name":"read","ts":-1,"dur":1})",
        R"({"ph":"X","tid":0,"name":"read","ts":1e300,"dur":1e300})",
        R"({"ph":"X","tid":0,"name":"unheard of","ts":1,"dur":1})",
        R"({"ph":"X","tid":0,"name":"read","ts":1,"dur":0})"})
    j["traceEvents"].push_back(nlohmann::json::parse(event));
  const Diagnosis d = diagnose(parse_trace(j.dump(), "run.json"));
  EXPECT_EQ(d.findings.at(0).cause, Cause::reader);
  EXPECT_TRUE(std::isfinite(d.findings[0].predicted_seconds));
}

TEST(DoctorMachine, RunsChecksWithoutAGpu) {
  const auto checks = check_machine("/tmp", 0.05);
  EXPECT_GE(checks.size(), 4u);
  EXPECT_FALSE(to_text(checks).empty());
  bool disk = false;
  for (const auto& c : checks) disk |= c.what == "disk" && c.found.find("MB/s") != std::string::npos;
  EXPECT_TRUE(disk);
  bool refused = false;
  for (const auto& c : check_machine("/nonexistent", 0.01))
    refused |= c.what == "disk" && c.state == MachineCheck::State::problem;
  EXPECT_TRUE(refused);
}

TEST(DoctorMachine, RecognisesWsl) {
  const std::string wsl = "5.15.153.1-microsoft-standard-WSL2";
  constexpr int64_t kGiB = int64_t{1} << 30;
  EXPECT_TRUE(check_wsl("6.1.0-27-amd64", kGiB, 6 * kGiB).empty());
  const auto enough = check_wsl(wsl, 5 * kGiB, 6 * kGiB);
  ASSERT_EQ(enough.size(), 1u);
  EXPECT_EQ(enough[0].state, MachineCheck::State::notice);
  EXPECT_NE(enough[0].found.find(wsl), std::string::npos);
  const auto full = check_wsl(wsl, kGiB, 6 * kGiB);
  ASSERT_EQ(full.size(), 2u);
  EXPECT_EQ(full[1].state, MachineCheck::State::problem);
  EXPECT_NE(full[1].found.find("1.00 GiB of 6.00 GiB free"), std::string::npos) << full[1].found;
  EXPECT_EQ(check_wsl(wsl, {}, {}).size(), 1u) << "memory unknown";
  EXPECT_EQ(check_wsl(wsl, 3 * kGiB / 2, 2 * kGiB).size(), 1u) << "a small GPU that is mostly free";
}

TEST(Doctor, ReportsOneThreadOnTwoCores) {
  SyntheticRun m(false);
  m.zone("reader", Zone::read, 0, 0.001);
  batches(m, 0, 100, 100);
  m.trace.record.threads = 1;
  m.trace.record.cores = m.trace.record.machine_cores = 2;
  m.trace.record.stats.tokenizers = 1;
  m.stats().cpu_seconds = 1;
  m.stats().other_cpu_seconds = 0;
  const Diagnosis d = diagnose(m.trace);
  ASSERT_FALSE(d.nothing_to_gain()) << to_text(d);
  EXPECT_EQ(d.findings[0].cause, Cause::unused_cores);
  EXPECT_NEAR(d.findings[0].predicted_seconds, 0.5, 1e-6);
  EXPECT_EQ(d.findings[0].evidence, "1 thread used of 2 cores");
  EXPECT_NE(to_env_file(d).find("\nBRIM_THREADS=2\n"), std::string::npos);
  m.stats().other_cpu_seconds = 1;  // the other core was unavailable, and its own was always available
  m.stats().run_delay_seconds = 0;
  EXPECT_TRUE(diagnose(m.trace).nothing_to_gain()) << to_text(diagnose(m.trace));
}

TEST(Doctor, ReportsWhenAllIdleTimeIsExplained) {
  EXPECT_NE(to_text(diagnose(injected_faults()[0].make().trace)).find("all idle time is explained"), std::string::npos);
}

}  // namespace
}  // namespace brim::jobs
