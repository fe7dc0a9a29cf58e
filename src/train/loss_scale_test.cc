// SPDX-License-Identifier: Apache-2.0
#include "train/loss_scale.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace brim::train {
namespace {

TEST(LossScale, GivesUpOnlyWhenAScaleOfOneOverflows) {
  TrainProgress p;
  p.loss_scale = kFirstLossScale;
  double tried = kFirstLossScale;
  while (p.loss_scale > 1) {
    tried /= 2;
    ASSERT_FALSE(adjust_loss_scale(p, INFINITY));
    ASSERT_EQ(p.loss_scale, tried);
  }
  EXPECT_EQ(p.skipped_steps, 16);
  EXPECT_TRUE(adjust_loss_scale(p, 3.0));  // with 1 it works
  EXPECT_EQ(p.loss_scale, 1);
  EXPECT_THROW(adjust_loss_scale(p, NAN), Error);
}

TEST(LossScale, DoublesAfterManyGoodStepsUpToABound) {
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

}  // namespace
}  // namespace brim::train
