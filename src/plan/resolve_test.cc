// SPDX-License-Identifier: Apache-2.0
// Parsing of memory limits and precisions, and their resolution on a device.
#include "plan/resolve.h"

#include <gtest/gtest.h>

#include "base/settings.h"
#include "plan/plan_testing.h"

namespace brim::plan {

using model::ModelShape;
using ops::Precision;

namespace {

int64_t resolve_limit(std::string_view text, device::MemoryInfo memory, const std::string& device = "the device") {
  return read_setting("memory_limit", text, MemoryLimit::read).on(memory, device);
}

TEST(MemoryLimit, ParsesUserInput) {
  const device::MemoryInfo card{int64_t{5} << 30, int64_t{6} << 30};
  EXPECT_EQ(resolve_limit("4GiB", card), int64_t{4} << 30);
  EXPECT_EQ(resolve_limit("6GiB", card), int64_t{6} << 30);
  EXPECT_EQ(resolve_limit("50%", card), int64_t{3} << 30);
  EXPECT_EQ(resolve_limit("100%", card), int64_t{6} << 30);
  EXPECT_LT(resolve_limit("auto", card), card.free_bytes);
  EXPECT_GT(resolve_limit("auto", card), card.free_bytes * 9 / 10);
  for (const char* bad : {"0", "0GiB", "-1", "-2GiB", "101%", "0%", "-5%", "nan%", "%", "", "lots", "6 apples"})
    message_of([&] { resolve_limit(bad, card); }, ErrorCode::usage);
  EXPECT_NE(message_of([&] { resolve_limit("0.98", card); }, ErrorCode::usage).find("did you mean 98%?"),
            std::string::npos);
  EXPECT_NE(message_of([&] { resolve_limit("4", card); }, ErrorCode::usage).find("did you mean 4GiB?"),
            std::string::npos);
  EXPECT_EQ(resolve_limit("4096B", card), 4096);
  const std::string over = message_of([&] { resolve_limit("8GiB", card, "rtx3050-6gb"); }, ErrorCode::usage);
  EXPECT_NE(over.find("`memory_limit=8GiB`: rtx3050-6gb has 6.00 GiB; set `memory_limit=6135MiB` or less"),
            std::string::npos)
      << over;
  const LimitOrigin file{"run.yaml:7", "max_memory_gb", "12.0"};
  EXPECT_EQ(message_of([&] { MemoryLimit::read("12.0GB").on(card, "rtx3050-6gb", file); }, ErrorCode::usage),
            "run.yaml:7: max_memory_gb: 12.0: rtx3050-6gb has 6.00 GiB; set max_memory_gb: 6.44 or less");
}

TEST(MemoryLimit, AutoLeavesRequestedMemoryFree) {
  const device::MemoryInfo card{int64_t{20} << 30, int64_t{24} << 30};
  const auto left = [&](const char* leave, const char* limit = "auto") {
    MemoryLimit both;
    read_setting("leave_free", leave, [&](std::string_view text) {
      both.set_leave_free(text);
      return true;
    });
    both.set_limit(limit);  // set later, without changing it
    return both.on(card, "rtx3090");
  };
  EXPECT_EQ(left("8GiB"), int64_t{12} << 30) << "of what is free, not of all";
  EXPECT_EQ(left("500MiB"), MemoryLimit().on(card)) << "less than the reserve that auto leaves anyway";
  EXPECT_EQ(left("0"), MemoryLimit().on(card));
  EXPECT_EQ(left("8GiB", "16GiB"), int64_t{16} << 30) << "an explicit limit takes precedence";
  EXPECT_EQ(left("8GiB", "50%"), int64_t{12} << 30);
  MemoryLimit limit;
  limit.set_limit("16GiB");
  limit.set_leave_free("8GiB");
  EXPECT_EQ(limit.on(card), int64_t{16} << 30);
  const std::string over = message_of([&] { left("32GiB"); }, ErrorCode::usage);
  EXPECT_NE(over.find("`leave_free=32GiB`: rtx3090 has 24.0 GiB"), std::string::npos) << over;
  const std::string all = message_of([&] { left("22GiB"); }, ErrorCode::does_not_fit);
  EXPECT_NE(all.find("`leave_free=22GiB`: only 20.0 GiB free on rtx3090"), std::string::npos) << all;
  for (const char* bad : {"", "-1GiB", "some", "10%", "8"}) message_of([&] { left(bad); }, ErrorCode::usage);
}

TEST(MemoryLimit, ErrorNamesTheFileAndItsKey) {
  PlanRequest r = request(roberta_base(), Task::train, card_profile("rtx3070"));
  r.limit_bytes = int64_t{100} << 20;
  r.limit_origin = {"run.yaml:7", "max_memory_gb", "0.1"};
  const std::string message = message_of([&] { solve(r); }, ErrorCode::does_not_fit);
  EXPECT_EQ(message.find("run.yaml:7: max_memory_gb: 0.1: does not fit in 100 MiB on rtx3070."), 0u) << message;
  const size_t remedy = message.find("(max_memory_gb: ");
  ASSERT_NE(remedy, std::string::npos) << message;
  r.limit_bytes = static_cast<int64_t>(std::stod(message.substr(remedy + 16)) * 1e9);
  solve(r);  // as suggested
}

TEST(Precision, RoundTripsAsText) {
  for (const char* text : {"auto", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"})
    EXPECT_EQ(precision_text(read_precision(text)), text);
  EXPECT_EQ(read_precision("BF16").precision, Precision::bf16);
  EXPECT_THROW(read_precision("int3"), BadValue);
}

TEST(Precision, CardWithoutBf16TrainsInFp16) {
  const auto chosen = [](const char* asked, bool by_switch, const char* device, Task task) {
    return resolve_precision({read_precision(asked).precision, by_switch}, card_profile(device), task);
  };
  for (const Task task : {Task::score, Task::train}) {
    EXPECT_EQ(chosen("auto", false, "rtx3060", task).precision, Precision::bf16);
    EXPECT_EQ(chosen("auto", false, "t4", task).precision, Precision::fp16);
  }
  EXPECT_NE(chosen("auto", false, "t4", Task::train)
                .reason.find("t4 does not support bf16; small gradients need a loss scale"),
            std::string::npos);
  EXPECT_EQ(chosen("auto", false, "cpu", Task::train).precision, Precision::fp32);
  // A file written for another card: a switch may be ignored, an explicit name may not.
  EXPECT_EQ(chosen("bf16", true, "t4", Task::train).precision, Precision::fp16);
  EXPECT_EQ(chosen("bf16", true, "t4", Task::train).reason, "t4 does not support bf16");
  EXPECT_EQ(chosen("fp16", true, "cpu", Task::train).precision, Precision::fp32);
  EXPECT_THROW(chosen("bf16", false, "t4", Task::train), Error);
  EXPECT_THROW(chosen("int8", false, "cpu", Task::train), Error);
  EXPECT_EQ(chosen("auto", true, "cpu", Task::train).reason, "mixed precision applies to GPUs only");
  EXPECT_EQ(chosen("auto", true, "rtx3060", Task::train).precision, Precision::bf16);
}

TEST(Precision, Int8ScoresOnEveryCardWithKernelsOnRequestOnly) {
  for (const DeviceProfile& card : known_cards()) {
    if (card.compute_capability < 75) continue;
    EXPECT_EQ(resolve_precision({Precision::int8}, card, Task::score).precision, Precision::int8) << card.name;
    EXPECT_NE(resolve_precision({}, card, Task::score).precision, Precision::int8) << card.name;
    EXPECT_THROW(resolve_precision({Precision::int8}, card, Task::train), Error) << card.name;
  }
  EXPECT_THROW(resolve_precision({Precision::int8}, card_profile("v100"), Task::score), Error);
}

TEST(Precision, Fp8TrainsOnSupportedCardsAndWidths) {
  const auto chosen = [](const char* device, const ModelShape& model) {
    return train_precision({Precision::fp8}, card_profile(device), model);
  };
  for (const char* device : {"h200", "l4"}) {
    EXPECT_EQ(chosen(device, roberta_base()).precision, Precision::fp8);
    EXPECT_EQ(chosen(device, roberta_base()).reason, "all 48 encoder matmuls in fp8, the rest in bf16");
  }
  for (const char* device : {"a100-80gb", "t4", "cpu"}) {
    const std::string message = message_of([&] { chosen(device, roberta_base()); }, ErrorCode::usage);
    EXPECT_NE(message.find("training in fp8 requires sm_89 or newer"), std::string::npos) << message;
  }
  ModelShape odd = minilm();
  odd.ffn = 1000;
  EXPECT_EQ(chosen("h200", odd).precision, Precision::fp8);
  EXPECT_EQ(chosen("h200", odd).reason,
            "12 of 24 encoder matmuls in fp8; in bf16 because fp8 needs multiples of 16: 6 of 384 x 1000, 6 of "
            "1000 x 384");
  odd.hidden = 376;
  odd.heads = 8;
  EXPECT_EQ(chosen("h200", odd).precision, Precision::bf16);
  EXPECT_NE(chosen("h200", odd).reason.find("hidden size 376 uses bf16"), std::string::npos);
  EXPECT_EQ(train_precision({}, card_profile("h200"), odd).precision, Precision::bf16)
      << "fp8 is never selected automatically";
}

}  // namespace
}  // namespace brim::plan
