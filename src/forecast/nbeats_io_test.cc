// SPDX-License-Identifier: Apache-2.0
#include "forecast/nbeats_io.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace brim::forecast {
namespace {

class NbeatsIo : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::temp_directory_path() / ("brim_nbeats_io_" + std::to_string(::getpid()));
    std::filesystem::remove_all(dir_);
    model_.horizon = 6;
    model_.season = 24;
    model_.freq = "H";
    model_.quantiles = {0.1f, 0.5f, 0.9f};
    model_.layers = 2;
    for (const int32_t lookback : {12, 19}) {
      NbeatsLane lane;
      lane.spec = {
          .seed = 0xFFFFFFFFFFFFFFF0ULL + static_cast<uint64_t>(lookback), .lookback = lookback, .history = 60};
      lane.spec.loss = lookback == 12 ? ops::ForecastLoss::quantile : ops::ForecastLoss::huber;
      lane.spec.huber_delta = 0.1f;
      lane.stacks = {{StackKind::trend, 2, 8, true}, {StackKind::seasonality, 1, 16}, {StackKind::generic, 2, 8}};
      const NbeatsShape shape = lane_shape(model_, lane);
      lane.slab = draw_lane(shape, nbeats_layout(shape), lane.spec.seed, lookback);
      model_.lanes.push_back(lane);
    }
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  nlohmann::json config() const {
    std::ifstream file(dir_ / "config.json");
    return nlohmann::json::parse(file);
  }
  void write_config(const nlohmann::json& json) const { std::ofstream(dir_ / "config.json") << json.dump(); }
  // Error message of loading, or empty; any error must be bad_model.
  std::string error_message() const {
    try {
      load_nbeats(dir_);
      return "";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::bad_model) << e.what();
      return e.what();
    }
  }

  std::filesystem::path dir_;
  NbeatsModel model_;
};

TEST_F(NbeatsIo, RoundTripsBitForBit) {
  save_nbeats(dir_, model_);
  const NbeatsModel back = load_nbeats(dir_);
  EXPECT_EQ(back.horizon, 6);
  EXPECT_EQ(back.season, 24);
  EXPECT_EQ(back.freq, "H");
  EXPECT_EQ(back.quantiles, model_.quantiles);
  EXPECT_EQ(back.layers, 2);
  EXPECT_TRUE(back.first_relu);
  ASSERT_EQ(back.lanes.size(), 2U);
  for (size_t g = 0; g < 2; ++g) {
    const NbeatsLane &a = model_.lanes[g], &b = back.lanes[g];
    EXPECT_EQ(a.slab, b.slab);
    EXPECT_EQ(a.stacks, b.stacks);
    EXPECT_EQ(a.spec.seed, b.spec.seed);
    EXPECT_EQ(a.spec.lookback, b.spec.lookback);
    EXPECT_EQ(a.spec.loss, b.spec.loss);
    EXPECT_EQ(a.spec.huber_delta, b.spec.huber_delta);
  }
  const auto whole = [&](const char* name) {
    std::ifstream file(dir_ / name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string weights = whole("model.safetensors"), text = whole("config.json");
  save_nbeats(dir_, back);
  EXPECT_EQ(whole("model.safetensors"), weights);
  EXPECT_EQ(whole("config.json"), text);
  EXPECT_NE(weights.find("lanes.1.blocks.0.layers.1.weight"), std::string::npos);
  EXPECT_EQ(weights.find("lanes.1.blocks.1."), std::string::npos);  // shared with block 0
  EXPECT_NE(weights.find("lanes.0.blocks.4.basis_parameters.bias"), std::string::npos);
}

TEST_F(NbeatsIo, MovesALaneToAWiderWaveAndBack) {
  const NbeatsLane& lane = model_.lanes[0];
  const NbeatsShape own = lane_shape(model_, lane);
  NbeatsShape wide = own;
  wide.lookback = 50;
  const std::vector<float> moved = move_lane(own, wide, lane.spec.lookback, lane.slab);
  EXPECT_EQ(moved, draw_lane(wide, nbeats_layout(wide), lane.spec.seed, lane.spec.lookback));
  EXPECT_EQ(move_lane(wide, own, lane.spec.lookback, moved), lane.slab);
}

TEST_F(NbeatsIo, ErrorsNameTheInvalidItem) {
  save_nbeats(dir_, model_);
  const nlohmann::json good = config();
  struct Case {
    const char *pointer, *value, *problem;
  };
  const Case cases[] = {
      {"/model_type", "\"bert\"", "\"model_type\" is \"bert\": must be one of nbeats"},
      {"/horizon", "0", "\"horizon\" is 0: must be an integer from 1"},
      {"/quantiles", "[0.5, 0.1]", "must be ascending"},
      {"/lanes", "[]", "at least one"},
      {"/lanes/1/loss", "\"rmse\"", "lane 1: \"loss\" is \"rmse\": must be one of smape, mape"},
      {"/lanes/0/seed", "-1", "\"seed\" is -1"},
      {"/lanes/0/stacks/0/width", "12", "stack 0: \"width\" is 12: must be a multiple of 8"},
      {"/lanes/0/lookback", "13", "config.json requires F32"},
      {"/lanes/0/stacks/2/blocks", "3", "blocks.5"},
  };
  for (const Case& c : cases) {
    nlohmann::json bad = good;
    bad[nlohmann::json::json_pointer(c.pointer)] = nlohmann::json::parse(c.value);
    write_config(bad);
    const std::string message = error_message();
    EXPECT_NE(message.find(c.problem), std::string::npos) << c.pointer << ": " << message;
    EXPECT_NE(message.find(dir_.string()), std::string::npos) << message;
  }
  nlohmann::json fewer = good;
  fewer["lanes"].erase(1);
  write_config(fewer);
  EXPECT_NE(error_message().find("the files belong to different models"), std::string::npos);
  std::filesystem::remove(dir_ / "model.safetensors");
  EXPECT_NE(error_message(), "");
  std::filesystem::remove(dir_ / "config.json");
  EXPECT_NE(error_message().find("config.json"), std::string::npos);
}

// Replaces every config value by each of a few others, and removes it: the model must load or be rejected.
TEST_F(NbeatsIo, RejectsOrLoadsAnyConfig) {
  save_nbeats(dir_, model_);
  const nlohmann::json good = config(), flat = good.flatten();
  const nlohmann::json others[] = {nullptr,
                                   -1,
                                   0,
                                   1e300,
                                   16777216,
                                   18446744073709551615U,
                                   "x",
                                   true,
                                   nlohmann::json::array(),
                                   nlohmann::json::object(),
                                   0.5};
  int refused = 0;
  for (const auto& [pointer, value] : flat.items()) {
    if (pointer.rfind("/lanes/1", 0) == 0) continue;  // same as lane 0
    for (const nlohmann::json& other : others) {
      nlohmann::json bad = good;
      bad[nlohmann::json::json_pointer(pointer)] = other;
      write_config(bad);
      refused += error_message().empty() ? 0 : 1;
    }
  }
  EXPECT_GT(refused, 200);
}

}  // namespace
}  // namespace brim::forecast
