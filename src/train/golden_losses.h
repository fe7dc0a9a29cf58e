// SPDX-License-Identifier: Apache-2.0
// Test data: the first 20 losses of a tiny model on any device, compared with PyTorch in fp64
// (tests/data/train/losses.json, from tools/make_loss_goldens.py). Covers passes, clipping, AdamW, decay and schedule
// together.
#pragma once
#include <fstream>

#include "model/golden_training.h"
#include "train/schedule.h"

namespace brim::train {

inline nlohmann::json golden_losses() {
  std::ifstream file(model::golden_models().parent_path() / "train" / "losses.json");
  return nlohmann::json::parse(file);
}

inline std::vector<double> losses_of(model::GoldenTraining& training, const nlohmann::json& golden,
                                     double loss_scale = 1) {
  TrainSettings settings;
  settings.learning_rate = golden["learning_rate"];
  settings.warmup_steps = golden["warmup_steps"].get<double>();
  const int64_t steps = golden["steps"];
  const auto each = golden["batch"].get<size_t>();
  std::vector<double> losses;
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<size_t> rows(each);
    for (size_t j = 0; j < each; ++j) rows[j] = (each * static_cast<size_t>(step) + j) % training.sequences();
    const double weight = std::max(1.0, training.weight(rows));
    training.begin_step(rows, loss_scale / weight);
    losses.push_back(training.pass(rows, model::Recompute::none, loss_scale / weight) / weight);
    model::StepSettings s;
    s.lr = static_cast<float>(learning_rate_at(settings, settings.learning_rate, step, steps));
    s.weight_decay = golden["weight_decay"];
    s.max_grad_norm = golden["max_grad_norm"];
    s.grad_scale = static_cast<float>(1 / loss_scale);
    s.step = step + 1;
    training.state().step(training.stream(), s, 1);
  }
  return losses;
}

inline std::vector<double> losses_of(device::Device& device, const std::string& name, const nlohmann::json& golden,
                                     ops::Precision precision, double loss_scale = 1) {
  model::GoldenTraining training(device, name, precision);
  return losses_of(training, golden, loss_scale);
}

}  // namespace brim::train
