// SPDX-License-Identifier: Apache-2.0
// Tests whole models on the GPU: golden models of every family and head against transformers, batch invariance, bitwise
// repeatability, constant memory use and device loss. Needs a GPU; the CPU paths are tested in engine_test.cc.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <fstream>
#include <random>
#include <thread>

#include "base/clock.h"
#include "base/env.h"
#include "base/error.h"
#include "base/test_files.h"
#include "base/token.h"
#include "device/cuda/testing.h"
#include "device/cuda_info.h"
#include "engine/device_queue.h"
#include "engine/engine.h"
#include "engine/run_stats.h"
#include "hub/model_dir.h"
#include "memory/ledger.h"
#include "model/golden_models.h"
#include "plan/card_measure.h"

namespace brim::engine {

using memory::Ledger;
using model::Output;
using ops::Precision;

namespace {

namespace fs = std::filesystem;

struct Setting {
  std::string model;
  Output output;
};
std::vector<Setting> golden_settings() {
  std::vector<Setting> all;
  for (const std::string& name : model::golden_names("gradients.json")) {
    const bool tags = model::read_shape(model::golden_models() / name).token_classes > 0;
    all.push_back({name, tags ? Output::token_logits : Output::sequence_logits});
  }
  return all;
}

const device::CudaInfo& card() {
  static const auto device = device::open_cuda_device(0);
  return cuda_info(*device);
}
// GPUs without bf16 (or kernels for it) run fp16.
const char* half() { return card().bf16 ? "bf16" : "fp16"; }

std::vector<float> run_golden(const Setting& setting, ops::Precision precision) {
  const std::shared_ptr<device::Device> device = device::open_cuda_device(0);
  const fs::path dir = model::golden_models() / setting.model;
  const model::ModelShape shape = model::read_shape(dir);
  batch::PackedBatch batch;
  for (const auto& ids :
       model::golden_json(setting.model, "golden.json")["ids"].get<std::vector<std::vector<int32_t>>>())
    batch.add({ids.data(), static_cast<int32_t>(ids.size()), 0}, shape.position_offset);
  batch.finish();
  plan::Plan plan;
  plan.precision = precision;
  plan.output = setting.output;
  plan.token_budget = batch.tokens();
  plan.max_sequences = batch.sequences();
  plan.max_length = shape.max_tokens();
  plan.staging_depth = 2;
  plan.add(memory::Tag::weights, "model",
           layout_weights(shape, precision, device::DeviceKind::cuda, device::Isa::generic, {}, nullptr).bytes);
  const model::ForwardPlan forward =
      plan_forward(shape, precision, device::DeviceKind::cuda, device::Isa::generic, 1, plan.limits(), setting.output);
  QueueSize size;
  size.cover(plan, {forward}, shape);
  DeviceQueue queue(device, size);
  ModelHost model(dir, {}, hub::model_facts(dir), shape, plan, {forward}, queue);
  model.load();
  // Fill with NaN: every value that is read must have been written.
  const std::vector<uint8_t> poison(static_cast<size_t>(forward.arena_bytes()), 0xFF);
  queue.stream().copy(queue.arena(), poison.data(), poison.size());
  std::vector<float> got;
  const auto collect = [&](const batch::PackedBatch& done, const float* result, double) {
    got.assign(result, result + (is_per_token(setting.output) ? done.tokens() : done.sequences()) * model.width());
  };
  queue.submit(model, batch, collect);
  queue.finish();
  return got;
}

// Each of the two layers rounds a value about eight times; logits are sums of such values, so their error stays below 2
// × 8 roundings of their size. The fp32 tolerance is the usual one of transformers.
TEST(EngineCuda, MatchesTransformersForEveryFamilyAndHead) {
  BRIM_NEEDS_GPU();
  for (const Setting& setting : golden_settings()) {
    std::vector<float> want;
    const auto golden = model::golden_json(setting.model, "golden.json");
    for (const auto& rows : golden["rows"])
      for (const auto& row : rows)
        for (const float v : row.get<std::vector<float>>()) want.push_back(v);
    float size = 0;
    for (const float v : want) size = std::max(size, std::abs(v));
    std::vector<std::pair<Precision, float>> arithmetics{{Precision::fp32, 1e-4f},
                                                         {Precision::fp16, 16 * 0x1p-11f * size}};
    if (card().tf32) arithmetics.emplace_back(Precision::tf32, 16 * 0x1p-11f * size);
    if (card().bf16) arithmetics.emplace_back(Precision::bf16, 16 * 0x1p-8f * size);
    for (const auto& [precision, tolerance] : arithmetics) {
      const auto got = run_golden(setting, precision);
      ASSERT_EQ(got.size(), want.size()) << setting.model;
      float worst = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_FALSE(std::isnan(got[i])) << setting.model << " " << precision_name(precision) << " " << i;
        worst = std::max(worst, std::abs(got[i] - want[i]));
      }
      EXPECT_LE(worst, tolerance) << setting.model << " " << precision_name(precision);
    }
  }
}

// Rounding operands to three mantissa bits causes most of the fp8 error, so a correct kernel comes close to the
// error of PyTorch with the same rounding (fp8_rms), from both sides. The surrounding bf16 adds its own error, and is
// the only one if a width is not supported in fp8.
TEST(EngineCuda, Fp8ErrorMatchesItsFormat) {
  BRIM_NEEDS_GPU();
  if (!card().fp8) GTEST_SKIP() << "the card has no fp8";
  for (const Setting& setting : golden_settings()) {
    const auto golden = model::golden_json(setting.model, "golden.json");
    if (!golden.contains("fp8_rms")) continue;
    const auto got = run_golden(setting, Precision::fp8);
    double squares = 0, size = 0;
    size_t i = 0;
    for (const auto& rows : golden["rows"])
      for (const auto& row : rows)
        for (const double v : row.get<std::vector<double>>()) {
          ASSERT_FALSE(std::isnan(got.at(i))) << setting.model << " " << i;
          size = std::max(size, std::abs(v));
          squares += std::pow(got[i++] - v, 2);
        }
    ASSERT_EQ(got.size(), i) << setting.model;
    const double rms = std::sqrt(squares / static_cast<double>(i)), format = golden["fp8_rms"];
    EXPECT_LE(rms, 1.5 * format + 4 * 0x1p-8 * size) << setting.model;
    if (format > 0) {
      EXPECT_GE(rms, format / 3) << setting.model << ": the products did not run in fp8";
    }
  }
}

// A code is within 1/254 of the largest value of its row or block; over two layers of sums of such values, the error of
// a logit stays below a tenth of the logits' size on the CPU, whose rows are quantised in the same way.
TEST(EngineCuda, Int8StaysCloseToTransformers) {
  BRIM_NEEDS_GPU();
  for (const Setting& setting : golden_settings()) {
    const auto got = run_golden(setting, Precision::int8);
    double squares = 0, wanted = 0;
    size_t i = 0;
    const auto golden = model::golden_json(setting.model, "golden.json");
    for (const auto& rows : golden["rows"])
      for (const auto& row : rows)
        for (const float v : row.get<std::vector<float>>()) {
          ASSERT_TRUE(std::isfinite(got[i])) << setting.model << " " << i;
          squares += std::pow(got[i++] - v, 2);
          wanted += v * v;
        }
    ASSERT_EQ(got.size(), i) << setting.model;
    EXPECT_LE(std::sqrt(squares), 0.1 * std::sqrt(wanted)) << setting.model;
  }
}

// The default model is part of every checkout.
std::unique_ptr<Engine> open_default(const std::string& precision, const std::string& limit = "2GiB",
                                     bool deterministic = false) {
  EngineOptions options;
  options.model_dir = fs::path(BRIM_SOURCE_DIR) / "models" / "default";
  options.device = device::read_device("cuda");
  options.precision = plan::read_precision(precision);
  options.memory_limit = plan::MemoryLimit::read(limit);
  options.deterministic = deterministic;
  return Engine::open(options);
}

std::vector<std::string> made_up_texts(size_t count, size_t longest) {
  static const char* const words[] = {"the",  "film",  "was", "awful", "lovely", "I",    "hate", "love",
                                      "this", "today", "meh", "not",   "so",     "good", "rain", "bus"};
  std::mt19937 random(7);
  std::vector<std::string> texts(count);
  for (auto& t : texts)
    for (size_t n = 1 + random() % longest; n > 0; --n)
      t += std::string(t.empty() ? "" : " ") + words[random() % std::size(words)];
  return texts;
}

std::vector<std::vector<float>> scores(Engine& engine, const std::vector<std::string>& texts) {
  return engine.score(std::vector<std::string_view>(texts.begin(), texts.end()));
}

// bf16 has 8 bits of precision; over six layers a probability changes by less than 0.01 (docs/numerics.md).
TEST(EngineCuda, ScoresDoNotDependOnTheBatch) {
  BRIM_NEEDS_GPU();
  for (const auto& [precision, tolerance] : {std::pair{"fp32", 1e-4f}, {"bf16", 0.02f}, {"fp16", 0.004f}}) {
    if (std::string(precision) == "bf16" && !card().bf16) continue;
    const auto engine = open_default(precision);
    const auto texts = made_up_texts(40, 20);
    auto crowd = made_up_texts(400, 300);
    crowd.insert(crowd.begin() + 100, texts.begin(), texts.end());
    const auto together = scores(*engine, texts), among = scores(*engine, crowd);
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto alone = scores(*engine, {texts[i]})[0];
      for (const auto& other : {together[i], among[100 + i]}) {
        float gap = 1, worst = 0;
        const auto best = std::max_element(alone.begin(), alone.end());
        for (size_t k = 0; k < alone.size(); ++k) {
          worst = std::max(worst, std::abs(alone[k] - other[k]));
          if (alone.begin() + static_cast<std::ptrdiff_t>(k) != best) gap = std::min(gap, *best - alone[k]);
        }
        EXPECT_LE(worst, tolerance) << precision << " " << texts[i];
        if (gap > 2 * tolerance) {
          EXPECT_EQ(std::max_element(other.begin(), other.end()) - other.begin(), best - alone.begin())
              << precision << " " << texts[i];
        }
      }
    }
  }
}

