// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "engine/residency.h"

namespace brim::engine {
namespace {

using Victims = std::vector<size_t>;

TEST(ChooseVictims, EvictsNothingIfTheModelFits) {
  const std::vector<EvictionCandidate> models{{.own_bytes = 10}, {.own_bytes = 10}};
  EXPECT_EQ(choose_victims(models, 0), Victims{});
  EXPECT_EQ(choose_victims(models, -5), Victims{});
  EXPECT_EQ(choose_victims({}, 0), Victims{});
}

TEST(ChooseVictims, EvictsByReloadCostAndOnlyAsNeeded) {
  const std::vector<EvictionCandidate> models{
      {.own_bytes = 10, .reload_cost = 3}, {.own_bytes = 10, .reload_cost = 1}, {.own_bytes = 10, .reload_cost = 2}};
  EXPECT_EQ(choose_victims(models, 1), Victims{1});
  EXPECT_EQ(choose_victims(models, 10), Victims{1});
  EXPECT_EQ(choose_victims(models, 11), (Victims{1, 2}));
  EXPECT_EQ(choose_victims(models, 30), (Victims{1, 2, 0}));
}

TEST(ChooseVictims, EvictsNothingIfTheModelWouldNotFit) {
  const std::vector<EvictionCandidate> models{{.own_bytes = 10}, {.own_bytes = 10}};
  EXPECT_EQ(choose_victims(models, 21), Victims{});
  EXPECT_EQ(choose_victims({}, 1), Victims{});
}

TEST(ChooseVictims, EvictsModelsWithWorkLast) {
  const std::vector<EvictionCandidate> models{{.own_bytes = 10, .reload_cost = 0, .has_work = true},
                                              {.own_bytes = 10, .reload_cost = 9}};
  EXPECT_EQ(choose_victims(models, 10), Victims{1});
  EXPECT_EQ(choose_victims(models, 20), (Victims{1, 0}));
}

TEST(ChooseVictims, EvictsTheLeastRecentlyUsedOfEqualModels) {
  const std::vector<EvictionCandidate> models{
      {.own_bytes = 10, .last_used = 7}, {.own_bytes = 10, .last_used = 5}, {.own_bytes = 10, .last_used = 6}};
  EXPECT_EQ(choose_victims(models, 20), (Victims{1, 2}));
}

TEST(ChooseVictims, CountsABaseWithItsLastUser) {
  const int base = 0, other = 0;
  std::vector<EvictionCandidate> models{
      {.own_bytes = 1, .reload_cost = 1, .base = &base, .base_bytes = 100, .base_users = 2},
      {.own_bytes = 1, .reload_cost = 2, .base = &other, .base_bytes = 100, .base_users = 1},
      {.own_bytes = 1, .reload_cost = 3, .base = &base, .base_bytes = 100, .base_users = 2}};
  EXPECT_EQ(choose_victims(models, 102), (Victims{0, 1}));
  EXPECT_EQ(choose_victims(models, 103), (Victims{0, 1, 2}));
  EXPECT_EQ(choose_victims(models, 203), (Victims{0, 1, 2}));
  EXPECT_EQ(choose_victims(models, 204), Victims{});
  for (EvictionCandidate& model : models) model.base_users = 3;  // a kept model uses each base too
  EXPECT_EQ(choose_victims(models, 3), (Victims{0, 1, 2}));
  EXPECT_EQ(choose_victims(models, 4), Victims{});
}

}  // namespace
}  // namespace brim::engine
