// SPDX-License-Identifier: Apache-2.0
// Plans for shapes defined here, on devices that need not be present. Golden plans are in tests/data/plans;
// BRIM_UPDATE_GOLDEN=1 rewrites them.
#include "plan/plan.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "base/env.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "base/test_files.h"
#include "batch/packed_batch.h"
#include "memory/ledger.h"
#include "model/weights.h"
#include "ops/amax.h"
#include "plan/plan_testing.h"
#include "plan/resolve.h"

namespace brim::plan {

using device::DeviceKind;
using hub::Family;
using model::ModelShape;
using model::Output;
using model::Recompute;
using ops::Precision;

namespace {

TEST(Plan, SolvesEveryFamilyTaskAndPrecisionOnSeveralCards) {
  std::vector<DeviceProfile> devices = {two_cores()};
  for (const char* name : {"rtx3050-6gb", "rtx3070", "t4", "v100", "l4", "h200"}) devices.push_back(card_profile(name));
  for (const ModelShape& model : {bert_tiny(), minilm(), distilbert(), roberta_base(), xlm_roberta()})
    for (const Task task : {Task::score, Task::train})
      for (const DeviceProfile& device : devices)
        for (const auto precision :
             {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16, Precision::fp8, Precision::int8}) {
          PlanRequest r = request(model, task, device);
          r.precision = precision;
          if (device.rate(precision) <= 0 || (task == Task::train && precision == Precision::int8)) {
            message_of([&] { solve(r); }, ErrorCode::usage);
            continue;
          }
          const Plan p = solve(r);
          expect_whole(p, r);
          EXPECT_EQ(p.precision, precision);
          EXPECT_EQ(plan_from_json(to_json(p)), p);
        }
}

TEST(Plan, SolvesTokenModelsAndHiddenStates) {
  ModelShape model = roberta_base();
  model.sequence_classes = 0;
  model.token_classes = 9;
  for (const Task task : {Task::score, Task::train}) {
    PlanRequest r = request(model, task, card_profile("rtx3070"));
    r.output = Output::token_scores;
    expect_whole(solve(r), r);
  }
  model.token_classes = 0;
  ModelShape means = modernbert();
  means.mean_pooling = true;
  for (const ModelShape& shape : {model, means})
    for (const Output output : {Output::cls_hidden, Output::mean_hidden, Output::hidden}) {
      PlanRequest r = request(shape, Task::score, two_cores());
      r.output = output;
      expect_whole(solve(r), r);
    }
}

TEST(Plan, LargerLimitIsNeverSlower) {
  for (const Task task : {Task::score, Task::train})
    for (const bool fill : {false, true})
      for (const char* card : {"rtx3070", "h200"}) {
        PlanRequest r = request(roberta_base(), task, card_profile(card));
        r.fill = fill;
        if (fill) r.recompute = Recompute::selective;
        r.limit_bytes = smallest_limit(r);
        Plan before = solve(r);
        for (int i = 0; i < (fill ? 6 : 24); ++i) {
          r.limit_bytes = r.limit_bytes * 9 / 8;
          const Plan p = solve(r);
          EXPECT_GE(p.tokens_per_second, before.tokens_per_second * (1 - 1e-12)) << card << " " << r.limit_bytes;
          EXPECT_GE(p.peak_bytes, before.peak_bytes) << card << " " << r.limit_bytes;
          if (task == Task::score || fill) {
            EXPECT_TRUE(p.token_budget >= before.token_budget || p.moments_on_host != before.moments_on_host)
                << card << " " << r.limit_bytes;
          }
          before = p;
        }
      }
}

TEST(Plan, FillUsesTheWholeLimit) {
  for (const Task task : {Task::score, Task::train}) {
    PlanRequest r = request(roberta_base(), task, card_profile("rtx3070"));
    const Plan useful = solve(r);
    r.fill = true;
    const Plan full = solve(r);
    EXPECT_GE(full.peak_bytes, useful.peak_bytes);
    expect_whole(full, r);
    if (task == Task::train) {
      EXPECT_GT(full.peak_bytes, r.limit_bytes * 9 / 10);
    }
  }
}

TEST(Plan, SmallestLimitIsExact) {
  for (const Task task : {Task::score, Task::train})
    for (const DeviceProfile& device : {card_profile("rtx3050-6gb"), two_cores()}) {
      PlanRequest r = request(roberta_base(), task, device);
      r.keep_optimizer = true;
      r.limit_bytes = smallest_limit(r);
      const Plan p = solve(r);
      EXPECT_EQ(p.peak_bytes, r.limit_bytes);
      EXPECT_EQ(p.token_budget, r.max_length);
      --r.limit_bytes;
      message_of([&] { solve(r); }, ErrorCode::does_not_fit);
    }
}

TEST(Plan, TooLargeModelErrorSuggestsAFix) {
  ModelShape huge = shape(Family::roberta, 96, 8192, 64, 250002, 514);
  PlanRequest r = request(huge, Task::train, card_profile("rtx3050-6gb"));
  const std::string text = message_of([&] { solve(r); }, ErrorCode::does_not_fit);
  EXPECT_NE(text.find("rtx3050-6gb"), std::string::npos) << text;
  EXPECT_NE(text.find("Largest part: the fp32 copy of the weights ("), std::string::npos) << text;
  EXPECT_NE(text.find("has 6.00 GiB, so no limit works"), std::string::npos) << text;
  EXPECT_EQ(text.find("`memory_limit="), std::string::npos) << "no limit above the memory of the GPU: " << text;

  // A model that fits on another card, and one that fits on this card with a higher limit.
  const std::string other = message_of(
      [&] { solve(request(shape(Family::roberta, 48, 4096, 64, 250002, 514), Task::score, card_profile("rtx3060"))); },
      ErrorCode::does_not_fit);
  EXPECT_NE(other.find("a GPU with 22.5 GiB is sufficient (a10)"), std::string::npos) << other;
  PlanRequest tight = request(roberta_large(), Task::score, card_profile("rtx3060"));
  tight.limit_bytes = smallest_limit(tight) - 1;
  EXPECT_NE(message_of([&] { solve(tight); }, ErrorCode::does_not_fit).find("`memory_limit="), std::string::npos);

  PlanRequest score = request(roberta_large(), Task::score, card_profile("l4"));
  score.limit_bytes = smallest_limit(score) - (int64_t{64} << 20);
  const std::string fits = message_of([&] { solve(score); }, ErrorCode::does_not_fit);
  EXPECT_NE(fits.find("settings that fit:"), std::string::npos) << fits;
  EXPECT_NE(fits.find("`precision=fp8`"), std::string::npos) << fits;
}

// With moments on the host, AdamW may need less GPU memory than 8-bit AdamW; on a CPU it is the other way round.
TEST(Plan, LeastLimitIsSufficient) {
  for (const DeviceProfile& device : {card_profile("rtx3070"), two_cores()}) {
    PlanRequest r = request(roberta_large(), Task::train, device);
    r.limit_bytes = least_limit(r);
    EXPECT_EQ(solve(r).peak_bytes, r.limit_bytes) << device.name;
    --r.limit_bytes;
    message_of([&] { solve(r); }, ErrorCode::does_not_fit);
  }
}

TEST(Plan, SmallInputIsOneBatch) {
  PlanRequest r = request(roberta_base(), Task::score, card_profile("h200"));
  const Plan usual = solve(r);
  for (const int64_t tokens : {600, 3400, 4321, 20000}) {
    r.most_tokens = tokens;
    const Plan few = solve(r);
    EXPECT_EQ(few.token_budget, tokens);
    EXPECT_NE(few.why[0].find(": the whole input is one batch"), std::string::npos) << few.why[0];
    EXPECT_LT(few.peak_bytes, usual.peak_bytes);
  }
  r.most_tokens = 1;  // a text may still have the maximum length
  EXPECT_EQ(solve(r).token_budget, r.max_length);
  r.most_tokens = int64_t{1} << 40;
  EXPECT_EQ(solve(r), usual);
  r.fill = true;
  const Plan filled = solve(r);
  r.most_tokens = 3400;
  EXPECT_EQ(solve(r), filled);
}

TEST(Plan, FillReportsItsLimitingFactor) {
  PlanRequest r = request(roberta_base(), Task::score, card_profile("h200"));
  r.fill = true;
  EXPECT_NE(solve(r).why.at(0).find("the maximum batch size"), std::string::npos);
  r.limit_bytes = int64_t{1} << 30;
  EXPECT_NE(solve(r).why.at(0).find("the maximum under the limit"), std::string::npos);
}

// On the CPU there is no other placement for the moments.
TEST(Plan, UsesEightBitOptimizerOnlyAsLastResortWithANote) {
  PlanRequest r = request(roberta_large(), Task::train, two_cores());
  PlanRequest exact = r;
  exact.keep_optimizer = true;
  r.limit_bytes = exact.limit_bytes = smallest_limit(exact);
  Plan p = solve(r);
  EXPECT_EQ(p.optimizer, model::Optimizer::adamw);
  EXPECT_TRUE(p.notes.empty());
  r.limit_bytes -= 1 << 20;
  p = solve(r);
  EXPECT_EQ(p.optimizer, model::Optimizer::adamw_8bit);
  ASSERT_EQ(p.notes.size(), 1u);
  EXPECT_NE(p.notes[0].find("8-bit AdamW"), std::string::npos);
  exact.limit_bytes = r.limit_bytes;
  message_of([&] { solve(exact); }, ErrorCode::does_not_fit);
}

// Between "the moments fit" and "only 8 bits fit" there is a range of limits in which moving them to the host keeps
// full precision.
TEST(Plan, MovesMomentsToTheHostBeforeQuantisingThem) {
  PlanRequest r = request(roberta_large(), Task::train, card_profile("rtx3070"));
  r.limit_bytes = int64_t{1} << 62;
  const Plan free = solve(r);
  EXPECT_FALSE(free.moments_on_host);
  int64_t kept = 0;
  for (int64_t limit = smallest_limit(r); limit < (int64_t{12} << 30); limit += int64_t{512} << 20) {
    r.limit_bytes = limit;
    const Plan p = solve(r);
    EXPECT_EQ(p.optimizer, model::Optimizer::adamw) << limit;
    EXPECT_LE(p.peak_bytes, limit);
    EXPECT_EQ(p.notes.empty(), !p.moments_on_host);
    kept += p.moments_on_host;
    EXPECT_EQ(plan_from_json(to_json(p)), p);
  }
  EXPECT_GT(kept, 0);
}

TEST(Plan, SplitsGlobalBatchIntoMicroBatches) {
  PlanRequest r = request(roberta_base(), Task::train, card_profile("rtx3070"));
  r.global_batch_tokens = 4096;
  Plan p = solve(r);
  EXPECT_LE(p.token_budget, 4096);
  EXPECT_GE(p.token_budget * p.accumulation_steps, 4096);
  EXPECT_LT(p.token_budget * (p.accumulation_steps - 1), 4096);
  r.recompute = Recompute::full;
  EXPECT_EQ(solve(r).recompute, Recompute::full);
  r.token_budget = 1000;
  p = solve(r);
  EXPECT_EQ(p.token_budget, 1000);
  EXPECT_EQ(p.accumulation_steps, 5);
}

TEST(Plan, PlacementIsCloseToItsLowerBound) {
  EXPECT_EQ(model::param_count(modernbert()), 149'607'171);  // as counted by transformers, three classes
  for (const ModelShape& model :
       {bert_tiny(), minilm(), distilbert(), roberta_base(), roberta_large(), xlm_roberta(), modernbert()})
    for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda})
      for (const int64_t tokens : {512, 8192}) {
        const model::BatchLimits limits{tokens, tokens / 4, 128};
        const Precision precision = kind == DeviceKind::cpu ? Precision::fp32 : Precision::bf16;
        const model::ForwardPlan f =
            plan_forward(model, precision, kind, device::Isa::generic, 2, limits, Output::sequence_scores);
        std::vector<memory::Placement> placements = f.layers;
        placements.insert(placements.end(), {f.whole, f.shared, f.last_layer});
        for (const memory::Placement& p : placements) {
          EXPECT_GE(p.peak_bytes, p.lower_bound_bytes);
          EXPECT_LE(static_cast<double>(p.peak_bytes), 1.10 * static_cast<double>(p.lower_bound_bytes));
        }
        for (const auto level : model::kRecomputeLevels) {
          const model::TrainPassPlan t =
              plan_train_pass(model, precision, level, kind, device::Isa::generic, 2, limits);
          EXPECT_GE(t.placement.peak_bytes, t.placement.lower_bound_bytes);
          EXPECT_LE(static_cast<double>(t.placement.peak_bytes),
                    1.10 * static_cast<double>(t.placement.lower_bound_bytes))
              << model.layers << "x" << model.hidden << " " << recompute_name(level) << " " << tokens;
        }
      }
}

