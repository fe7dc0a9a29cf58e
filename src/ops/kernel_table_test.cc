// SPDX-License-Identifier: Apache-2.0
#include "ops/kernel_table.h"

#include <gtest/gtest.h>

namespace brim::ops {
namespace {

void expect_full(const KernelTable& table, const char* backend) {
#define BRIM_OP_FULL(op, Args, zone) EXPECT_NE(table.op, nullptr) << #op << " is missing on " << backend;
  BRIM_OPS(BRIM_OP_FULL)
#undef BRIM_OP_FULL
}

TEST(KernelTable, HasNoEmptyEntry) {
  expect_full(cpu_kernels(), "cpu");
  if (cuda_kernels() != nullptr) expect_full(*cuda_kernels(), "cuda");
}

TEST(KernelTable, ThrowsForAStreamWithoutKernels) {
  class Sink final : public device::UseSink {
    void on_use(const tensor::TensorView&) override {}
    void on_op(const char*, double, double) override {}
  } sink;
  const device::NullStream null(&sink, device::DeviceKind::cpu, device::Isa::generic);
  EXPECT_THROW((void)kernels_of(null), Error);
}

}  // namespace
}  // namespace brim::ops
