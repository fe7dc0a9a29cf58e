// SPDX-License-Identifier: Apache-2.0
#include "plan/device_profile.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <nlohmann/json.hpp>

#include "base/test_files.h"
#include "plan/plan_testing.h"

namespace brim::plan {

using device::DeviceKind;
using ops::Precision;

namespace {

TEST(DeviceProfile, FindsCardsByUserSpellings) {
  const std::pair<const char*, const char*> names[] = {{"RTX3070", "rtx3070"},
                                                       {"rtx 3070", "rtx3070"},
                                                       {"NVIDIA GeForce RTX 3070", "rtx3070"},
                                                       {"rtx3060-12gb", "rtx3060"},
                                                       {"rtx3060-8gb", "rtx3060-8gb"},
                                                       {"RTX 3050 4 GB", "rtx3050-laptop"},
                                                       {"rtx3050-4gb", "rtx3050-laptop"},
                                                       {"rtx 4050", "rtx4050-laptop"},
                                                       {"NVIDIA GeForce RTX 4060 Laptop GPU", "rtx4060-laptop"},
                                                       {"4060 ti 16gb", "rtx4060ti-16gb"},
                                                       {"RTX 4070 Ti SUPER", "rtx4070tisuper"},
                                                       {"rtx5090", "rtx5090"},
                                                       {"Tesla K80", "k80"},
                                                       {"Tesla T4", "t4"},
                                                       {"l4-24gb", "l4"},
                                                       {"h200-141gb", "h200"},
                                                       {"A100 80GB", "a100-80gb"},
                                                       {"NVIDIA A100-SXM4-80GB", "a100-80gb"}};
  for (const auto& [typed, name] : names) {
    std::vector<std::string> notes;
    EXPECT_EQ(card_profile(typed, &notes).name, name) << typed;
    EXPECT_EQ(notes.empty(), !std::string_view(name).ends_with("-laptop")) << typed;
  }
  for (const auto& [typed, name] :
       {std::pair("a100", "a100-40gb"), {"rtx3050", "rtx3050-6gb"}, {"4060ti", "rtx4060ti-8gb"}}) {
    std::vector<std::string> notes;
    EXPECT_EQ(card_profile(typed, &notes).name, name);
    ASSERT_EQ(notes.size(), 1u) << typed;
    EXPECT_NE(notes[0].find("several memory sizes"), std::string::npos) << notes[0];
  }
  const auto refused = [](const char* name) { return message_of([&] { card_profile(name); }, ErrorCode::usage); };
  EXPECT_NE(refused("RTX 3071").find("did you mean rtx3070?"), std::string::npos);
  EXPECT_NE(refused("rtx3060-16gb").find("known sizes: rtx3060-8gb (8.00 GiB), rtx3060 (12.0 GiB)"), std::string::npos)
      << refused("rtx3060-16gb");
  EXPECT_NE(refused("rtx5090 laptop").find("unknown device"), std::string::npos);
}

TEST(DeviceProfile, FindsCardsByDriverNames) {
  const auto found = [](const char* name, int64_t mib) -> std::string {
    const DeviceProfile* card = find_card(name, mib << 20);
    return card == nullptr ? "" : card->name;
  };
  EXPECT_EQ(found("NVIDIA GeForce RTX 4060 Ti", 16380), "rtx4060ti-16gb");
  EXPECT_EQ(found("NVIDIA GeForce RTX 3060 Laptop GPU", 6144), "rtx3060-laptop");
  EXPECT_EQ(found("NVIDIA A100-PCIE-40GB", 40536), "a100-40gb");
  EXPECT_EQ(found("NVIDIA H100 80GB HBM3", 81559), "h100");
  EXPECT_EQ(found("NVIDIA RTX A6000", 49140), "a6000");
  EXPECT_EQ(found("NVIDIA GeForce RTX 5090 Laptop GPU", 24463), "");  // the desktop card of that name has another chip
  EXPECT_EQ(found("NVIDIA A10G", 23028), "");
}

TEST(DeviceProfile, PlansCardsWithoutHalfPrecisionInFp32) {
  const DeviceProfile k80 = card_profile("k80");
  EXPECT_FALSE(k80.runnable);
  EXPECT_EQ(request(minilm(), Task::score, k80).precision, Precision::fp32);
}

TEST(DeviceProfile, TableHasExpectedEntries) {
  EXPECT_EQ(card_profile("h200").rate(Precision::bf16), 774e12);
  EXPECT_EQ(card_profile("t4").rate(Precision::bf16), 0);
  EXPECT_GT(card_profile("t4").rate(Precision::fp16), 0);
  EXPECT_TRUE(card_profile("t4").runnable);
  EXPECT_FALSE(card_profile("v100").runnable);
  EXPECT_EQ(card_profile("a100-80gb").rate(Precision::fp8), 0);
  EXPECT_GT(card_profile("l4").rate(Precision::fp8), 0);
  EXPECT_NE(message_of([] { card_profile("rtx3071"); }, ErrorCode::usage).find("did you mean rtx3070"),
            std::string::npos);
  for (const DeviceProfile& card : known_cards()) EXPECT_EQ(profile_from_json(to_json(card)), card);
  const Plan p = solve(request(minilm(), Task::score, card_profile("v100")));
  ASSERT_FALSE(p.notes.empty());
  EXPECT_NE(p.notes[0].find("does not support v100"), std::string::npos);
}

TEST(DeviceProfile, AcceptsCustomCardsAndRejectsInvalidJson) {
  const DeviceProfile p = custom_card(int64_t{8} << 30, 30, 400e9);
  expect_whole(solve(request(minilm(), Task::train, p)), request(minilm(), Task::train, p));
  message_of([] { custom_card(0, 30, 1e9); }, ErrorCode::usage);
  message_of([] { custom_card(1, -1, 1e9); }, ErrorCode::usage);
  message_of([] { custom_card(1, 1, -1); }, ErrorCode::usage);
  std::vector<std::string> notes;
  const DeviceProfile alone = custom_card(int64_t{8} << 30, 0, 0, &notes);
  EXPECT_EQ(alone.rate(Precision::bf16), card_profile("rtx3050-8gb").rate(Precision::bf16));
  EXPECT_EQ(alone.total_bytes, int64_t{8} << 30);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("speed taken from rtx3050-8gb"), std::string::npos) << notes[0];
  message_of([] { profile_from_json("{}"); }, ErrorCode::bad_data);
  message_of([] { plan_from_json("[]"); }, ErrorCode::bad_data);
  message_of([] { plan_from_json("{\"task\": \"dance\"}"); }, ErrorCode::bad_data);
}

// Old cache files have no version; files of a newer format are ignored.
TEST(DeviceProfile, CachedFileHasAVersion) {
  const TempDir cache;
  ::setenv("BRIM_CACHE", cache.path().c_str(), 1);
  const auto device = device::open_cpu_device(1);
  const DeviceProfile measured = measure_cpu(*device);
  const auto path = profile_path(measured.name);
  auto file = nlohmann::ordered_json::parse(get_file(path));
  EXPECT_EQ(file.begin().key(), "version");
  EXPECT_TRUE(local_profile(*device).measured);
  EXPECT_EQ(local_profile(*device).bandwidth, measured.bandwidth);
  file.erase("version");
  put_file(path, file.dump());
  EXPECT_TRUE(local_profile(*device).measured);
  file["version"] = 2;
  put_file(path, file.dump());
  EXPECT_FALSE(local_profile(*device).measured);
  ::unsetenv("BRIM_CACHE");
}

}  // namespace
}  // namespace brim::plan
