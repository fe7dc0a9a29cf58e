// SPDX-License-Identifier: Apache-2.0
// Training on the GPU: wherever the tokens live the run is the same, bit for bit, resumed or not, and a resident set is
// in the plan.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/timeline.h"
#include "device/cuda/testing.h"
#include "train/job.h"
#include "train/tiny_job.h"

namespace brim {
namespace {

// A tiny job on the first card; bf16 and dropout, as people train.
void on_card(TinyJob& t, bool tags) {
  if (tags) {
    put_file(t.dir / "train.conll", TinyJob::conll(96, 1));
    put_file(t.dir / "val.conll", TinyJob::conll(12, 2));
    t.settings.train_files = {(t.dir / "train.conll").string()};

    t.settings.validation_files = {(t.dir / "val.conll").string()};
  }
  t.settings.device = "cuda:0";
  t.settings.memory_limit = "4GiB";
  t.settings.dropout = 0.1;
}

struct Trained {
  TrainOutcome outcome;
  nlohmann::json record;
};

Trained run(const TrainSettings& s) {
  Trained r;
  TrainCallbacks callbacks;
  callbacks.record = [&](const std::string& json) { r.record = nlohmann::json::parse(json); };
  r.outcome = train(s, callbacks);
  return r;
}

TEST(TrainCuda, EveryTokenHomeIsTheSameRun) {
  BRIM_NEEDS_GPU();
  for (const bool tags : {false, true}) {
    TinyJob t(tags ? "bert_token" : "roberta_sequence", 96);
    on_card(t, tags);
    for (const char* way : {"auto", "resident", "staged", "streamed"}) {
      TrainSettings s = t.to(way);
      s.token_set = way;
      const Trained r = run(s);
      const bool resident = std::string(way) == "auto" || std::string(way) == "resident";
      EXPECT_EQ(r.record["data"]["token_set"], std::string(way) == "auto" ? "resident" : way);
      const auto& bytes = r.record["plan"]["bytes"];
      ASSERT_EQ(bytes.contains("token set"), resident) << way;
      int64_t sum = 0;
      for (const auto& [tag, value] : bytes.items()) sum += value.get<int64_t>();
      EXPECT_EQ(sum, r.outcome.planned_bytes) << way;
      EXPECT_TRUE(t.weights("auto") == t.weights(way)) << way << (tags ? ", tags" : "");
    }
  }
}

TEST(TrainCuda, WithoutRoomTheSetIsStagedAndTheRunTheSame) {
  BRIM_NEEDS_GPU();
  TinyJob t("bert_sequence", 96);
  on_card(t, false);
  t.settings.save_strategy = "steps";
  t.settings.save_steps = 4;
  t.settings.save_total_limit = 10;
  const Trained whole = run(t.settings);
  ASSERT_EQ(whole.record["data"]["token_set"], "resident");
  // Started with room, continued where the limit is the plan alone.
  TrainSettings parts = t.to("parts");
  std::atomic<bool> stop{true};
  TrainCallbacks callbacks;
  callbacks.stop = &stop;
  ASSERT_TRUE(train(parts, callbacks).interrupted);
  const int64_t planned = whole.outcome.planned_bytes - whole.record["plan"]["bytes"]["token set"].get<int64_t>();
  parts.memory_limit = std::to_string(planned);
  parts.resume_from_checkpoint = "last";
  const Trained rest = run(parts);
  EXPECT_EQ(rest.record["data"]["token_set"], "staged");
  EXPECT_LE(rest.outcome.planned_bytes, planned);
  EXPECT_TRUE(t.weights() == t.weights("parts"));
}

TEST(TrainCuda, ATraceHoldsTheCardsSpansAndChangesNoBit) {
  BRIM_NEEDS_GPU();
  TinyJob t("bert_sequence", 96);
  on_card(t, false);
  t.run();
  for (const char* home : {"resident", "staged"}) {
    TrainSettings s = t.to(home);
    s.token_set = home;
    Timeline::clear();
    Timeline::enable(true);
    int64_t began_ns = 0, ended_ns = 0;
    TrainCallbacks callbacks;
    callbacks.begins = [&](const TrainJob&) { began_ns = now_ns(); };
    callbacks.ends = [&](const TrainJob&, const TrainOutcome&) { ended_ns = now_ns(); };
    const TrainOutcome o = train(s, callbacks);
    Timeline::enable(false);
    const auto events = Timeline::events();
    Timeline::clear();
    EXPECT_TRUE(t.weights() == t.weights(home));
    constexpr int64_t kWake = 1'000'000;  // ns: the host reads its clock after the card's mark has woken it
    std::map<Zone, int64_t> count, end;
    for (const ZoneEvent& e : events) {
      ++count[e.zone];
      if (e.zone != Zone::device_busy && e.zone != Zone::copy) continue;
      EXPECT_GE(e.begin_ns, std::max(began_ns, end[e.zone]) - kWake) << home;
      EXPECT_GE(e.end_ns, e.begin_ns);
      EXPECT_LE(e.end_ns, ended_ns + kWake) << home;
      end[e.zone] = e.end_ns;
    }
    EXPECT_EQ(count[Zone::copy], o.micro_batches) << home;
    EXPECT_EQ(count[Zone::stage], o.micro_batches) << home;
    EXPECT_GE(count[Zone::device_busy], o.micro_batches + o.own_steps + count[Zone::evaluate]) << home;
    EXPECT_EQ(count[Zone::evaluate], 2) << home;
  }
}

}  // namespace
}  // namespace brim