// The default model is stored in int8, so that only the activations differ.
TEST(EngineCuda, Int8LabelsAgreeWithFp32) {
  BRIM_NEEDS_GPU();
  const auto texts = made_up_texts(4000, 40);
  const auto want = scores(*open_default("fp32"), texts), got = scores(*open_default("int8"), texts);
  size_t equal = 0;
  float most = 0;
  const auto label = [](const std::vector<float>& s) { return std::max_element(s.begin(), s.end()) - s.begin(); };
  for (size_t i = 0; i < texts.size(); ++i) {
    equal += label(want[i]) == label(got[i]);
    for (size_t k = 0; k < got[i].size(); ++k) most = std::max(most, std::abs(want[i][k] - got[i][k]));
  }
  EXPECT_GE(static_cast<double>(equal), 0.98 * static_cast<double>(texts.size()));
  EXPECT_GT(most, 1e-3f) << "the products did not run in int8";
}

// Alone, a text runs in a small graph; in a batch it is one row among thousands. The bits must be equal, also under
// another limit.
TEST(EngineCuda, DeterministicScoresAreBitwiseBatchInvariant) {
  BRIM_NEEDS_GPU();
  std::vector<std::string> precisions = {"fp32", "fp16"};
  if (card().bf16) precisions.insert(precisions.end(), {"tf32", "bf16"});
  if (card().fp8) precisions.push_back("fp8");
  precisions.push_back("int8");
  for (const auto& precision : precisions) {
    const auto engine = open_default(precision, "2GiB", true);
    auto texts = made_up_texts(2000, 40);
    const auto longer = made_up_texts(60, 300);
    texts.insert(texts.begin() + 500, longer.begin(), longer.end());
    const auto together = scores(*engine, texts);
    for (size_t i = 0; i < texts.size(); i += 41) {
      EXPECT_EQ(scores(*engine, {texts[i]})[0], together[i]) << precision << " " << i;
      EXPECT_EQ(scores(*engine, {texts.begin() + static_cast<std::ptrdiff_t>(i),
                                 texts.begin() + static_cast<std::ptrdiff_t>(std::min(i + 17, texts.size()))})[0],
                together[i])
          << precision << " " << i;
    }
    EXPECT_EQ(scores(*open_default(precision, "1GiB", true), texts), together) << precision;
  }
}

