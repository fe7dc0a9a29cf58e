// SPDX-License-Identifier: Apache-2.0
#include "train/run_time.h"

#include <gtest/gtest.h>

namespace brim::train {
namespace {

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
  EXPECT_NE(limited_by(t, 2, quiet()).find("evaluation (3.5 s of 6.5 s)"), std::string::npos);
  t.saving = 4;
  EXPECT_NE(limited_by(t, 2, quiet()).find("saving (4.0 s of 9.5 s)"), std::string::npos);
}

TEST(RunTime, NamesTeachersAndOtherProcesses) {
  RunTime t;
  t.steps = 5;
  t.busy = 4.9;
  t.teacher = 15;
  EXPECT_EQ(limited_by(t, 2, quiet()), "teachers (15 s of 20 s); their scores are cached for the next run");
  EXPECT_EQ(to_text(t), "20 s: teachers 15 s (75 %), steps 5.0 s (25 %), evaluation 0.0 s (0 %), saving 0.0 s (0 %)");
  t.teacher = 2.3;
  monitor::OtherProcesses::Load load = quiet();
  load.cores = 1.2;
  load.by_name = {{"cc1plus", 1.1}};
  EXPECT_EQ(limited_by(t, 2, load), "other processes used 1.2 of 2 cores (cc1plus 1.1)");
  EXPECT_EQ(limited_by(t, 0, load).find("other processes"), std::string::npos)
      << "other processes matter less on a GPU";
}

TEST(RunTime, ReportsUnusedCoresGapsAndPacking) {
  RunTime t;
  t.steps = 5;
  t.busy = 4.9;
  EXPECT_EQ(limited_by(t, 1, quiet()), "compute with 1 of 2 cores (`threads`)");
  EXPECT_EQ(limited_by(t, 2, quiet()), "compute (all cores busy during steps)");
  t.busy = 3;
  EXPECT_EQ(limited_by(t, 2, quiet()), "gaps between steps (2.0 s idle)");
  EXPECT_NE(limited_by(t, 0, quiet()).find("hides launch"), std::string::npos);
  t.waited = 1.5;
  EXPECT_EQ(limited_by(t, 0, quiet()), "packing: micro-batches were late (1.5 s)");
}

}  // namespace
}  // namespace brim::train
