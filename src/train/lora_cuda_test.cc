// SPDX-License-Identifier: Apache-2.0
// LoRA and frozen parameters on the GPU: gradients and losses equal those of the CPU, which other tests compare with
// PEFT and PyTorch, and runs fit in the memory that is planned for them.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "device/cuda/testing.h"
#include "device/cuda_info.h"
#include "model/golden_lora.h"
#include "train/golden_losses.h"
#include "train/job.h"
#include "train/tiny_job.h"

namespace brim::train {

using model::Freeze;
using model::GoldenTraining;
using ops::Precision;

namespace {

struct Arithmetic {
  Precision precision;
  double loss_scale, tolerance;
};
// The error bounds are those of full training (train_cuda_test.cc).
std::vector<Arithmetic> arithmetics(const device::Device& device) {
  std::vector<Arithmetic> all{{Precision::fp32, 1, 1e-4}, {Precision::fp16, 1024, 0.016}};
  if (cuda_info(device).bf16) all.push_back({Precision::bf16, 1, 0.1});
  return all;
}

// A tiny model that trains an adapter or a part of its parameters.
struct Partial {
  std::string name;
  bool lora = false;
  Freeze freeze = {};

  std::unique_ptr<GoldenTraining> on(device::Device& device, Precision precision) const {
    if (lora) return model::start_golden_lora(device, name, precision);
    return std::make_unique<GoldenTraining>(device, name, precision, 1, 0.0f, freeze);
  }
};

std::vector<Partial> partial_trainings() {
  using Part = Freeze::Part;
  std::vector<Partial> all;
  for (const std::string& name : model::golden_lora_names()) all.push_back({name, true});
  for (const char* name : {"bert_sequence", "roberta_sequence", "modernbert_sequence", "deberta_sequence"})
    for (const Freeze& freeze : {Freeze{Part::embeddings}, Freeze{Part::layers, 1}, Freeze{Part::all_but_head}})
      all.push_back({name, false, freeze});
  all.push_back({"albert_groups", false, {Part::embeddings}});
  all.push_back({"bert_token", false, {Part::layers, 1}});
  return all;
}

struct Pass {
  double loss = 0;
  std::vector<std::vector<float>> grads;  // by parameter
};
Pass run_pass(GoldenTraining& training, double loss_scale) {
  std::vector<size_t> rows(training.sequences());
  std::iota(rows.begin(), rows.end(), size_t{0});
  Pass made;
  made.loss = training.pass(rows, model::Recompute::selective, loss_scale / training.weight(rows));
  for (size_t p = 0; p < training.state().layout().params.size(); ++p) {
    made.grads.push_back(training.gradient(p));
    for (float& v : made.grads.back()) v /= static_cast<float>(loss_scale);
  }
  return made;
}

double norm_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float v : values) sum += static_cast<double>(v) * v;
  return std::sqrt(sum);
}

TEST(LoraCuda, GradientsMatchTheCpu) {
  BRIM_NEEDS_GPU();
  const auto gpu = device::open_cuda_device(0);
  const auto cpu = device::open_cpu_device(1);
  for (const Partial& partial : partial_trainings()) {
    const auto exact = partial.on(*cpu, Precision::fp32);
    const Pass want = run_pass(*exact, 1);
    double largest = 0;
    for (const auto& grad : want.grads) largest = std::max(largest, norm_of(grad));
    for (const Arithmetic& a : arithmetics(*gpu)) {
      SCOPED_TRACE(fmt::format("{} {} {}", partial.name, partial.lora ? -1 : static_cast<int>(partial.freeze.part),
                               precision_name(a.precision)));
      const auto training = partial.on(*gpu, a.precision);
      const Pass got = run_pass(*training, a.loss_scale);
      EXPECT_NEAR(got.loss, want.loss, a.tolerance * std::abs(want.loss));
      ASSERT_EQ(got.grads.size(), want.grads.size());
      for (size_t p = 0; p < want.grads.size(); ++p) {
        const std::string& name = exact->state().layout().params[p].names[0];
        ASSERT_EQ(got.grads[p].size(), want.grads[p].size()) << name;
        std::vector<float> difference = got.grads[p];
        for (size_t i = 0; i < difference.size(); ++i) difference[i] -= want.grads[p][i];
        EXPECT_LE(norm_of(difference), a.tolerance * (2 * norm_of(want.grads[p]) + 0.02 * largest)) << name;
      }
    }
  }
}

// Half precision diverges after some steps, as in full training.
TEST(LoraCuda, FirstLossesMatchTheCpu) {
  BRIM_NEEDS_GPU();
  const auto golden = golden_losses();
  const auto gpu = device::open_cuda_device(0);
  const auto cpu = device::open_cpu_device(1);
  for (const Partial& partial : partial_trainings()) {
    const auto want = losses_of(*partial.on(*cpu, Precision::fp32), golden);
    for (const Arithmetic& a : arithmetics(*gpu)) {
      SCOPED_TRACE(fmt::format("{} {} {}", partial.name, partial.lora ? -1 : static_cast<int>(partial.freeze.part),
                               precision_name(a.precision)));
      const bool exact = a.precision == Precision::fp32;
      const auto losses = losses_of(*partial.on(*gpu, a.precision), golden, a.loss_scale);
      ASSERT_EQ(losses.size(), want.size());
      for (size_t i = 0; i < (exact ? losses.size() : 8); ++i)
        EXPECT_NEAR(losses[i], want[i], (exact ? 1e-3 : 0.04) * std::max(0.5, want[i])) << "step " << i;
    }
  }
}

// A limit of exactly the planned bytes is enough: all allocations of a run are charged to its plan.
TEST(LoraCuda, RunsFitInTheirPlannedMemory) {
  BRIM_NEEDS_GPU();
  const bool bf16 = cuda_info(*device::open_cuda_device(0)).bf16;
  for (const Precision precision : {Precision::fp32, bf16 ? Precision::bf16 : Precision::fp16}) {
    int64_t full = 0;
    for (const char* part : {"", "lora", "embeddings", "layers:1", "all-but-head"}) {
      SCOPED_TRACE(std::string(part) + " " + precision_name(precision));
      TinyJob t("roberta_sequence", 96);
      t.settings.device = {device::DeviceChoice::Kind::cuda, 0};
      t.settings.precision = {precision};
      t.settings.memory_limit = plan::MemoryLimit::read("4GiB");
      apply_setting(t.settings, "token_set", "staged");
      if (std::string(part) == "lora")
        apply_setting(t.settings, "lora_r", "4");
      else if (part[0] != 0)
        apply_setting(t.settings, "freeze", part);
      const TrainOutcome whole = t.run();
      if (part[0] == 0)
        full = whole.planned_bytes;
      else
        EXPECT_LT(whole.planned_bytes, full);
      TrainSettings tight = t.to("tight");
      tight.memory_limit = plan::MemoryLimit::read(std::to_string(whole.planned_bytes) + "B");
      EXPECT_LE(train(tight, {}).planned_bytes, whole.planned_bytes);
      EXPECT_TRUE(t.weights() == t.weights("tight"));
    }
  }
}

}  // namespace
}  // namespace brim::train
