// SPDX-License-Identifier: Apache-2.0
#include "plan/card_measure.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/test_files.h"
#include "device/testing.h"

namespace brim::plan {

using ops::Precision;

namespace {

class CardMeasure : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("BRIM_CACHE", folder_.path().c_str(), 1); }
  void TearDown() override { ::unsetenv("BRIM_CACHE"); }

  // A script used as the child.
  std::vector<std::string> stand_in(const std::string& body) {
    const auto path = folder_ / "child";
    put_file(path, "#!/bin/sh\n" + body + "\n");
    ::chmod(path.c_str(), 0755);
    return {path.string(), "measure-card", "cuda:0", "bf16", "1000"};
  }
  std::optional<CardMeasurement> run(const std::string& body, double timeout_s = 20) {
    logged_.clear();
    const LogSink before = set_log_sink([&](LogLevel, std::string_view line) { logged_ += std::string(line) + "\n"; });
    const auto measured = run_measurement(
        stand_in(body), [&] { return free_[std::min<size_t>(queries_++, 1)]; }, timeout_s);
    set_log_sink(before);
    return measured;
  }

  const TempDir folder_;
  const CardKey key_{"NVIDIA H200", "580.159.04", "abc-1", 13000, Precision::bf16};
  const CardMeasurement measured_{700, 4e12, 50e9, int64_t{540} << 20, false};
  std::vector<int64_t> free_ = {int64_t{8} << 30, int64_t{7} << 30};  // before the start, and while the child runs
  size_t queries_ = 0;
  std::string logged_;
};

TEST_F(CardMeasure, IsCachedByGpuDriverBuildAndPrecision) {
  EXPECT_FALSE(cached_measurement(key_));
  store_measurement(key_, measured_);
  EXPECT_EQ(cached_measurement(key_), measured_);
  for (const auto& change : std::vector<std::function<void(CardKey&)>>{
           [](CardKey& k) { k.card = "NVIDIA H100"; }, [](CardKey& k) { k.driver = "570.1"; },
           [](CardKey& k) { k.build = "abc-2"; }, [](CardKey& k) { k.runtime = 12080; },
           [](CardKey& k) { k.precision = Precision::fp8; }}) {
    CardKey other = key_;
    change(other);
    EXPECT_FALSE(cached_measurement(other)) << measurement_path(other);
  }
}

TEST_F(CardMeasure, IgnoresAnInvalidOrOldFile) {
  store_measurement(key_, measured_);
  const std::string good = get_file(measurement_path(key_));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    put_file(measurement_path(key_), text.replace(at, from.size(), to));
    return cached_measurement(key_);
  };
  EXPECT_TRUE(with("580", "580"));
  EXPECT_FALSE(with("\"version\": 1", "\"version\": 0"));
  EXPECT_FALSE(with("\"tflops\"", "\"tflop\""));
  EXPECT_FALSE(with("\"context_bytes\": ", "\"context_bytes\": -"));
  EXPECT_FALSE(with("700", "\"many\""));
  put_file(measurement_path(key_), good.substr(0, good.size() / 2));
  EXPECT_FALSE(cached_measurement(key_));
}

TEST_F(CardMeasure, ParentParsesTheChildsLine) {
  const std::string line = measurement_line(measured_, int64_t{32} << 20, int64_t{572} << 20);
  const auto m = run("echo '" + line + "'; read end");
  ASSERT_TRUE(m) << logged_;
  EXPECT_EQ(m->tflops, 700);
  EXPECT_EQ(m->bandwidth, 4e12);
  EXPECT_EQ(m->context_bytes, int64_t{548} << 20) << "what NVML counts less what was allocated, and a margin of 8 MiB";
  EXPECT_FALSE(m->by_free_memory);
  EXPECT_EQ(logged_, "");
}