// Weights are read once per batch, so a budget of a few tokens reads them many times. More tokens are never predicted
// to be slower.
TEST(Plan, SmallBudgetsCostMoreOnTheCpu) {
#if defined(__x86_64__)
  constexpr device::Isa kIsa = device::Isa::amx;
#else
  const device::Isa kIsa = device::best_isa();  // a build only has kernels for its own architecture
#endif
  const DeviceProfile cpu = estimated_cpu(kIsa, 2, int64_t{8} << 30);
  for (const ModelShape& model : {minilm(), roberta_base()})
    for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::int8}) {
      PlanRequest r = request(model, Task::score, cpu);
      r.precision = precision;
      r.max_length = 32;
      std::vector<double> speeds;
      for (const int64_t tokens : {32, 64, 96, 128, 256, 512, 1024, 2048, 4096, 8192}) {
        r.token_budget = tokens;
        speeds.push_back(solve(r).tokens_per_second);
        EXPECT_GE(speeds.back(), speeds[speeds.size() - std::min<size_t>(2, speeds.size())])
            << precision_name(precision) << " " << tokens;
      }
      r.token_budget = 32;
      // No batch is faster than reading its weights: all matrices of the layers, without the tables.
      const double matrices = 12.0 * static_cast<double>(model.layers * model.hidden * model.hidden) *
                              (precision == Precision::fp32   ? 4
                               : precision == Precision::bf16 ? 2
                                                              : 1);
      EXPECT_GE(solve(r).step_seconds, matrices / cpu.bandwidth) << precision_name(precision);
      EXPECT_LT(1.5 * speeds.front(), speeds.back()) << precision_name(precision);
    }
}

