// SPDX-License-Identifier: Apache-2.0
// The first 20 losses of every family and head against PyTorch's (losses.json, fp64, tools/make_loss_goldens.py):
// passes, clipping, AdamW, decay and schedule together.
#include <gtest/gtest.h>

#include <numeric>

#include "model/golden_models.h"
#include "model/train_runner.h"
#include "model/weights.h"
#include "train/schedule.h"

namespace brim {
namespace {

std::vector<int32_t> sorted_by(const std::vector<int32_t>& keys) {
  std::vector<int32_t> rows(keys.size());
  std::iota(rows.begin(), rows.end(), 0);
  std::stable_sort(rows.begin(), rows.end(),
                   [&](int32_t a, int32_t b) { return keys[static_cast<size_t>(a)] < keys[static_cast<size_t>(b)]; });
  return rows;
}

std::vector<double> losses_of(const std::string& name, const nlohmann::json& golden) {
  auto device = open_cpu_device(1);
  auto stream = device->make_stream();
  ModelShape shape = read_shape(golden_models() / name);
  shape.hidden_dropout = shape.attention_dropout = shape.head_dropout = 0;
  const bool token = shape.token_classes > 0;
  TrainState state(*device, shape, Precision::fp32, Optimizer::adamw);
  std::vector<float> master;
  EXPECT_TRUE(load_master(*WeightSource::open(golden_models() / name), shape, 0, 0, master).empty());
  state.upload(*stream, master);
  const auto ids = golden_json(name, "golden.json")["ids"].get<std::vector<std::vector<int32_t>>>();
  const auto targets = golden_json(name, "gradients.json")["targets"];
  TrainSettings settings;
  settings.learning_rate = golden["learning_rate"];
  settings.warmup_steps = golden["warmup_steps"].get<double>();
  const int64_t steps = golden["steps"];
  const auto each = golden["batch"].get<size_t>();
  std::vector<double> losses;
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<std::vector<int32_t>> rows;
    std::vector<int32_t> classes;
    std::vector<float> marks;
    double weight = 0;
    for (size_t j = 0; j < each; ++j) {
      const size_t r = (each * static_cast<size_t>(step) + j) % ids.size();
      rows.push_back(ids[r]);
      if (token) {
        for (const auto& t : targets[r]) {
          classes.push_back(t);
          weight += t != -100;
        }
      } else if (shape.multi_label) {
        for (const auto& t : targets[r]) marks.push_back(t);
        ++weight;
      } else {
        classes.push_back(targets[r]);
        ++weight;
      }
    }
    const GoldenBatch batch(rows, shape.position_offset);
    const BatchView view = batch.view();
    const TrainPassPlan plan = plan_train_pass(shape, Precision::fp32, Recompute::none, DeviceKind::cpu, best_isa(), 1,
                                               {view.T, view.B, view.S});
    const DeviceBuffer arena = device->allocate(static_cast<size_t>(plan.arena_bytes()));
    const auto by_id = sorted_by(batch.ids), by_position = sorted_by(batch.positions);
    TrainPass pass{
        shape, state.params(), Recompute::none, {}, {}, GoldenBatch::ints(by_id), GoldenBatch::ints(by_position)};
    pass.loss.sequence_scale = pass.loss.token_scale = static_cast<float>(1 / std::max(1.0, weight));
    TrainTargets t;
    if (token)
      t.token = GoldenBatch::ints(classes);
    else if (shape.multi_label)
      t.sequence = TensorView(marks.data(), DType::f32, {view.B, shape.sequence_classes});
    else
      t.sequence = GoldenBatch::ints(classes);
    const TrainResult result = run_train_pass(*stream, arena.data(), plan, pass, view, t, 1);
    losses.push_back(result.loss.as<float>()[token ? 1 : 0] / std::max(1.0, weight));
    StepSettings s;
    s.lr = static_cast<float>(learning_rate_at(settings, settings.learning_rate, step, steps));
    s.weight_decay = golden["weight_decay"];
    s.max_grad_norm = golden["max_grad_norm"];
    s.step = step + 1;
    state.step(*stream, s, 1);
  }
  return losses;
}

TEST(Losses, FirstTwentyEqualPyTorch) {
  std::ifstream file(golden_models().parent_path() / "train" / "losses.json");
  const auto golden = nlohmann::json::parse(file);
  ASSERT_EQ(golden["losses"].size(), 8u);
  for (const auto& [name, want] : golden["losses"].items()) {
    SCOPED_TRACE(name);
    const auto losses = losses_of(name, golden);
    double worst = 0;
    for (size_t i = 0; i < losses.size(); ++i) {
      worst = std::max(worst, std::abs(losses[i] - want[i].get<double>()) / std::abs(want[i].get<double>()));
      EXPECT_NEAR(losses[i], want[i].get<double>(), 1e-4 * std::abs(want[i].get<double>())) << "step " << i;
    }
    RecordProperty("worst_relative_" + name, std::to_string(worst));
    EXPECT_LT(losses.back(), losses.front());
  }
}

}  // namespace
}  // namespace brim
