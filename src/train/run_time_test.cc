// SPDX-License-Identifier: Apache-2.0
#include "train/run_time.h"

#include <gtest/gtest.h>

namespace brim::train {
namespace {

constexpr Cadence kByEpoch{Strategy::epoch, Strategy::epoch, 500, 500};

monitor::OtherProcesses::Load quiet() {
  monitor::OtherProcesses::Load load;
  load.machine_cores = load.usable_cores = 2;
  return load;
}

TEST(RunTime, SplitsTheTotalTime) {
  RunTime t;
  t.steps = 6.5;
  t.evaluation = 4;
  t.saving = 2;
  EXPECT_EQ(to_text(t), "12 s: steps 6.5 s (52 %), evaluation 4.0 s (32 %), saving 2.0 s (16 %)");
}

TEST(RunTime, BottleneckIsTheLargestPart) {
  RunTime t;
  t.steps = t.busy = 2;
  t.evaluation = 3.5;
  t.saving = 1;
  EXPECT_NE(limited_by(t, 2, quiet(), kByEpoch).find("evaluation (3.5 s of 6.5 s)"), std::string::npos);
  t.saving = 4;
  EXPECT_NE(limited_by(t, 2, quiet(), kByEpoch).find("saving (4.0 s of 9.5 s)"), std::string::npos);
}

TEST(RunTime, SuggestsSettingsThatApplyToTheStrategy) {
  RunTime t;
  t.saving = 4;
  EXPECT_EQ(limited_by(t, 2, quiet(), kByEpoch),
            "saving (4.0 s of 4.0 s); set `save_strategy=steps` and a large `save_steps`");
  EXPECT_EQ(limited_by(t, 2, quiet(), {Strategy::no, Strategy::steps}),
            "saving (4.0 s of 4.0 s); increase `save_steps`");
  EXPECT_EQ(limited_by(t, 2, quiet(), {}), "saving (4.0 s of 4.0 s)");
  t.evaluation = 5;
  EXPECT_EQ(limited_by(t, 2, quiet(), kByEpoch),
            "evaluation (5.0 s of 9.0 s); set `eval_strategy=steps` and a large `eval_steps`");
  EXPECT_EQ(limited_by(t, 2, quiet(), {Strategy::steps}), "evaluation (5.0 s of 9.0 s); increase `eval_steps`");
}

TEST(RunTime, NamesTeachersAndOtherProcesses) {
  RunTime t;
  t.steps = 5;
  t.busy = 4.9;
  t.teacher = 15;
  EXPECT_EQ(limited_by(t, 2, quiet(), kByEpoch), "teachers (15 s of 20 s); their scores are cached for the next run");
  EXPECT_EQ(to_text(t), "20 s: teachers 15 s (75 %), steps 5.0 s (25 %), evaluation 0.0 s (0 %), saving 0.0 s (0 %)");
  t.teacher = 2.3;
  monitor::OtherProcesses::Load load = quiet();
  load.cores = 1.2;
  load.by_name = {{"cc1plus", 1.1}};
  EXPECT_EQ(limited_by(t, 2, load, kByEpoch), "other processes used 1.2 of 2 cores (cc1plus 1.1)");
  EXPECT_EQ(limited_by(t, 0, load, kByEpoch).find("other processes"), std::string::npos)
      << "other processes matter less on a GPU";
}

TEST(RunTime, ReportsUnusedCoresGapsAndPacking) {
  RunTime t;
  t.steps = 5;
  t.busy = 4.9;
  EXPECT_EQ(limited_by(t, 1, quiet(), kByEpoch), "compute with 1 of 2 cores (`threads`)");
  EXPECT_EQ(limited_by(t, 2, quiet(), kByEpoch), "compute (all cores busy during steps)");
  t.busy = 3;
  EXPECT_EQ(limited_by(t, 2, quiet(), kByEpoch), "gaps between steps (2.0 s idle)");
  EXPECT_NE(limited_by(t, 0, quiet(), kByEpoch).find("hides launch"), std::string::npos);
  t.waited = 1.5;
  EXPECT_EQ(limited_by(t, 0, quiet(), kByEpoch), "packing: micro-batches were late (1.5 s)");
}

}  // namespace
}  // namespace brim::train