// Bytes of this process that count towards RLIMIT_DATA.
int64_t data_bytes() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("VmData:")) return std::strtoll(line.c_str() + 7, nullptr, 10) << 10;
  return -1;
}

enum ChildResult { kScored = 0, kRefused = 1, kNotEnforced = 2, kOther = 3 };

// Loads the small model and scores a full batch with `allowed` bytes above the current use.
int score_in_child(const Plan& plan, const ModelShape& model, int64_t allowed) {
  const pid_t child = ::fork();
  if (child == 0) {
    batch::PackedBatch batch;
    const std::vector<int32_t> ids(static_cast<size_t>(plan.max_length), 5);
    for (int64_t used = 0; used + plan.max_length <= plan.token_budget; used += plan.max_length)
      batch.add({ids.data(), static_cast<int32_t>(plan.max_length), 0}, model.position_offset);
    batch.finish();
    ::mallopt(M_ARENA_MAX, 1);
    // Force blocks to come from the kernel, not from memory freed by earlier tests, which is used up here.
    ::mallopt(M_MMAP_THRESHOLD, 16 << 10);
    constexpr size_t kEach = 12 << 10;
    std::vector<void*> taken(::mallinfo2().fordblks / kEach);
    for (void*& block : taken) block = std::malloc(kEach);
    const int64_t now = data_bytes();
    const rlimit limit{static_cast<rlim_t>(now + allowed), static_cast<rlim_t>(now + allowed)};
    if (now < 0 || ::setrlimit(RLIMIT_DATA, &limit) != 0) ::_exit(kNotEnforced);
    if (void* too_much = std::malloc(static_cast<size_t>(now + 2 * allowed))) {
      std::free(too_much);
      ::_exit(kNotEnforced);
    }
    int result = kOther;
    try {
      const auto device = device::open_cpu_device(1);
      const auto loaded = model::Model::load(std::string(BRIM_SOURCE_DIR) + "/tests/data/models/bert_sequence", *device,
                                             plan.precision);
      const model::ForwardPlan forward =
          plan_forward(model, plan.precision, DeviceKind::cpu, plan.device.isa, 1, plan.limits(), plan.output);
      const device::DeviceBuffer arena = memory::Ledger::allocate(*device, nullptr, forward.arena_tags(), "test");
      const auto stream = device->make_stream();
      model::ForwardRunner runner(model, loaded->weights(), forward, arena.data(), nullptr);
      const tensor::TensorView scores = runner.run(*stream, batch.view());
      result = std::isfinite(scores.as<float>()[0]) ? kScored : kOther;
    } catch (const Error& e) {
      result = e.code() == ErrorCode::does_not_fit ? kRefused : kOther;
    } catch (const std::exception&) {  // bad_alloc, or thread creation failed
      result = kRefused;
    }
    ::_exit(result);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : kOther;
}

TEST(Plan, CpuScoringStaysWithinTheKernelLimit) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "memory of sanitizers exceeds the limits";
#endif
  const ModelShape model = model::read_shape(std::string(BRIM_SOURCE_DIR) + "/tests/data/models/bert_sequence");
  PlanRequest r;
  r.shape = model;
  r.device = estimated_cpu(device::best_isa(), 1, int64_t{1} << 30);
  r.max_length = model.max_tokens();
  r.tables = table_types(model, DeviceKind::cpu);
  r.limit_bytes = int64_t{6} << 20, r.fill = true;
  const Plan plan = solve(r);
  ASSERT_GT(plan.peak_bytes, r.limit_bytes / 2);
  // Allowance for names and JSON of a 100 kB model. One more thread than planned would not fit because of its stack.
  const int64_t slack = int64_t{1} << 20;
  const int held = score_in_child(plan, model, plan.peak_bytes + slack);
  if (held == kNotEnforced) GTEST_SKIP() << "this kernel does not enforce RLIMIT_DATA";
  EXPECT_EQ(held, kScored);
  EXPECT_EQ(score_in_child(plan, model, plan.peak_bytes / 2),
            kRefused);  // the same run fails with half the bytes
}