TEST_F(CardMeasure, UsesFreeMemoryWithoutNvml) {
  const std::string line = measurement_line(measured_, int64_t{32} << 20, std::nullopt);
  // The child is still running at the second free-memory query: it exits only at the end of its input.
  const auto m = run("echo '" + line + "'; read end; : > " + (folder_ / "ended").string());
  ASSERT_TRUE(m) << logged_;
  EXPECT_TRUE(m->by_free_memory);
  EXPECT_EQ(m->context_bytes, int64_t{1024 - 32 + 8} << 20);
  EXPECT_EQ(queries_, 2u);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "ended")) << "the parent waited for the child to end";
}

TEST_F(CardMeasure, FallsBackToTheDataSheetIfTheChildFails) {
  const int64_t begun = now_ns();
  EXPECT_FALSE(run("exit 6"));
  EXPECT_NE(logged_.find("without output; planning with data-sheet rates"), std::string::npos) << logged_;
  EXPECT_FALSE(run("echo Segmentation fault; read end"));
  EXPECT_NE(logged_.find("Segmentation fault"), std::string::npos) << logged_;
  EXPECT_FALSE(run("echo '{\"version\":9}'; read end"));
  EXPECT_FALSE(run("exec sleep 60", 0.2));
  EXPECT_NE(logged_.find("no result after 0.2 s"), std::string::npos) << logged_;
  // A measurement without any context is rejected.
  EXPECT_FALSE(run("echo '" + measurement_line(measured_, 0, int64_t{0}) + "'; read end"));
  EXPECT_LT(seconds_since(begun), 50) << "the parent did not wait for the sleeping child";
  EXPECT_FALSE(run_measurement({"/nothing/here"}, [] { return int64_t{0}; }));
}

TEST_F(CardMeasure, ReplacesOnlyTheRateOfItsPrecision) {
  DeviceProfile p = card_profile("rtx3070");
  const DeviceProfile sheet = p;
  EXPECT_STREQ(p.mfu_note(), " of the data sheet");
  CardMeasurement context_only;
  context_only.context_bytes = 99 << 20;
  apply_measurement(context_only, Precision::bf16, p);
  EXPECT_TRUE(p.context_measured && !p.measured);
  EXPECT_EQ(p.context_bytes, 99 << 20);
  apply_measurement(measured_, Precision::bf16, p);
  EXPECT_EQ(p.rate(Precision::bf16), 700e12);
  EXPECT_EQ(p.rate(Precision::fp32), sheet.rate(Precision::fp32));
  EXPECT_EQ(p.bandwidth, 4e12);
  EXPECT_STREQ(p.mfu_note(), "");
  EXPECT_EQ(profile_from_json(to_json(p)), p);
}

TEST_F(CardMeasure, TableProfilesAreNotMarkedAsMeasured) {
  for (const DeviceProfile& card : known_cards()) EXPECT_FALSE(card.measured || card.context_measured) << card.name;
}

// The case of a larger context is covered by the GPU tests, because the cache key needs the driver.
TEST_F(CardMeasure, FindsNoLargerContextWithoutAGpuOrNvml) {
  device::StandInCard card;
  EXPECT_FALSE(found_larger_context(card, Precision::bf16, int64_t{500} << 20, int64_t{500} << 20, "replanning"));
  EXPECT_FALSE(found_larger_context(card, Precision::bf16, int64_t{500} << 20, std::nullopt, "replanning"));
  EXPECT_FALSE(found_larger_context(*device::open_cpu_device(1), Precision::fp32, 0, int64_t{1} << 30, "replanning"));
}

// PyTorch in the same process may hold twenty times the planned context.
TEST_F(CardMeasure, IgnoresProcessMemoryInALibrary) {
  device::StandInCard card;
  set_library(folder_ / "lib" / "libbrim.so.0.1");
  EXPECT_TRUE(shares_process());
  EXPECT_FALSE(found_larger_context(card, Precision::bf16, int64_t{500} << 20, int64_t{20} << 30, "replanning"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path())) << "and nothing is cached";
  set_library({});
  EXPECT_FALSE(shares_process());
}

}  // namespace
}  // namespace brim::plan
