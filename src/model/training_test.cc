// SPDX-License-Identifier: Apache-2.0
// Compares the backward pass with PyTorch: loss and all gradients of the tiny models (gradients.json, fp64). Also
// checks that recomputation, micro-batches and the number of threads do not affect the results.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "model/golden_training.h"
#include "ops/loss.h"

namespace brim::model {

using ops::Precision;

namespace {

struct PassRun {
  double loss = 0;
  std::vector<std::vector<float>> grads;  // by parameter
  SlabLayout layout;
};

// Runs the golden batch in `parts` micro-batches.
PassRun run(const std::string& name, Recompute recompute, int threads, size_t parts, float dropout = 0) {
  auto device = device::open_cpu_device(threads);
  GoldenTraining training(*device, name, Precision::fp32, threads, dropout);
  PassRun result;
  result.layout = training.state().layout();
  const size_t each = (training.sequences() + parts - 1) / parts;
  for (size_t begin = 0; begin < training.sequences(); begin += each) {
    std::vector<size_t> rows(std::min(each, training.sequences() - begin));
    std::iota(rows.begin(), rows.end(), begin);
    result.loss += training.pass(rows, recompute, 1 / training.golden()["weight"].get<double>());
  }
  for (size_t p = 0; p < result.layout.params.size(); ++p) result.grads.push_back(training.gradient(p));
  return result;
}

void expect_golden(const std::string& name, const PassRun& r) {
  const auto golden = golden_json(name, "gradients.json");
  EXPECT_NEAR(r.loss, golden["loss_sum"].get<double>(), 1e-4 * std::abs(golden["loss_sum"].get<double>()));
  size_t compared = 0;
  double largest_norm = 0, worst = 0;  // differences relative to the norm of a tensor's gradient
  for (const auto& [key, g] : golden["gradients"].items())
    largest_norm = std::max(largest_norm, g["norm"].get<double>());
  for (size_t p = 0; p < r.layout.params.size(); ++p) {
    const ParamSpec& spec = r.layout.params[p];
    const auto part = r.grads[p].size() / spec.names.size();
    for (size_t k = 0; k < spec.names.size() && spec.rows > 0; ++k) {
      if (!golden["gradients"].contains(spec.names[k])) continue;
      const auto& g = golden["gradients"][spec.names[k]];
      ++compared;
      const float* values = r.grads[p].data() + k * part;
      double norm = 0;
      for (size_t i = 0; i < part; ++i) norm += static_cast<double>(values[i]) * values[i];
      const double want = g["norm"];
      // fp32 sums of a few hundred terms over two layers: error below 1e-5 of the tensor's norm. Key biases have an
      // exact gradient of zero (softmax is invariant to them); only rounding errors remain.
      EXPECT_NEAR(std::sqrt(norm), want, 1e-5 * want + 1e-6) << spec.names[k];
      const double unit = want > 1e-6 * largest_norm ? want : largest_norm;
      worst = std::max(worst, std::abs(std::sqrt(norm) - want) / unit);
      for (size_t i = 0; i < g["at"].size(); ++i) {
        const double value = values[g["at"][i].get<size_t>()], exact = g["values"][i].get<double>();
        EXPECT_NEAR(value, exact, 1e-5 * want + 1e-6) << spec.names[k] << " at " << g["at"][i];
        worst = std::max(worst, std::abs(value - exact) / unit);
      }
    }
  }
  ::testing::Test::RecordProperty("relative_difference_" + name, std::to_string(1e6 * worst) + "e-6");
  EXPECT_EQ(compared, golden["gradients"].size());
}

TEST(TrainingPass, LossAndGradientsMatchPyTorch) {
  for (const std::string& name : golden_names("gradients.json")) {
    SCOPED_TRACE(name);
    expect_golden(name, run(name, Recompute::none, 2, 1));
  }
}

TEST(TrainingPass, RecomputeAndAccumulationGiveTheSameGradients) {
  for (const char* name :
       {"bert_sequence", "bert_token", "roberta_sequence", "electra_sequence", "albert_sequence", "deberta_sequence",
        "deberta_keys", "deberta_convolution", "modernbert_sequence", "modernbert_mean", "modernbert_token"}) {
    SCOPED_TRACE(name);
    const PassRun whole = run(name, Recompute::none, 1, 1);
    for (const Recompute level : kRecomputeLevels)
      for (const size_t parts : {1, 2, 4}) {
        const PassRun other = run(name, level, 1, parts);
        for (size_t p = 0; p < whole.grads.size(); ++p) {
          double difference = 0, norm = 0;
          for (size_t i = 0; i < whole.grads[p].size(); ++i) {
            difference += std::pow(whole.grads[p][i] - other.grads[p][i], 2);
            norm += std::pow(whole.grads[p][i], 2);
          }
          EXPECT_LE(std::sqrt(difference), 1e-6 * std::sqrt(norm) + 1e-6)
              << recompute_name(level) << " in " << parts << " parts, parameter " << p;
        }
      }
  }
}

// Recomputed values have the same dropout mask, in post-norm and pre-norm layers.
TEST(TrainingPass, RecomputeUnderDropoutDoesNotChangeABit) {
  for (const char* name :
       {"bert_sequence", "bert_token", "distilbert_sequence", "albert_groups", "mpnet_sequence", "deberta_sequence",
        "deberta_keys", "deberta_convolution", "modernbert_sequence", "modernbert_mean", "modernbert_token"}) {
    SCOPED_TRACE(name);
    const PassRun kept = run(name, Recompute::none, 2, 1, 0.3f);
    EXPECT_NE(kept.loss, run(name, Recompute::none, 2, 1).loss) << "it is on";
    for (const Recompute level : {Recompute::half, Recompute::selective, Recompute::full}) {
      const PassRun made = run(name, level, 2, 1, 0.3f);
      EXPECT_EQ(kept.loss, made.loss) << recompute_name(level);
      EXPECT_EQ(kept.grads, made.grads) << recompute_name(level);
    }
  }
}

TEST(TrainingPass, ThreadsDoNotChangeABit) {
  const PassRun one = run("bert_sequence", Recompute::selective, 1, 1),
                three = run("bert_sequence", Recompute::selective, 3, 1);
  EXPECT_EQ(one.grads, three.grads);
  EXPECT_EQ(one.loss, three.loss);
}

TEST(TrainingPass, FullRecomputeNeedsLeastMemory) {
  ModelShape shape = read_shape(golden_models() / "bert_sequence");
  shape.layers = 12;  // with few layers, the working set of one layer hides the kept tensors
  int64_t before = INT64_MAX;
  for (const Recompute level : kRecomputeLevels) {
    const TrainPassPlan plan = plan_train_pass(shape, Precision::bf16, level, device::DeviceKind::cuda,
                                               device::Isa::generic, 1, {4096, 256, 40});
    EXPECT_LE(static_cast<double>(plan.placement.peak_bytes),
              1.1 * static_cast<double>(plan.placement.lower_bound_bytes));
    EXPECT_LT(plan.arena_bytes(), before);
    before = plan.arena_bytes();
  }
}

// Evaluation between steps runs the inference plan with training's weights: both must make the same allocations in the
// same order.
TEST(TrainState, EvaluationMakesThePlannedAllocations) {
  for (const std::string& name : golden_names("gradients.json")) {
    ModelShape shape = read_shape(golden_models() / name);
    for (const bool both : {false, true}) {
      if (both) shape.sequence_classes = shape.token_classes = 3;
      for (const auto target : {device::DeviceKind::cpu, device::DeviceKind::cuda})
        for (const Output output : {Output::sequence_logits, Output::token_logits}) {
          if ((output == Output::token_logits ? shape.token_classes : shape.sequence_classes) == 0) continue;
          std::vector<std::vector<int64_t>> asked;
          const Precision precision = target == device::DeviceKind::cuda ? Precision::bf16 : Precision::fp32;
          for (const Params& weights : {describe_weights(shape, precision, target, device::best_isa()),
                                        describe_train_params(shape, precision, target, device::best_isa())}) {
            memory::LifetimeRecorder recorder;
            device::NullStream stream(&recorder, target, device::best_isa());
            Exec exec{stream, recorder, activation_type(precision, target), precision, 1};
            forward(exec, *make_architecture(shape), weights, describe_batch(64, 4, 20), output);
            asked.emplace_back();
            for (const memory::Lifetime& life : recorder.lifetimes()) asked.back().push_back(life.bytes);
          }
          EXPECT_EQ(asked[0], asked[1]) << name << " " << device_kind_name(target);
        }
    }
  }
}

// Moments on the host are streamed through windows; weights and moments after several steps match bit for bit.
TEST(TrainState, MomentsOnTheHostGiveTheSameBits) {
  auto device = device::open_cpu_device(1);
  const ModelShape shape = read_shape(golden_models() / "bert_sequence");
  std::vector<std::vector<float>> weights;
  std::vector<std::vector<std::byte>> moments;
  for (const Moments place : {Moments::device, Moments::host}) {
    TrainState state(*device, shape, Precision::fp32, Optimizer::adamw, place);
    auto stream = device->make_stream();
    state.upload(*stream, std::vector<float>(static_cast<size_t>(state.layout().elements()), 1.0f));
    for (int step = 1; step <= 3; ++step) {
      for (const Param& p : state.params())
        for (int64_t i = 0; i < (p.grad ? p.grad.elements() : 0); ++i)
          p.grad.as<float>()[i] = static_cast<float>((i * 7 + step) % 11 - 5);
      StepSettings settings;
      settings.lr = 0.1f;
      settings.weight_decay = 0.01f;
      settings.step = step;
      state.step(*stream, settings, 1);
    }
    weights.push_back(state.download(*stream));
    std::vector<std::byte> copy, &all = moments.emplace_back();
    for (const auto part : state.moments_on_host(*stream, copy)) all.insert(all.end(), part.begin(), part.end());
  }
  EXPECT_EQ(weights[0], weights[1]);
  EXPECT_TRUE(moments[0] == moments[1]);
}

// Parameters after three steps with dropout, by index. `ignored`: their gradients are set to zero.
std::vector<std::vector<float>> train_golden(const std::string& name, const Freeze& freeze, Recompute recompute,
                                             const std::vector<size_t>& ignored) {
  auto device = device::open_cpu_device(1);
  GoldenTraining training(*device, name, Precision::fp32, 1, 0.3f, freeze);
  TrainState& state = training.state();
  std::vector<size_t> rows(training.sequences());
  std::iota(rows.begin(), rows.end(), size_t{0});
  for (int64_t step = 1; step <= 3; ++step) {
    training.pass(rows, recompute, 1 / training.weight(rows));
    for (const size_t i : ignored)
      if (const tensor::TensorView& g = state.params()[i].grad) std::fill_n(g.as<float>(), g.elements(), 0.0f);
    state.step(training.stream(), {.lr = 1e-2f, .max_grad_norm = 0, .step = step}, 1);
  }
  const std::vector<float> all = state.download(training.stream());
  std::vector<std::vector<float>> values;
  for (size_t i = 0; i < state.layout().params.size(); ++i) {
    const float* at = all.data() + state.layout().offset[i];
    values.emplace_back(at, at + state.layout().params[i].elements());
  }
  return values;
}

TEST(TrainState, FrozenParametersKeepTheirBitsAndOthersTrainAsBefore) {
  using Part = Freeze::Part;
  const std::vector<std::pair<const char*, Freeze>> cases = {
      {"bert_sequence", {Part::embeddings}},         {"bert_token", {Part::layers, 1}},
      {"albert_sequence", {Part::embeddings}},       {"albert_groups", {Part::all_but_head}},
      {"electra_sequence", {Part::embeddings}},      {"mpnet_sequence", {Part::layers, 1}},
      {"deberta_sequence", {Part::layers, 1}},       {"deberta_convolution", {Part::embeddings}},
      {"deberta_convolution", {Part::layers, 1}},    {"modernbert_sequence", {Part::layers, 1}},
      {"modernbert_sequence", {Part::all_but_head}}, {"modernbert_mean", {Part::embeddings}}};
  for (const auto& [name, freeze] : cases) {
    SCOPED_TRACE(fmt::format("{} {}", name, static_cast<int>(freeze.part)));
    ModelShape shape = read_shape(golden_models() / name);
    shape.freeze = freeze;
    const std::vector<ParamSpec> params = model_params(shape);
    std::vector<size_t> frozen;
    for (size_t i = 0; i < params.size(); ++i)
      if (params[i].frozen) frozen.push_back(i);
    ASSERT_FALSE(frozen.empty());
    const auto all = train_golden(name, {}, Recompute::none, frozen);
    for (const Recompute level : {Recompute::none, Recompute::selective, Recompute::full})
      EXPECT_EQ(train_golden(name, freeze, level, {}), all) << recompute_name(level);
  }
}

TEST(TrainState, FrozenParametersSaveMemory) {
  ModelShape shape = read_shape(golden_models() / "bert_sequence");
  shape.layers = 12;
  using Part = Freeze::Part;
  for (const auto target : {device::DeviceKind::cpu, device::DeviceKind::cuda}) {
    const Precision precision = target == device::DeviceKind::cuda ? Precision::bf16 : Precision::fp32;
    int64_t state = INT64_MAX, pass = INT64_MAX, weights = 0;
    for (const Freeze& freeze :
         {Freeze{}, Freeze{Part::embeddings}, Freeze{Part::layers, 6}, Freeze{Part::all_but_head}}) {
      shape.freeze = freeze;
      const SlabLayout layout = slab_layout(shape);
      const memory::TagBytes bytes =
          train_state_bytes(shape, precision, Optimizer::adamw, Moments::device, target, device::Isa::generic);
      EXPECT_EQ(bytes[memory::Tag::master], 4 * layout.trained());
      EXPECT_EQ(bytes[memory::Tag::gradients], 4 * layout.trained());
      EXPECT_EQ(bytes[memory::Tag::optimizer], 8 * layout.trained());
      if (!freeze) weights = bytes[memory::Tag::weights];
      const int64_t frozen = target == device::DeviceKind::cpu ? 4 * (layout.elements() - layout.trained()) : 0;
      EXPECT_EQ(bytes[memory::Tag::weights], weights + frozen);
      EXPECT_LT(bytes.total(), state);
      state = bytes.total();
      const int64_t arena =
          plan_train_pass(shape, precision, Recompute::none, target, device::Isa::generic, 1, {4096, 256, 40})
              .arena_bytes();
      EXPECT_LE(arena, pass);
      pass = arena;
    }
  }
}

TEST(TrainState, StepsFollowTheGradientAndKeepNormsUndecayed) {
  auto device = device::open_cpu_device(1);
  const ModelShape shape = read_shape(golden_models() / "bert_sequence");
  for (const Optimizer optimizer : {Optimizer::adamw, Optimizer::adamw_8bit}) {
    TrainState state(*device, shape, Precision::fp32, optimizer);
    auto stream = device->make_stream();
    std::vector<float> master(static_cast<size_t>(state.layout().elements()), 1.0f);
    state.upload(*stream, master);
    StepSettings step;
    step.lr = 0.1f;
    step.weight_decay = 0.5f;
    state.step(*stream, step, 1);  // zero gradients: only weight decay has an effect
    const auto after = state.download(*stream);
    EXPECT_FLOAT_EQ(after[0], 1 - 0.1f * 0.5f);                                                      // a matrix
    EXPECT_FLOAT_EQ(after[static_cast<size_t>(state.layout().begin[SlabLayout::undecayed])], 1.0f);  // a bias or norm
  }
}

}  // namespace
}  // namespace brim::model