TEST(Plan, MatchesGoldenFiles) {
  struct Case {
    const char* name;
    ModelShape shape;
  };
  for (const Case& c :
       {Case{"roberta-base", roberta_base()}, Case{"roberta-large", roberta_large()}, Case{"minilm", minilm()}})
    for (const char* card : {"rtx3050-6gb", "rtx3070", "h200"})
      for (const Task task : {Task::score, Task::train}) {
        const Plan p = solve(request(c.shape, task, card_profile(card)));
        const std::string path =
            fmt::format("{}/tests/data/plans/{}.{}.{}.json", BRIM_SOURCE_DIR, c.name, task_name(task), card);
        if (env_flag("BRIM_UPDATE_GOLDEN")) {
          std::ofstream(path) << to_json(p) << "\n";
          continue;
        }
        const Plan golden = plan_from_json(read_file(path));
        EXPECT_EQ(p.limit_bytes, golden.limit_bytes) << path;
        EXPECT_EQ(p.peak_bytes, golden.peak_bytes) << path;
        EXPECT_EQ(p.bytes.bytes, golden.bytes.bytes) << path;
        EXPECT_EQ(p.token_budget, golden.token_budget) << path;
        EXPECT_EQ(p.max_sequences, golden.max_sequences) << path;
        EXPECT_EQ(p.recompute, golden.recompute) << path;
        EXPECT_EQ(p.optimizer, golden.optimizer) << path;
        EXPECT_EQ(p.precision, golden.precision) << path;
        // Sums of doubles: the last digits may differ between compilers.
        EXPECT_NEAR(p.tokens_per_second / golden.tokens_per_second, 1, 1e-6) << path;
        EXPECT_NEAR(p.step_seconds / golden.step_seconds, 1, 1e-6) << path;
        EXPECT_EQ(p.notes, golden.notes) << path;
      }
}