TEST(EngineCuda, SamePlanGivesTheSameBits) {
  BRIM_NEEDS_GPU();
  const auto texts = made_up_texts(3000, 60);
  for (const char* precision : {"fp32", half()}) {
    const auto first = scores(*open_default(precision), texts), second = scores(*open_default(precision), texts);
    EXPECT_EQ(first, second) << precision;
  }
}

TEST(EngineCuda, BulkScoresGiveTheSameBytesUnderConcurrentLoad) {
  BRIM_NEEDS_GPU();
  ScorerOptions options;
  options.model = (fs::path(BRIM_SOURCE_DIR) / "models" / "default").string();
  options.device = "cuda";
  options.precision = half();
  options.memory_limit = "2GiB";
  const auto scorer = Scorer::open(options);
  const auto texts = made_up_texts(60'000, 60), others = made_up_texts(64, 30);
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  const Predictions alone = scorer->score(views);
  for (int round = 0; round < 10; ++round) {
    std::atomic<bool> ended{false};
    std::atomic<int> submitted{0};
    std::vector<std::thread> callers;
    for (int t = 0; t < 1 + round % 8; ++t)
      callers.emplace_back([&, t] {
        for (size_t i = static_cast<size_t>(t); !ended; i = (i + 7) % others.size(), ++submitted)
          EXPECT_FALSE(scorer->submit({.text = others[i]}).get().error);
      });
    while (submitted == 0) std::this_thread::yield();
    EXPECT_EQ(scorer->score(views).scores, alone.scores) << round;
    ended = true;
    for (auto& caller : callers) caller.join();
  }
}

TEST(EngineCuda, MemoryStaysConstantAfterOpening) {
  BRIM_NEEDS_GPU();
  const auto engine = open_default(half());
  (void)scores(*engine, {"warm"});  // captures the graphs
  const int64_t before = engine->device().memory().free_bytes;
  for (const size_t count : {1, 2, 7, 40, 300, 5000})
    (void)scores(*engine, made_up_texts(count, count == 300 ? 400 : 30));
  EXPECT_EQ(engine->device().memory().free_bytes, before) << "was another process on the card?";
  EXPECT_GT(engine->plan().bytes[memory::Tag::graphs], 0);  // graphs are part of the plan
}

// Sized for exactly the given input, the engine takes less GPU memory. It multiplies without the library, whose
// summation order differs.
TEST(EngineCuda, FewTextsRunAsOneBatchWithTheSameScores) {
  BRIM_NEEDS_GPU();
  for (const size_t count : {3, 60, 100}) {  // launched as a graph of few texts, of many texts, and op by op
    const auto texts = made_up_texts(count, 30);
    EngineOptions options;
    options.model_dir = fs::path(BRIM_SOURCE_DIR) / "models" / "default";
    options.device = device::read_device("cuda");
    options.memory_limit = plan::MemoryLimit::read("2GiB");
    const auto usual = Engine::open(options);
    for (const std::string& text : texts) options.input_bytes += static_cast<int64_t>(text.size()) + 1;
    const auto few = Engine::open(options);
    EXPECT_LT(few->plan().token_budget, usual->plan().token_budget);
    EXPECT_LT(few->plan().peak_bytes, usual->plan().peak_bytes);
    const auto got = scores(*few, texts), want = scores(*usual, texts);
    ASSERT_EQ(got.size(), want.size());
    for (size_t t = 0; t < want.size(); ++t)
      for (size_t c = 0; c < want[t].size(); ++c) EXPECT_NEAR(got[t][c], want[t][c], 0.03) << "text " << t;
    options.deterministic = true;  // fixes the algorithm, which requires the library
    const auto fixed = Engine::open(options);
    options.input_bytes = 0;
    EXPECT_EQ(scores(*fixed, texts), scores(*Engine::open(options), texts));
  }
}

// An idle GPU is released completely and reopened for the next text.
TEST(EngineCuda, ClosedDeviceHoldsNoMemoryAndReopensWithTheSameBits) {
  BRIM_NEEDS_GPU();
  const auto texts = made_up_texts(300, 30);
  EngineOptions options;
  options.model_dir = fs::path(BRIM_SOURCE_DIR) / "models" / "default";
  options.device = device::read_device("cuda");
  options.memory_limit = plan::MemoryLimit::read("2GiB");
  options.parked_bytes = int64_t{1} << 30;
  const auto engine = Engine::open(options);
  device::Device& device = engine->device();
  const int64_t before = held_bytes(device).value_or(0);
  const auto want = scores(*engine, texts);
  for (int round = 0; round < 5; ++round) {
    EXPECT_FALSE(engine->close_device()) << "its model is there";
    engine->park();
    EXPECT_EQ(engine->host().residence(), Residence::parked);
    ASSERT_TRUE(engine->close_device());
    EXPECT_EQ(engine->host().residence(), Residence::disk);
    EXPECT_EQ(device.allocated_bytes(), 0);
    EXPECT_LE(held_bytes(device), 0) << "the driver counts nothing for this process, or does not tell";
    EXPECT_EQ(Ledger::of(device).reserved_bytes(), 0);
    EXPECT_EQ(scores(*engine, texts), want) << round;
    EXPECT_LE(held_bytes(device), before + (int64_t{64} << 20)) << round;
  }
}

TEST(EngineCuda, TwoModelsShareADeviceUnderOneLimit) {
  BRIM_NEEDS_GPU();
  EngineOptions one;
  one.model_dir = fs::path(BRIM_SOURCE_DIR) / "models" / "default";
  one.device = device::read_device("cuda");
  one.memory_limit = plan::MemoryLimit::read("2GiB");
  EngineOptions two = one;
  two.precision = plan::read_precision("fp16");
  const auto engines = Engine::open_together({one, two});
  ASSERT_EQ(engines.size(), 2u);
  const Ledger& ledger = Ledger::of(engines[0]->device());
  EXPECT_EQ(ledger.limit_bytes(), int64_t{2} << 30);
  EXPECT_LE(ledger.most_reserved_bytes(), int64_t{2} << 30);
  EXPECT_GE(ledger.reserved_bytes(), plan::planned_bytes({&engines[0]->plan(), &engines[1]->plan()}));
  const auto texts = made_up_texts(200, 30);
  const auto a = scores(*engines[0], texts), b = scores(*engines[1], texts);
  for (size_t i = 0; i < texts.size(); ++i) EXPECT_NEAR(a[i][0], b[i][0], 0.02f);
}

// Three models that do not fit together are loaded on demand, the longest idle one is unloaded, and GPU memory never
// exceeds the limit.
TEST(EngineCuda, AlternatingModelsStayUnderTheLimit) {
  BRIM_NEEDS_GPU();
  EngineOptions option;
  option.model_dir = fs::path(BRIM_SOURCE_DIR) / "models" / "default";
  option.device = device::read_device("cuda");
  option.precision = plan::read_precision("fp32");
  std::vector<EngineOptions> options(3, option);
  const auto texts = made_up_texts(64, 30);
  std::vector<std::vector<float>> want;
  int64_t limit = 0;
  {
    const auto alone = Engine::open(option);
    want = scores(*alone, texts);
    // The limit has capacity for two models' own bytes (90 MiB each), not three.
    const plan::Plan& plan = alone->plan();
    limit = plan.device.context_bytes + (int64_t{40} << 20) + total_bytes(plan.own_parts()) * 2;
  }
  for (EngineOptions& o : options) o.memory_limit = plan::MemoryLimit::read(fmt::format("{}MiB", limit >> 20));
  const auto engines = Engine::open_together(options, plan::Residency::in_turn);
  device::Device& device = engines[0]->device();
  std::mt19937 random(1);
  int64_t most = 0;
  for (int turn = 0; turn < 200; ++turn) {
    const auto got = scores(*engines[random() % engines.size()], texts);
    most = std::max(most, held_bytes(device).value_or(0));
    for (size_t i = 0; i < texts.size(); ++i) ASSERT_NEAR(got[i][0], want[i][0], 1e-5f) << turn;
  }
  EXPECT_LE(most, limit);
  EXPECT_LE(memory::Ledger::of(device).most_reserved_bytes(), limit);
  int64_t loads = 0;
  for (const auto& engine : engines) loads += engine->host().loads();
  EXPECT_GT(loads, 20) << "all of them fitted";
}

// Weights are parked in host memory and restored byte for byte, while GPU memory never exceeds the limit.
TEST(EngineCuda, ParkingLoadingAndSwitchingStayUnderTheLimit) {
  BRIM_NEEDS_GPU();
  EngineOptions option;
  option.model_dir = fs::path(BRIM_SOURCE_DIR) / "models" / "default";
  option.device = device::read_device("cuda");
  option.precision = plan::read_precision("fp32");
  option.memory_limit = plan::MemoryLimit::read("2GiB");
  option.parked_bytes = int64_t{200} << 20;  // capacity for two of the three
  const auto engines = Engine::open_together(std::vector<EngineOptions>(3, option), plan::Residency::in_turn);
  device::Device& device = engines[0]->device();
  const auto texts = made_up_texts(64, 30);
  const auto want = scores(*engines[0], texts);
  std::mt19937 random(2);
  int parked = 0;
  double seconds = 0;
  for (int step = 0; step < 500; ++step) {
    Engine& engine = *engines[random() % engines.size()];
    const bool was_parked = engine.host().residence() == Residence::parked;
    if (random() % 3 == 0) {
      engine.park();
      continue;
    }
    const int64_t begin = now_ns();
    engine.load_weights();
    if (was_parked) {
      ++parked;
      seconds += seconds_since(begin);
    }
    ASSERT_LE(held_bytes(device), int64_t{2} << 30) << step;
    if (step % 5 != 0) continue;
    const auto got = scores(engine, texts);
    for (size_t i = 0; i < texts.size(); ++i) ASSERT_NEAR(got[i][0], want[i][0], 1e-5f) << step;
  }
  ASSERT_GT(parked, 20);
  fmt::print("{} times back from host memory, {:.2f} ms each\n", parked, seconds / parked * 1e3);
  EXPECT_LE(memory::Ledger::of(device).most_reserved_bytes(), int64_t{2} << 30);
}

TEST(EngineCuda, ModelOfAnotherShapeJoinsTheQueue) {
  BRIM_NEEDS_GPU();
  EngineOptions option;
  option.model_dir = fs::path(BRIM_SOURCE_DIR) / "models" / "default";
  option.device = device::read_device("cuda");
  option.precision = plan::read_precision("fp32");
  option.memory_limit = plan::MemoryLimit::read("2GiB");
  const TempDir temp;
  const std::vector<std::string_view> texts{"w5 w6 w7", "w8"};
  for (const char* model : {"bert_head32", "distilbert_sequence", "albert_sequence"}) {
    EngineOptions another = option;
    another.model_dir = temp.path() / model;
    model::put_golden_model(another.model_dir, model);
    const auto want = Engine::open(another)->score(texts);
    const auto engine = Engine::open(option);
    const auto joined = Engine::open_beside(*engine, another);
    EXPECT_EQ(&Ledger::of(joined->device()), &Ledger::of(engine->device())) << "one limit for both";
    const auto got = joined->score(texts);
    for (size_t t = 0; t < texts.size(); ++t)
      for (size_t k = 0; k < want[t].size(); ++k) EXPECT_NEAR(got[t][k], want[t][k], 1e-5f) << model;
    joined->park();
    EXPECT_EQ(joined->score(texts), got) << "loads again";
    EXPECT_LE(held_bytes(engine->device()), int64_t{2} << 30);
  }
}

TEST(EngineCuda, ReplansForALargerContext) {
  BRIM_NEEDS_GPU();
  const TempDir cache;
  const auto before = env("BRIM_CACHE");
  ::setenv("BRIM_CACHE", cache.path().c_str(), 1);
  {  // simulates a child process that measured 3 MiB
    const auto device = device::open_cuda_device(0);
    const auto precision = ops::precision_from_name(half()).value();
    ASSERT_TRUE(
        plan::found_larger_context(*device, precision, 0, device->allocated_bytes() + (1 << 20), "for this test"));
  }
  EXPECT_GT(open_default(half())->plan().device.context_bytes, int64_t{64} << 20);
  before ? ::setenv("BRIM_CACHE", before->c_str(), 1) : ::unsetenv("BRIM_CACHE");
}

TEST(EngineCuda, PlanThatFillsItsLimitIsNotRejectedForRounding) {
  BRIM_NEEDS_GPU();
  EngineOptions options;
  options.model_dir = fs::path(BRIM_SOURCE_DIR) / "models" / "default";
  options.device = device::read_device("cuda");
  options.memory_limit = plan::MemoryLimit::read("2GiB");
  const int64_t planned = Engine::open(options)->plan().peak_bytes;
  options.memory_limit = plan::MemoryLimit::read(std::to_string(planned) + "B");
  const auto tight = Engine::open(options);
  const Ledger& ledger = Ledger::of(tight->device());
  EXPECT_EQ(ledger.reserved_bytes(), tight->plan().peak_bytes) << "rounding beyond what the context has for it";
  EXPECT_EQ(scores(*tight, {"fine"}).size(), 1u);
}

// Labels and entities from one pass, as a graph and op by op, equal those of separate passes on the CPU.
TEST(EngineCuda, BothHeadsShareOnePass) {
  BRIM_NEEDS_GPU();
  const TempDir temp;
  ScorerOptions options;
  options.model = (temp.path() / "classifier").string();
  options.tagger = (temp.path() / "tagger").string();
  options.precision = "fp32";
  options.device = "cuda";
  options.memory_limit = "4GiB";
  model::put_golden_model(options.model, "bert_sequence");
  model::put_tagger_twin(options.tagger, "bert_sequence");
  const auto both = Scorer::open(options);
  options.device = "cpu";
  const std::string tagger = std::exchange(options.tagger, "");
  const auto classifier = Scorer::open(options);
  options.model = tagger;
  const auto finder = Scorer::open(options);
  std::string words;
  for (int i = 0; i < 200; ++i) {
    words += "w" + std::to_string(5 + i * 37 % 91) + " ";
    if (i % 20 != 0) continue;
    const Prediction label = classifier->submit({.text = words}).get();
    Request request{.text = words, .long_text = LongText::window_mean};
    const Prediction found = finder->submit(request).get();
    request.entities = true;
    const Prediction p = both->submit(request).get();
    ASSERT_FALSE(p.error) << p.error->what();
    ASSERT_EQ(p.scores.size(), label.scores.size());
    for (size_t k = 0; k < p.scores.size(); ++k) EXPECT_NEAR(p.scores[k], label.scores[k], 1e-4) << i;
    ASSERT_EQ(p.entities.size(), found.entities.size()) << i;
    for (size_t e = 0; e < p.entities.size(); ++e) EXPECT_EQ(p.entities[e].word, found.entities[e].word);
    EXPECT_NEAR(both->submit({.text = words}).get().scores[0], label.scores[0], 1e-4);
  }
  EXPECT_GT(both->work().graph_batches, 0);
}

// Token ids far outside the table make the embedding kernel read unmapped memory: a real fault. The expected exit code
// is 6.
[[noreturn]] void lose_the_device(bool full_batch) {
  device::exit_as_the_program_would([&] {
    const auto engine = open_default(half());
    batch::PackedBatch batch;
    const std::vector<int32_t> wild(500, kIdMask);
    do batch.add({wild.data(), 500, 0}, 0);
    while (full_batch && batch.tokens() + 500 <= engine->plan().token_budget);
    batch.finish();
    const auto bulk = engine->bulk([](const batch::PackedBatch&, const float*) {});
    bulk->submit(batch);
    bulk->finish();
  });
}
TEST(EngineCudaDeathTest, ReportsALostDeviceAndExits) {
  BRIM_NEEDS_GPU();
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(lose_the_device(true), ::testing::ExitedWithCode(6), "cuda:0: embedding: .*illegal");
  EXPECT_EXIT(lose_the_device(false), ::testing::ExitedWithCode(6),
              "cuda:0: an op of a small batch: .*illegal.*BRIM_SYNC=1 to identify");
  ::setenv("BRIM_SYNC", "1", 1);
  EXPECT_EXIT(lose_the_device(false), ::testing::ExitedWithCode(6), "cuda:0: embedding: ");
  ::unsetenv("BRIM_SYNC");
}

}  // namespace
}  // namespace brim::engine
