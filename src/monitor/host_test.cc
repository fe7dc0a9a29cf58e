// SPDX-License-Identifier: Apache-2.0
#include "monitor/host.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/test_files.h"

namespace brim::monitor {
namespace {

class HostTest : public ::testing::Test {
 protected:
  void put(const char* name, const std::string& text) const { std::ofstream(proc_ / name) << text; }
  const TempDir temp_;
  const std::filesystem::path proc_ = temp_.path();
};

TEST_F(HostTest, RatesAreBetweenTwoSamples) {
  put("cpuinfo", "processor\t: 0\nmodel name\t: Fast One\nprocessor\t: 1\nmodel name\t: Fast One\n");
  put("meminfo", "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 600 kB\nSwapTotal: 100 kB\nSwapFree: 40 kB\n");
  put("loadavg", "1.25 1 1 1/2 3\n");
  put("stat", "cpu  100 0 100 800 0 0 0 0 50 0\ncpu0 50 0 50 400 0 0 0 0\ncpu1 50 0 50 400 0 0 0 0\nintr 1\n");
  put("diskstats",
      "8 0 sda 1 0 100 0 1 0 200 0 0 0 0\n8 1 sda1 1 0 100 0 1 0 200 0 0 0 0\n259 0 nvme0n1 1 0 10 0 1 0 20 0\n259 1 "
      "nvme0n1p1 1 0 10 0 1 0 20 0\n7 0 loop0 1 0 9 0 1 0 9 0\n");
  HostSampler sampler(".", proc_);
  const HostSample first = sampler.sample();
  EXPECT_EQ(first.cpu_name, "Fast One");
  EXPECT_FALSE(first.cpu || first.self_cpu || first.disk_read_bytes_per_s);
  EXPECT_TRUE(first.core.empty());
  EXPECT_EQ(first.memory_total_bytes, 1000 * 1024);
  EXPECT_EQ(first.memory_available_bytes, 600 * 1024);
  EXPECT_EQ(first.swap_used_bytes, 60 * 1024);
  EXPECT_DOUBLE_EQ(*first.load_1m, 1.25);
  EXPECT_GT(*first.disk_free_bytes, 0);
  EXPECT_GT(first.self_rss_bytes, 0);
  EXPECT_GT(first.cores, 0);
  // Core 0 was busy for 60 of 100 ticks, core 1 for none; iowait is not busy time.
  put("stat", "cpu  130 0 130 920 20 0 0 0 50 0\ncpu0 80 0 80 420 20 0 0 0\ncpu1 50 0 50 500 0 0 0 0\n");
  put("diskstats", "8 0 sda 1 0 300 0 1 0 200 0 0 0 0\n259 0 nvme0n1 1 0 10 0 1 0 20 0\n");
  const HostSample second = sampler.sample();
  EXPECT_DOUBLE_EQ(*second.cpu, 0.3);
  ASSERT_EQ(second.core.size(), 2U);
  EXPECT_DOUBLE_EQ(second.core[0], 0.6);
  EXPECT_DOUBLE_EQ(second.core[1], 0.0);
  EXPECT_GT(*second.disk_read_bytes_per_s, 0);
  EXPECT_DOUBLE_EQ(*second.disk_write_bytes_per_s, 0);
  EXPECT_TRUE(second.self_cpu);
}

TEST_F(HostTest, MissingProcFilesAreNotAnError) {
  HostSampler sampler("/no/such/place", proc_ / "none");
  sampler.sample();
  const HostSample s = sampler.sample();
  EXPECT_FALSE(s.cpu || s.memory_total_bytes || s.disk_free_bytes || s.disk_read_bytes_per_s || s.load_1m);
}

TEST_F(HostTest, NamesOtherProcessesWithTheirShare) {
  const auto process = [&](int id, const char* name, int ticks) {
    std::filesystem::create_directories(proc_ / std::to_string(id));
    std::ofstream(proc_ / std::to_string(id) / "stat")
        << id << " (" << name << ") S 1 1 1 0 -1 0 0 0 0 0 " << ticks << " 0 0 0 20 0 1 0";
  };
  put("stat", "cpu  100 0 0 800 0 0 0 0\ncpu0 50 0 0 400 0 0 0 0\ncpu1 50 0 0 400 0 0 0 0\n");
  process(4000001, "a (b) c", 10);
  process(4000002, "idle", 500);
  OtherProcesses others(proc_);
  put("stat", "cpu  1000100 0 0 800 0 0 0 0\ncpu0 500050 0 0 400 0 0 0 0\ncpu1 500050 0 0 400 0 0 0 0\n");
  process(4000001, "a (b) c", 1'000'010);
  process(4000003, "new", 2'000'000);
  const OtherProcesses::Load load = others.load();
  EXPECT_EQ(load.machine_cores, std::max(2, load.usable_cores));
  ASSERT_EQ(load.by_name.size(), 2U);
  EXPECT_EQ(load.by_name[0].first, "new");
  EXPECT_EQ(load.by_name[1].first, "a (b) c");
  EXPECT_NE(load.text().find("(new "), std::string::npos) << load.text();
}

TEST_F(HostTest, OthersDisturbIfTheyTakeUsableCores) {
  OtherProcesses::Load load;
  load.machine_cores = 16;
  load.usable_cores = 2;
  load.cores = 12;
  EXPECT_FALSE(load.disturbs()) << "only usable cores count";
  load.cores = 15;
  EXPECT_TRUE(load.disturbs());
  load.machine_cores = 2;
  load.cores = 0.1;
  EXPECT_FALSE(load.disturbs());
  load.by_name = {{"cc1plus", 0.94}};
  load.cores = 1.26;
  EXPECT_TRUE(load.disturbs());
  EXPECT_EQ(load.text(), "other processes used 1.3 of 2 cores (cc1plus 0.9)");
}

}  // namespace
}  // namespace brim::monitor