// Same model and card in both precisions: the plan includes fp8 copies and scales, keeps less, and lists the products
// computed in fp8.
TEST(Plan, Fp8TrainingCountsCopiesAndKeepsLess) {
  PlanRequest r = request(roberta_base(), Task::train, card_profile("h200"));
  r.precision = Precision::bf16;
  r.token_budget = 65536;
  r.recompute = Recompute::none;
  const Plan wide = solve(r);
  r.precision = Precision::fp8;
  const Plan narrow = solve(r);
  EXPECT_EQ(narrow.bytes[memory::Tag::weights] - wide.bytes[memory::Tag::weights], 2 * 12 * 12 * 768 * 768);
  const auto scales = [](const Plan& p) {
    for (const memory::LedgerEntry& part : p.parts)
      if (part.tag == memory::Tag::workspace && part.owner == "training state") return part.bytes;
    return int64_t{0};
  };
  EXPECT_GE(scales(narrow) - scales(wide), 2 * 48 * (3 + ops::kFp8History) * 4);
  EXPECT_LT(narrow.bytes[memory::Tag::activations], wide.bytes[memory::Tag::activations]);
  EXPECT_GT(narrow.tokens_per_second, wide.tokens_per_second);
  const auto lines_on_fp8 = [](const Plan& p) {
    return std::count(p.why.begin(), p.why.end(), "all 48 encoder matmuls in fp8, the rest in bf16");
  };
  EXPECT_EQ(lines_on_fp8(narrow), 1);
  EXPECT_EQ(lines_on_fp8(wide), 0);
  RecordProperty("predicted_over_bf16", std::to_string(narrow.tokens_per_second / wide.tokens_per_second));
}

