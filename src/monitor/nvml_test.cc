// SPDX-License-Identifier: Apache-2.0
#include "monitor/nvml.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "monitor/snapshot.h"

namespace brim::monitor {
namespace {

class NvmlTest : public ::testing::Test {
 protected:
  static void scenario(const char* text) { ::setenv("BRIM_NVML_SCENARIO", text, 1); }
  void TearDown() override { ::unsetenv("BRIM_NVML_SCENARIO"); }
};

TEST_F(NvmlTest, ReadsEverythingOfSeveralGpus) {
  scenario("name=H200,util=87,mem=20000/144000,temp=61,power=412,throttle=4|name=L4,util=0,throttle=0,pid=many");
  Nvml nvml(BRIM_NVML_STAND_IN);
  ASSERT_TRUE(nvml.ready()) << nvml.why();
  const auto gpus = nvml.sample();
  ASSERT_EQ(gpus.size(), 2U);
  const GpuSample& g = gpus[0];
  EXPECT_EQ(g.state, GpuState::ok);
  EXPECT_EQ(g.name, "H200");
  EXPECT_EQ(g.uuid, "GPU-1");
  EXPECT_EQ(g.driver, "580.00.01");
  EXPECT_DOUBLE_EQ(*g.utilization, 0.87);
  EXPECT_DOUBLE_EQ(*g.memory_utilization, 0.31);
  EXPECT_EQ(g.total_bytes, int64_t{144000} << 20);
  EXPECT_EQ(g.used_bytes, int64_t{20000} << 20);
  EXPECT_EQ(g.reserved_bytes, int64_t{600} << 20);
  EXPECT_EQ(g.free_bytes, int64_t{144000 - 20000 - 600} << 20);
  EXPECT_DOUBLE_EQ(*g.temperature_c, 61);
  EXPECT_DOUBLE_EQ(*g.power_w, 412);
  EXPECT_DOUBLE_EQ(*g.power_limit_w, 700);
  EXPECT_EQ(g.sm_clock_mhz, 1755);
  EXPECT_EQ(g.max_sm_clock_mhz, 1980);
  EXPECT_EQ(g.memory_clock_mhz, 3201);
  EXPECT_EQ(g.throttle, std::vector<std::string>{"power cap"});
  EXPECT_EQ(g.pcie_generation, 5);
  EXPECT_EQ(g.pcie_width, 16);
  EXPECT_DOUBLE_EQ(*g.pcie_rx_bytes_per_s, 2048.0 * 1024);
  EXPECT_DOUBLE_EQ(*g.pcie_tx_bytes_per_s, 1024.0 * 1024);
  EXPECT_EQ(g.energy_mj, 1'001'000);
  ASSERT_TRUE(g.processes);
  ASSERT_EQ(g.processes->size(), 2U);
  EXPECT_EQ((*g.processes)[0].pid, ::getpid());
  EXPECT_EQ((*g.processes)[0].name, "monitor_test");
  EXPECT_EQ((*g.processes)[0].bytes, int64_t{300} << 20);
  EXPECT_EQ((*g.processes)[1].bytes, std::nullopt);
  EXPECT_TRUE(g.refused.empty());
  // Readings of an idle GPU are present and 0; a list that did not fit at first is complete.
  EXPECT_EQ(gpus[1].utilization, 0.0);
  EXPECT_TRUE(gpus[1].throttle && gpus[1].throttle->empty());
  EXPECT_EQ(gpus[1].processes->size(), 40U);
  EXPECT_EQ(nvml.energy_mj(0), 1'001'000);
  EXPECT_EQ(nvml.used_bytes(0), int64_t{20000} << 20);
  EXPECT_EQ(nvml.energy_mj(2), std::nullopt);
}

TEST_F(NvmlTest, UnsupportedReadingsAreAbsentNotZero) {
  scenario("name=GTX,no=utilization+memory+temperature+power+clocks+throttle+pcie+energy+processes+gpm");
  Nvml nvml(BRIM_NVML_STAND_IN);
  const GpuSample g = nvml.sample().at(0);
  EXPECT_EQ(g.state, GpuState::ok);
  EXPECT_FALSE(g.utilization || g.memory_utilization || g.total_bytes || g.used_bytes || g.reserved_bytes ||
               g.free_bytes);
  EXPECT_FALSE(g.temperature_c || g.power_w || g.power_limit_w || g.sm_clock_mhz || g.memory_clock_mhz || g.throttle);
  EXPECT_FALSE(g.pcie_generation || g.pcie_rx_bytes_per_s || g.energy_mj || g.processes || g.gpm);
  EXPECT_TRUE(g.refused.empty());
  EXPECT_EQ(nvml.energy_mj(0), std::nullopt);
  EXPECT_EQ(nvml.used_bytes(0), std::nullopt);
}

TEST_F(NvmlTest, ListsReadingsWithoutPermission) {
  scenario("name=Shared,deny=pcie+processes+gpm|deny=card");
  Nvml nvml(BRIM_NVML_STAND_IN);
  const auto gpus = nvml.sample();
  EXPECT_EQ(gpus.at(0).refused,
            (std::vector<std::string>{"GPM counters", "PCIe link", "PCIe throughput", "processes"}));
  EXPECT_TRUE(gpus[0].utilization);
  EXPECT_FALSE(gpus[0].processes);
  EXPECT_EQ(gpus.at(1).state, GpuState::no_permission);
  EXPECT_EQ(gpus[1].why, "Insufficient Permissions");
  EXPECT_FALSE(gpus[1].utilization);
}

TEST_F(NvmlTest, LostGpuKeepsItsIndex) {
  scenario("name=A,lose=1|name=B");
  Nvml nvml(BRIM_NVML_STAND_IN);
  EXPECT_EQ(nvml.sample().at(0).state, GpuState::ok);
  for (int again = 0; again < 2; ++again) {
    const auto gpus = nvml.sample();
    ASSERT_EQ(gpus.size(), 2U);
    EXPECT_EQ(gpus[0].state, GpuState::lost);
    EXPECT_EQ(gpus[0].name, "A");
    EXPECT_EQ(gpus[0].why, "GPU is lost");
    EXPECT_FALSE(gpus[0].used_bytes || gpus[0].temperature_c || gpus[0].energy_mj);
    EXPECT_EQ(gpus[1].state, GpuState::ok);
    EXPECT_TRUE(gpus[1].utilization);
  }
}

// CUDA_VISIBLE_DEVICES=2,0 makes NVML's third GPU the first one of CUDA, so only the bus id identifies it.
TEST_F(NvmlTest, FindsAGpuByBusIdRegardlessOfItsIndex) {
  scenario("name=A,pci=17,util=10|name=B,pci=65,util=20|name=C,pci=ca,util=30");
  Nvml nvml(BRIM_NVML_STAND_IN);
  EXPECT_EQ(nvml.find("0000:CA:00.0"), 2);
  EXPECT_EQ(nvml.find("00000000:17:00.0"), 0);
  EXPECT_EQ(nvml.sample_card("0000:65:00.0").value().name, "B");
  EXPECT_EQ(nvml.sample_card("0000:65:00.0").value().pci_bus_id, "0000:65:00.0");
  for (const char* unknown : {"", "0000:66:00.0", "0001:65:00.0", "GPU-1", "nonsense"}) {
    EXPECT_EQ(nvml.find(unknown), std::nullopt) << unknown;
    EXPECT_FALSE(nvml.sample_card(unknown)) << unknown;
  }
  scenario("name=A,no=pci|name=B,no=pci");  // a driver without bus ids: no result is better than a wrong one
  EXPECT_EQ(Nvml(BRIM_NVML_STAND_IN).find("0000:65:00.0"), std::nullopt);
  scenario("name=A,no=pci");
  EXPECT_EQ(Nvml(BRIM_NVML_STAND_IN).find("0000:65:00.0"), 0);
  scenario("name=A,pci=65");
  EXPECT_EQ(Nvml(BRIM_NVML_STAND_IN).find(""), 0);
  EXPECT_EQ(Nvml(BRIM_NVML_STAND_IN).find("0000:17:00.0"), std::nullopt);
  EXPECT_EQ(Nvml(BRIM_NVML_STAND_IN_OLD).find("0000:65:00.0"), 0);
  EXPECT_EQ(Nvml("/no/such/library").find(""), std::nullopt);
}

TEST_F(NvmlTest, ShowsARunOnItsGpu) {
  Snapshot s;
  for (const char* bus : {"0000:17:00.0", "0000:65:00.0"}) {
    GpuSample g;
    g.index = static_cast<int>(s.gpus.size());
    g.pci_bus_id = bus;
    s.gpus.push_back(g);
  }
  RunRecord run;
  run.pid = 7;
  run.device = "NVIDIA H200";
  run.on_card = true;
  run.pci_bus_id = "0000:65:00.0";
  s.runs = {run};
  EXPECT_EQ(run_on(s, s.gpus[0]), nullptr);  // CUDA's first GPU is NVML's second
  EXPECT_EQ(run_on(s, s.gpus[1]), &s.runs[0]);
  s.runs[0].pci_bus_id = "";  // unknown: falls back to the index
  EXPECT_EQ(run_on(s, s.gpus[0]), &s.runs[0]);
  EXPECT_EQ(run_on(s, s.gpus[1]), nullptr);
}

TEST_F(NvmlTest, ReportsGpmFromTheSecondSample) {
  scenario("name=H200|name=A100,no=gpm");
  Nvml nvml(BRIM_NVML_STAND_IN);
  EXPECT_FALSE(nvml.sample().at(0).gpm);
  std::this_thread::sleep_for(std::chrono::milliseconds(110));  // the library requires 0.1 s between samples
  const auto gpus = nvml.sample();
  ASSERT_TRUE(gpus.at(0).gpm);
  EXPECT_DOUBLE_EQ(*gpus[0].gpm->sm, 0.91);
  EXPECT_DOUBLE_EQ(*gpus[0].gpm->tensor, 0.44);
  EXPECT_EQ(gpus[0].gpm->dram, std::nullopt);  // a single counter may be missing
  EXPECT_FALSE(gpus.at(1).gpm);
}

TEST_F(NvmlTest, SupportsOldDriversWithFewerEntryPoints) {
  scenario("name=K80,mem=3000/12000");
  Nvml nvml(BRIM_NVML_STAND_IN_OLD);
  ASSERT_TRUE(nvml.ready()) << nvml.why();
  const GpuSample g = nvml.sample().at(0);
  EXPECT_EQ(g.name, "K80");
  EXPECT_EQ(g.used_bytes, int64_t{3000} << 20);
  EXPECT_EQ(g.free_bytes, int64_t{9000} << 20);
  EXPECT_FALSE(g.reserved_bytes || g.power_limit_w || g.pcie_generation || g.energy_mj || g.gpm);
  EXPECT_EQ(g.processes.value().at(0).bytes, int64_t{300} << 20);
}

TEST_F(NvmlTest, MissingLibraryDriverOrPermissionIsAState) {
  Nvml none("/no/such/libnvidia-ml.so.1");
  EXPECT_EQ(none.state(), NvmlState::no_library);
  EXPECT_FALSE(none.why().empty());
  EXPECT_TRUE(none.sample().empty());
  EXPECT_EQ(none.energy_mj(0), std::nullopt);
  Nvml other("libc.so.6");
  EXPECT_EQ(other.state(), NvmlState::no_library);
  scenario("init=9");
  EXPECT_EQ(Nvml(BRIM_NVML_STAND_IN).state(), NvmlState::no_driver);
  scenario("init=4");
  EXPECT_EQ(Nvml(BRIM_NVML_STAND_IN).state(), NvmlState::no_permission);
  scenario("init=999");
  EXPECT_EQ(Nvml(BRIM_NVML_STAND_IN).state(), NvmlState::failed);
  scenario("");
  Nvml empty(BRIM_NVML_STAND_IN);
  EXPECT_TRUE(empty.ready());
  EXPECT_TRUE(empty.sample().empty());
}

TEST_F(NvmlTest, JsonHasNullForUnknownReadings) {
  scenario("name=GTX \xFF,no=power+energy+processes+gpm|name=A,lose=0");
  ::setenv("BRIM_NVML_LIBRARY", BRIM_NVML_STAND_IN, 1);
  Sampler sampler;
  ::unsetenv("BRIM_NVML_LIBRARY");
  Snapshot snapshot = sampler.sample();
  snapshot.runs.clear();
  const auto j = nlohmann::json::parse(to_json(snapshot));
  EXPECT_EQ(j["schema_version"], 1);
  EXPECT_EQ(j["nvml"]["state"], "ready");
  ASSERT_EQ(j["gpus"].size(), 2U);
  EXPECT_TRUE(j["gpus"][0]["power_w"].is_null());
  EXPECT_TRUE(j["gpus"][0]["processes"].is_null());
  EXPECT_TRUE(j["gpus"][0]["mfu"].is_null());
  EXPECT_EQ(j["gpus"][0]["utilization"], 0.5);
  EXPECT_EQ(j["gpus"][1]["state"], "lost");
  EXPECT_TRUE(j["gpus"][1]["memory_used_bytes"].is_null());
  EXPECT_GT(j["host"]["memory_total_bytes"], 0);
}

}  // namespace
}  // namespace brim::monitor
