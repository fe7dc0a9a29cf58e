// SPDX-License-Identifier: Apache-2.0
// First line of a test that needs a GPU: skips visibly where there is none, fails where BRIM_REQUIRE_GPU=1 asked for one.
#pragma once
#include <gtest/gtest.h>

#include "base/env.h"
#include "device/device.h"

#define BRIM_NEEDS_GPU()                                                              \
  if (const auto brim_no_gpu = ::brim::cuda_unavailable_reason(0)) {                  \
    if (::brim::env_flag("BRIM_REQUIRE_GPU")) FAIL() << "BRIM_REQUIRE_GPU=1: " << *brim_no_gpu; \
    GTEST_SKIP() << *brim_no_gpu;                                                     \
  }
