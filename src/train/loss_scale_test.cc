// SPDX-License-Identifier: Apache-2.0
#include "train/loss_scale.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "train/micro_batch.h"

namespace brim::train {
namespace {

TEST(LossScale, FailsOnlyIfAScaleOfOneOverflows) {
  TrainProgress p;
  p.loss_scale = kFirstLossScale;
  double tried = kFirstLossScale;
  while (p.loss_scale > 1) {
    tried /= 2;
    ASSERT_FALSE(adjust_loss_scale(p, INFINITY));
    ASSERT_EQ(p.loss_scale, tried);
  }
  EXPECT_EQ(p.skipped_steps, 16);
  EXPECT_TRUE(adjust_loss_scale(p, 3.0));  // succeeds at scale 1
  EXPECT_EQ(p.loss_scale, 1);
  EXPECT_THROW(adjust_loss_scale(p, NAN), Error);
}

TEST(LossScale, DoublesAfterManyGoodStepsUpToALimit) {
  TrainProgress p;
  p.loss_scale = 1 << 23;
  for (int i = 0; i < 1999; ++i) adjust_loss_scale(p, 1.0);
  EXPECT_EQ(p.loss_scale, 1 << 23);
  adjust_loss_scale(p, 1.0);
  EXPECT_EQ(p.loss_scale, 1 << 24);
  for (int i = 0; i < 2000; ++i) adjust_loss_scale(p, 1.0);
  EXPECT_EQ(p.loss_scale, 1 << 24);
  adjust_loss_scale(p, INFINITY);
  EXPECT_EQ(p.loss_scale, 1 << 23);
  EXPECT_EQ(p.good_steps, 0);
}

TEST(StepScales, HeadWithoutTargetsHasZeroScale) {
  model::ModelShape both;
  both.sequence_classes = 3;
  both.token_classes = 5;
  MicroBatch m;
  m.step_weight = 16;
  m.step_tagged = 200;
  EXPECT_EQ(step_scales(m, both, 8).sequence, 0.5f);
  EXPECT_EQ(step_scales(m, both, 8).token, 0.04f);
  EXPECT_EQ(step_scales(m, both, 8).unit, 0.5f);
  m.step_weight = 0;  // only rows with tags, or classes of weight 0
  EXPECT_EQ(step_scales(m, both, 8).sequence, 0);
  EXPECT_EQ(step_scales(m, both, 8).unit, 0.04f);
  m.step_tagged = 0;
  EXPECT_EQ(step_scales(m, both, 8).token, 0);
  EXPECT_EQ(step_scales(m, both, 8).unit, 8);
  model::ModelShape tags;
  tags.token_classes = 5;
  m.step_weight = 1;
  m.step_tagged = 200;
  EXPECT_EQ(step_scales(m, tags, 1).sequence, 0);
  EXPECT_EQ(step_scales(m, tags, 1).unit, 0.005f);
}

}  // namespace
}  // namespace brim::train
