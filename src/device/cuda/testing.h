// SPDX-License-Identifier: Apache-2.0
// First line of a test that needs a GPU: skips without one, or fails if BRIM_REQUIRE_GPU=1.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>

#include "base/env.h"
#include "base/error.h"
#include "device/device.h"

#define BRIM_NEEDS_GPU()                                                                        \
  if (const auto brim_no_gpu = ::brim::device::cuda_unavailable_reason(0)) {                    \
    if (::brim::env_flag("BRIM_REQUIRE_GPU")) FAIL() << "BRIM_REQUIRE_GPU=1: " << *brim_no_gpu; \
    GTEST_SKIP() << *brim_no_gpu;                                                               \
  }

namespace brim::device {

// For death tests of a lost device: prints the program's error message and exits with its status.
template <class Fn>
[[noreturn]] void exit_as_the_program_would(Fn&& run) {
  try {
    run();
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    std::fflush(stderr);
    ::_exit(exit_code(e.code()));
  }
  ::_exit(0);
}

}  // namespace brim::device
