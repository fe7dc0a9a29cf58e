// SPDX-License-Identifier: Apache-2.0
// Tests the doctor on synthetic timelines of training runs with known answers.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "jobs/doctor.h"
#include "jobs/synthetic_trace.h"

namespace brim::jobs {
namespace {

// A training run with ten steps of one micro-batch each.
SyntheticRun training(bool on_card = true) {
  SyntheticRun m(on_card);
  RunRecord& r = m.trace.record;
  r.verb = "train";
  r.output = "out";
  r.stats.tokenizers = 0;
  monitor::TrainingRecord& t = r.training.emplace();
  t.steps = 10;
  t.token_placement = "staged";
  t.recompute = t.free_recompute = "none";
  t.optimizer = t.free_optimizer = "adamw";
  t.wide_batch_tokens = 4096;
  t.wide_tokens_per_second = 1e6;
  return m;
}

// Ten steps of `busy` ms, one every 100 ms, starting at `start`.
SyntheticRun steps(double start, double busy, bool on_card = true) {
  SyntheticRun m = training(on_card);
  m.zone("main", Zone::wait_input, 0, 0.001);
  for (int i = 0; i < 10; ++i) m.zone("device", Zone::device_busy, start + i * 100, start + i * 100 + busy);
  return m;
}

// The device computes 40 ms out of every 100 unless noted. The first micro-batch and the final write are unavoidable,
// so nine occurrences of a cause before each step count.
std::vector<InjectedFault> step_faults() {
  return {
      {"packer", Cause::packer, 460,
       [] {
         SyntheticRun m = steps(60, 40);
         for (int i = 0; i < 10; ++i)
           m.zone("main", Zone::wait_input, i * 100, i * 100 + 60).zone("packer", Zone::pack, i * 100, i * 100 + 60);
         return m;
       }},
      {"packer on the CPU", Cause::packer, 460,
       [] {
         SyntheticRun m = steps(60, 40, false);
         for (int i = 0; i < 10; ++i)
           m.zone("main", Zone::wait_input, i * 100, i * 100 + 60).zone("packer", Zone::pack, i * 100, i * 100 + 60);
         return m;
       }},
      {"checkpoints", Cause::writer, 460,
       [] {
         SyntheticRun m = steps(0, 40);
         for (int i = 0; i < 10; ++i) m.zone("main", Zone::checkpoint, i * 100 + 40, i * 100 + 100);
         return m;
       }},
      {"the best model, written within an evaluation", Cause::writer,
       650,  // 350 of the device's idle 550 ms; the final write is the end of the run
       [] {
         SyntheticRun m = steps(0, 40);
         for (int i = 0; i < 10; ++i) {
           m.zone("main", Zone::evaluate, i * 100 + 40, i * 100 + 100)
               .zone("device", Zone::device_busy, i * 100 + 45, i * 100 + 50);
           m.zone("main", Zone::checkpoint, i * 100 + 60, i * 100 + (i == 9 ? 95 : 99));
         }
         return m;
       }},
      {"evaluation", Cause::evaluation, 600,  // its 20 ms on the device remain
       [] {
         SyntheticRun m = steps(0, 40);
         for (int i = 0; i < 10; ++i)
           m.zone("main", Zone::evaluate, i * 100 + 40, i * 100 + 100)
               .zone("device", Zone::device_busy, i * 100 + 60, i * 100 + 80);
         return m;
       }},
      {"a slow link", Cause::copy, 460,
       [] {
         SyntheticRun m = steps(60, 40);
         for (int i = 0; i < 10; ++i)
           m.zone("main", Zone::wait_device, i * 100, i * 100 + 60).zone("copy", Zone::copy, i * 100, i * 100 + 60);
         return m;
       }},
      {"launches", Cause::launch, 460,
       [] {
         SyntheticRun m = steps(60, 40);
         for (int i = 0; i < 10; ++i)
           m.zone("main", Zone::forward, i * 100, i * 100 + 50)
               .zone("main", Zone::optimizer, i * 100 + 50, i * 100 + 60);
         return m;
       }},
      {"losses read back", Cause::sync, 400,
       [] {
         SyntheticRun m = steps(0, 40);
         for (int i = 0; i < 10; ++i)
           m.zone("main", Zone::wait_device, i * 100, i * 100 + 50)
               .zone("main", Zone::collect, i * 100 + 50, i * 100 + 100);
         return m;
       }},
  };
}

std::vector<InjectedFault> plan_faults() {
  return {
      {"recomputing under a limit", Cause::memory, 500,
       [] {
         SyntheticRun m = steps(0, 100);
         m.trace.record.training->recompute = "full";
         m.trace.record.free_tokens_per_second = 2e6, m.trace.record.free_limit_bytes = int64_t{8} << 30;
         return m;
       }},
      {"optimizer state on the host", Cause::memory, 800,
       [] {
         SyntheticRun m = steps(0, 100);
         m.trace.record.training->moments_on_host = true;
         m.trace.record.free_tokens_per_second = 1.25e6, m.trace.record.free_limit_bytes = int64_t{8} << 30;
         return m;
       }},
      {"memory that others hold", Cause::memory, 500,
       [] {
         SyntheticRun m = steps(0, 100);
         m.trace.record.free_token_budget = 65536, m.trace.record.free_tokens_per_second = 2e6,
         m.trace.record.free_limit_bytes = int64_t{8} << 30;
         m.trace.record.card.other_bytes = int64_t{7} << 30, m.trace.record.card.other_processes = 1;
         return m;
       }},
      {"small micro-batches", Cause::small_batch, 500,
       [] {
         SyntheticRun m = steps(0, 100);
         m.trace.record.free_token_budget = 65536, m.trace.record.free_tokens_per_second = 2e6,
         m.trace.record.free_limit_bytes = int64_t{8} << 30;
         return m;
       }},
      {"short steps", Cause::small_batch, 550,  // half of 900 ms on the device; 100 belong to an evaluation
       [] {
         SyntheticRun m = training();
         m.zone("main", Zone::wait_input, 0, 0.001)
             .zone("device", Zone::device_busy, 0, 900)
             .zone("main", Zone::evaluate, 900, 1000);
         m.zone("device", Zone::device_busy, 900, 1000);
         m.trace.record.training->wide_batch_tokens = 32768;
         m.trace.record.training->wide_tokens_per_second = 2e6;
         return m;
       }},
      {"throttle", Cause::throttle, 600,
       [] {
         SyntheticRun m = steps(0, 100);
         m.trace.record.card.sm_clock_mhz = 1200;
         m.trace.record.card.max_sm_clock_mhz = 2000;
         m.trace.record.card.throttle = {"hardware thermal"};
         return m;
       }},
      {"other process on the CPU", Cause::other_process,
       600,  // 8 cores for 1 s: 4.8 s used by the run, 3.2 s by others
       [] {
         SyntheticRun m = steps(0, 100, false);
         m.trace.record.threads = 8;
         m.trace.record.plan_tokens_per_second = m.trace.record.free_tokens_per_second =
             40960 / 0.6;  // consistent with the plan
         m.trace.record.training->wide_tokens_per_second = 0;
         m.stats().cpu_seconds = 4.8;
         m.stats().other_cpu_seconds = 3.2;
         m.stats().run_delay_seconds = 3.2;
         return m;
       }},
  };
}

std::vector<InjectedFault> train_faults() {
  std::vector<InjectedFault> all;
  for (std::vector<InjectedFault> (*group)() : {step_faults, plan_faults})
    for (const InjectedFault& fault : group()) all.push_back(fault);
  return all;
}

TEST(DoctorTrain, RanksEachInjectedFaultFirstAndPredictsTheGain) {
  for (const InjectedFault& fault : train_faults()) {
    SCOPED_TRACE(fault.name);
    const Diagnosis d = expect_named_first(fault, 0.01);
    for (const Cause never : {Cause::reader, Cause::tokenizer}) EXPECT_EQ(d.idle[static_cast<size_t>(never)], 0);
  }
}

TEST(DoctorTrain, FileGivesTheSameDiagnosisAsTheRun) {
  for (const InjectedFault& fault : train_faults()) {
    SCOPED_TRACE(fault.name);
    RunTrace t = fault.make().trace;
    std::stable_sort(t.events.begin(), t.events.end(),
                     [](const ZoneEvent& a, const ZoneEvent& b) { return a.begin_ns < b.begin_ns; });
    const RunTrace read = parse_trace(file_of(t), "run.json");
    EXPECT_EQ(to_json(read.record), to_json(t.record));
    const Diagnosis d = diagnose(read);
    EXPECT_EQ(d, diagnose(t));
    EXPECT_EQ(diagnosis_from_json(to_json(d)), d);
  }
  RunTrace bare = steps(0, 40).trace;
  bare.record.training.reset();
  EXPECT_THROW((void)parse_trace(file_of(bare), "run.json"), Error);
}

TEST(DoctorTrain, SuggestsMemorySettingsButNoneThatChangeTraining) {
  const auto settings_of = [](const char* name) {
    for (const InjectedFault& fault : train_faults())
      if (fault.name == std::string(name)) return diagnose(fault.make().trace).findings.at(0).settings;
    ADD_FAILURE() << name;
    return std::vector<SettingChange>{};
  };
  const std::vector<SettingChange> lifted = {{"memory_limit", "auto"}};
  EXPECT_EQ(settings_of("recomputing under a limit"), lifted);
  EXPECT_EQ(settings_of("optimizer state on the host"), lifted);
  EXPECT_EQ(settings_of("small micro-batches"), lifted);
  for (const char* kept : {"short steps", "evaluation", "checkpoints", "memory that others hold"})
    EXPECT_TRUE(settings_of(kept).empty()) << kept;

  SyntheticRun explicit_recompute =
      steps(0, 100);  // full recomputation by --recompute, without a limit that requires it
  explicit_recompute.trace.record.training->recompute = "full";
  explicit_recompute.trace.record.training->recompute_asked = true;
  explicit_recompute.trace.record.free_tokens_per_second = 2e6;
  EXPECT_EQ(diagnose(explicit_recompute.trace).findings.at(0).settings,
            (std::vector<SettingChange>{{"recompute", "auto"}}));

  SyntheticRun streamed = train_faults()[0].make();
  streamed.trace.record.training->token_placement = "streamed";
  EXPECT_EQ(diagnose(streamed.trace).findings.at(0).settings, (std::vector<SettingChange>{{"token_set", "staged"}}));
}

TEST(DoctorTrain, ExcludesStartupAndModelWriting) {
  SyntheticRun m = training();
  m.zone("main", Zone::load_model, 0, 300)
      .zone("tokenizer 0", Zone::tokenize, 300, 900)
      .zone("device", Zone::device_busy, 900, 950);  // before
  m.zone("packer", Zone::pack, 1000, 1080).zone("main", Zone::wait_input, 1001, 1080);
  m.zone("main", Zone::forward, 1080, 1100)
      .zone("device", Zone::device_busy, 1100, 2000)
      .zone("main", Zone::write, 2000, 2100);
  const Diagnosis d = diagnose(m.trace);
  EXPECT_NEAR(d.seconds, 1.1, 1e-6);
  EXPECT_NEAR(d.busy_seconds, 0.9, 1e-6);
  EXPECT_NEAR(d.idle[static_cast<size_t>(Cause::startup)], 0.2, 1e-6);
  EXPECT_TRUE(d.nothing_to_gain()) << to_text(d);
  EXPECT_NE(to_text(d).find("no bottleneck found"), std::string::npos);
  EXPECT_FALSE(wants_probe(m.trace)) << "probes measure scoring, not training";
}

TEST(DoctorTrain, ReportsABusyEvaluationAsAFact) {
  SyntheticRun m = training();
  m.zone("main", Zone::wait_input, 0, 0.001).zone("device", Zone::device_busy, 0, 500);
  m.zone("main", Zone::evaluate, 500, 1000).zone("device", Zone::device_busy, 500, 1000);
  const Diagnosis d = diagnose(m.trace);
  EXPECT_TRUE(d.nothing_to_gain()) << to_text(d);
  ASSERT_EQ(d.facts.size(), 2u);
  EXPECT_EQ(d.facts[0], "of 1.0 s, steps took 500 ms (50 %), evaluation 500 ms (50 %), saving 0.0 s (0 %)");
  EXPECT_NE(d.facts[1].find("1 evaluation kept the device busy for 50 %"), std::string::npos) << d.facts[1];
}

TEST(DoctorTrain, ReportsTeacherUnusedCoresAndOtherProcesses) {
  SyntheticRun m = steps(0, 100, false);
  m.trace.record.training->teacher_seconds = 0.6;
  m.trace.record.threads = 4;
  const Diagnosis d = diagnose(m.trace);
  ASSERT_EQ(d.findings.size(), 1u) << to_text(d);
  EXPECT_EQ(d.findings[0].cause, Cause::unused_cores);
  EXPECT_NEAR(d.findings[0].predicted_seconds, 0.5, 1e-6);
  EXPECT_EQ(d.findings[0].settings, (std::vector<SettingChange>{{"threads", "8"}}));
  ASSERT_EQ(d.facts.size(), 2u);
  EXPECT_NE(d.facts[1].find("the teachers took 600 ms before the first step"), std::string::npos) << d.facts[1];
  m.trace.record.threads = 8;
  m.stats().cpu_seconds = 5;
  m.stats().other_cpu_seconds = m.stats().run_delay_seconds = 4;
  m.trace.record.others = "other processes used 4.0 of 8 cores (cc1plus 3.9)";
  const Diagnosis shared = diagnose(m.trace);
  ASSERT_FALSE(shared.findings.empty()) << to_text(shared);
  EXPECT_EQ(shared.findings[0].cause, Cause::other_process);
  EXPECT_NE(shared.findings[0].evidence.find("cc1plus 3.9"), std::string::npos) << shared.findings[0].evidence;
}

// Lanes draw their windows on the device: texts and tokens are never blamed.
TEST(DoctorTrain, DescribesForecastLanes) {
  struct Case {
    const char* verb;
    Zone zone;
    Cause cause;
    const char* words;
    const char* setting;
  };
  for (const Case& c :
       {Case{"forecast train", Zone::checkpoint, Cause::writer, "`save_steps`", nullptr},
        Case{"forecast train", Zone::evaluate, Cause::evaluation, "`val_check_steps`", nullptr},
        Case{"forecast roll", Zone::evaluate, Cause::evaluation, "these are the requested forecasts", nullptr},
        Case{"forecast roll", Zone::forward, Cause::launch, "`batch_size`", nullptr},
        Case{"forecast roll", Zone::wait_device, Cause::sync, "BRIM_SYNC", "sync"},
        Case{"forecast roll", Zone::wait_input, Cause::packer, "`memory_limit=auto`", "memory_limit"}}) {
    SCOPED_TRACE(c.words);
    SyntheticRun m = steps(0, 40);
    RunRecord& r = m.trace.record;
    r.verb = c.verb;
    r.plan_tokens_per_second = 0;
    r.token_budget = 0;
    r.training->lanes = 12;
    r.training->waves = 3;
    r.training->free_lanes = 12;
    r.free_limit_bytes = int64_t{4} << 30;
    for (int i = 0; i < 10; ++i) m.zone("main", c.zone, i * 100 + 40, i * 100 + 100);
    const Diagnosis d = diagnose(parse_trace(file_of(m.trace), "run.json"));
    ASSERT_FALSE(d.findings.empty()) << to_text(d);
    EXPECT_EQ(d.findings[0].cause, c.cause) << to_text(d);
    EXPECT_NE((d.findings[0].evidence + d.findings[0].change).find(c.words), std::string::npos) << to_text(d);
    EXPECT_EQ(to_text(d).find("token"), std::string::npos) << to_text(d);
    if (c.setting == nullptr)
      EXPECT_TRUE(d.findings[0].settings.empty());
    else
      EXPECT_EQ(d.findings[0].settings.at(0).name, c.setting);
    EXPECT_NE(to_text(d).find("12 lanes in 3 waves under 1.00 GiB; 4.00 GiB would fit 12 at a time"), std::string::npos)
        << to_text(d);
  }
}

TEST(DoctorTrain, ReadsOlderTraces) {
  nlohmann::json j = nlohmann::json::parse(file_of(steps(0, 100).trace));
  j["otherData"]["brim"].erase("others");
  j["otherData"]["brim"]["training"].erase("teacher_seconds");
  for (const char* later : {"free_planned_bytes", "lanes", "waves", "free_lanes"})
    j["otherData"]["brim"]["training"].erase(later);
  EXPECT_EQ(parse_trace(j.dump(), "run.json").record.training->steps, 10);
}

}  // namespace
}  // namespace brim::jobs
