// SPDX-License-Identifier: Apache-2.0
// Compares every activation name allowed in config.json with transformers' values and slopes in fp64
// (tests/data/activations.json, from tools/make_activation_goldens.py).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/shape.h"
#include "ops/rows.h"
#include "ops/testing.h"

namespace brim::model {
namespace {

using ops::testing::HostTensor;
using ops::testing::kEps32;

ops::Activation activation_named(const std::string& name) {
  return shape_of(hub::parse_hf_config(fmt::format(R"({{"model_type":"bert","hidden_act":"{}"}})", name), name),
                  hub::HeadKind::sequence)
      .activation;
}

TEST(Activations, MatchTransformersFunctionsAndSlopes) {
  std::ifstream file(std::string(BRIM_SOURCE_DIR) + "/tests/data/activations.json");
  const auto golden = nlohmann::json::parse(file);
  const auto x = golden["x"].get<std::vector<double>>();
  const auto n = static_cast<int64_t>(x.size());
  for (const auto& [name, values] : golden.items()) {
    if (name == "x") continue;
    const ops::Activation activation = activation_named(name);
    const auto y = values["y"].get<std::vector<double>>(), slope = values["slope"].get<std::vector<double>>();
    ops::testing::for_each_cpu_stream([&, name = name](device::CpuStream& stream) {
      const HostTensor in(tensor::DType::f32, {1, n}), out(tensor::DType::f32, {1, n}),
          ones(tensor::DType::f32, {1, n}), d(tensor::DType::f32, {1, n});
      for (int64_t i = 0; i < n; ++i) {
        in.set(0, i, x[static_cast<size_t>(i)]);
        ones.set(0, i, 1);
      }
      ops::activate(stream, {.x = in, .y = out, .activation = activation});
      ops::activate_grad(
          stream, {.x = slope_reads_output(activation) ? out : in, .d_y = ones, .d_x = d, .activation = activation});
      // x is rounded to fp32; a slope of up to 1.13 and a curvature of up to 1.6 propagate that error. transformers'
      // tanh forms lose the tail below 1e-16 |x|, and some constants have only ten digits.
      const auto tolerance = [&](size_t i) { return kEps32 * (16 + 4 * std::fabs(x[i])) + 1e-9; };
      EXPECT_TRUE(ops::testing::close(out.values(), y, tolerance)) << name;
      EXPECT_TRUE(ops::testing::close(d.values(), slope, tolerance)) << name;
    });
  }
}

TEST(Activations, UnknownNameIsRejectedWithTheKnownNames) {
  try {
    (void)activation_named("mish");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("'mish': supported are gelu, gelu_new,"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace brim::model