// Without dropout, a GPU adds B A to the matrices: fewer operations than full training, in training and evaluation
// passes. With dropout, the products are thin.
TEST(Plan, LoraTrainingIsPlannedWithAndWithoutDropout) {
  PlanRequest r = request(roberta_base(), Task::train, card_profile("rtx3060"));
  const Plan full = solve(r);
  r.shape.lora.rank = 8;
  r.shape.lora.targets = {"query", "value", "dense"};
  const Plan merged = solve(r);
  expect_whole(merged, r);
  EXPECT_LT(merged.peak_bytes, full.peak_bytes);
  EXPECT_GT(merged.tokens_per_second, full.tokens_per_second);
  r.shape.lora.dropout = 0.1;
  const Plan thin = solve(r);
  expect_whole(thin, r);
  EXPECT_GT(merged.tokens_per_second, thin.tokens_per_second);
}

// Same model and card in both precisions: layers' matrices take one byte per weight and a scale per row, and the plan
// includes the codes of activations and their scales.
TEST(Plan, Int8ScoringOnGpusCountsCodesAndScales) {
  PlanRequest r = request(roberta_base(), Task::score, card_profile("rtx3060"));
  r.precision = Precision::fp16;
  r.token_budget = 8192;
  const Plan wide = solve(r);
  r.precision = Precision::int8;
  const Plan narrow = solve(r);
  expect_whole(narrow, r);
  const int64_t rows = 12 * 9 * 768;
  EXPECT_NEAR(static_cast<double>(wide.bytes[memory::Tag::weights] - narrow.bytes[memory::Tag::weights]),
              12.0 * 12 * 768 * 768 - 4.0 * rows, 64 * 256);
  // At the peak of a layer, GELU's result takes one byte and 48 scales of four bytes instead of two bytes.
  EXPECT_LT(narrow.bytes[memory::Tag::activations], wide.bytes[memory::Tag::activations]);
  EXPECT_GT(narrow.bytes[memory::Tag::activations], wide.bytes[memory::Tag::activations] / 2);
  EXPECT_GT(narrow.tokens_per_second, 1.3 * wide.tokens_per_second);
}

TEST(Plan, PredictsInt8ForEveryCardWithKernels) {
  for (const DeviceProfile& card : known_cards()) {
    PlanRequest r = request(minilm(), Task::score, card);
    r.precision = Precision::int8;
    if (card.compute_capability < 75) {
      message_of([&] { solve(r); }, ErrorCode::usage);
      continue;
    }
    const Plan p = solve(r);
    EXPECT_GT(p.tokens_per_second, 0) << card.name;
    EXPECT_TRUE(std::any_of(p.why.begin(), p.why.end(), [](const std::string& line) {
      return line.find("speed is predicted") != std::string::npos && line.ends_with("data-sheet rates");
    })) << card.name;
  }
}

}  // namespace
}  // namespace brim::plan
