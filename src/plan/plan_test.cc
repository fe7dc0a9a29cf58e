// SPDX-License-Identifier: Apache-2.0
// Plans for shapes written here, on cards that need not exist. Golden plans are readable files under tests/data/plans;
// BRIM_UPDATE_GOLDEN=1 writes them anew.
#include "plan/plan.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/env.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "base/settings.h"
#include "base/test_files.h"
#include "base/thread_pool.h"
#include "batch/packed_batch.h"
#include "memory/ledger.h"
#include "model/weights.h"
#include "ops/amax.h"
#include "plan/resolve.h"

namespace brim::plan {

using device::DeviceKind;
using hub::Family;
using model::ModelShape;
using model::Output;
using model::Recompute;
using ops::Precision;

namespace {

ModelShape shape(Family family, int64_t layers, int64_t hidden, int64_t heads, int64_t vocab, int64_t positions,
                 int64_t classes = 3) {
  ModelShape s;
  s.family = family;
  s.layers = layers;
  s.hidden = hidden;
  s.heads = heads;
  s.ffn = 4 * hidden;
  s.vocab = vocab;
  s.positions = positions;
  s.types = family == Family::distilbert ? 0 : family == Family::roberta ? 1 : 2;
  s.position_offset = family == Family::roberta ? 2 : 0;
  s.sequence_classes = classes;
  return s;
}
ModelShape roberta_base() { return shape(Family::roberta, 12, 768, 12, 50265, 514); }
ModelShape roberta_large() { return shape(Family::roberta, 24, 1024, 16, 50265, 514); }
ModelShape minilm() { return shape(Family::bert, 6, 384, 12, 30522, 512); }
ModelShape bert_tiny() { return shape(Family::bert, 2, 128, 2, 30522, 512); }
ModelShape distilbert() { return shape(Family::distilbert, 6, 768, 12, 30522, 512); }
ModelShape xlm_roberta() { return shape(Family::roberta, 12, 768, 12, 250002, 514); }
ModelShape modernbert() {
  ModelShape s = shape(Family::modernbert, 22, 768, 12, 50368, 8192);
  s.ffn = 1152;
  s.types = s.position_offset = 0;
  s.gated = true;
  s.attention_bias = s.feed_forward_bias = s.norm_bias = s.head_bias = false;
  s.rope_theta = 160000;
  s.local_rope_theta = 10000;
  s.window = 64;
  for (int64_t l = 0; l < s.layers; ++l) s.local_layers |= static_cast<uint64_t>(l % 3 != 0) << l;
  return s;
}

PlanRequest request(const ModelShape& model, Task task, const DeviceProfile& device) {
  PlanRequest r;
  r.shape = model;
  r.task = task;
  r.device = device;
  r.precision = resolve_precision({}, device, task).precision;
  r.max_length = std::min<int64_t>(model.max_tokens(), task == Task::train ? 128 : 512);
  r.limit_bytes = MemoryLimit().on({device.total_bytes, device.total_bytes});
  return r;
}

DeviceProfile two_cores() { return estimated_cpu(device::Isa::generic, 2, int64_t{8} << 30); }

std::string message_of(const std::function<void()>& f, ErrorCode code) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.code()), static_cast<int>(code)) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

void expect_whole(const Plan& p, const PlanRequest& r) {
  EXPECT_EQ(p.bytes.total(), p.peak_bytes);
  EXPECT_LE(p.peak_bytes, r.limit_bytes);
  EXPECT_GE(p.token_budget, r.max_length);
  EXPECT_GT(p.tokens_per_second, 0);
  EXPECT_GT(p.step_seconds, 0);
  EXPECT_FALSE(p.why.empty());
  for (const int64_t b : p.bytes.bytes) EXPECT_GE(b, 0);
}

TEST(Plan, EveryFamilyTaskAndPrecisionOnSeveralCards) {
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

TEST(Plan, TokenModelsAndHiddenStates) {
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

TEST(Plan, MoreLimitIsNeverSlower) {
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

TEST(Plan, FillTakesWhatIsAllowed) {
  for (const Task task : {Task::score, Task::train}) {
    PlanRequest r = request(roberta_base(), task, card_profile("rtx3070"));
    const Plan useful = solve(r);
    r.fill = true;
    const Plan full = solve(r);
    EXPECT_GE(full.token_budget, useful.token_budget);
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

TEST(Plan, TooLargeModelSaysWhatWouldDo) {
  ModelShape huge = shape(Family::roberta, 96, 8192, 64, 250002, 514);
  PlanRequest r = request(huge, Task::train, card_profile("rtx3050-6gb"));
  const std::string text = message_of([&] { solve(r); }, ErrorCode::does_not_fit);
  EXPECT_NE(text.find("rtx3050-6gb"), std::string::npos) << text;
  EXPECT_NE(text.find("Largest part: the fp32 copy of the weights ("), std::string::npos) << text;
  EXPECT_NE(text.find("has 6.00 GiB, so no limit works"), std::string::npos) << text;
  EXPECT_EQ(text.find("`memory_limit="), std::string::npos) << "no limit the card cannot have: " << text;

  // One that another card holds, and one that the card itself would hold.
  const std::string other = message_of(
      [&] { solve(request(shape(Family::roberta, 48, 4096, 64, 250002, 514), Task::score, card_profile("rtx3060"))); },
      ErrorCode::does_not_fit);
  EXPECT_NE(other.find("one of 22.5 GiB does (a10)"), std::string::npos) << other;
  PlanRequest tight = request(roberta_large(), Task::score, card_profile("rtx3060"));
  tight.limit_bytes = smallest_limit(tight) - 1;
  EXPECT_NE(message_of([&] { solve(tight); }, ErrorCode::does_not_fit).find("`memory_limit="), std::string::npos);

  PlanRequest score = request(roberta_large(), Task::score, card_profile("l4"));
  score.limit_bytes = smallest_limit(score) - (int64_t{64} << 20);
  const std::string fits = message_of([&] { solve(score); }, ErrorCode::does_not_fit);
  EXPECT_NE(fits.find("would fit as it is:"), std::string::npos) << fits;
  EXPECT_NE(fits.find("`precision=fp8`"), std::string::npos) << fits;
}

// With the moments on the host AdamW may need less than with 8 bits on the card, and the other way round on a CPU.
TEST(Plan, TheLeastLimitIsTheOneThatFits) {
  for (const DeviceProfile& device : {card_profile("rtx3070"), two_cores()}) {
    PlanRequest r = request(roberta_large(), Task::train, device);
    r.limit_bytes = least_limit(r);
    EXPECT_EQ(solve(r).peak_bytes, r.limit_bytes) << device.name;
    --r.limit_bytes;
    message_of([&] { solve(r); }, ErrorCode::does_not_fit);
  }
}

TEST(DeviceProfile, CardsAreKnownByTheNamesPeopleGiveThem) {
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
    EXPECT_NE(notes[0].find("several sizes"), std::string::npos) << notes[0];
  }
  const auto refused = [](const char* name) { return message_of([&] { card_profile(name); }, ErrorCode::usage); };
  EXPECT_NE(refused("RTX 3071").find("did you mean rtx3070?"), std::string::npos);
  EXPECT_NE(refused("rtx3060-16gb").find("known are rtx3060-8gb (8.00 GiB), rtx3060 (12.0 GiB)"), std::string::npos)
      << refused("rtx3060-16gb");
  EXPECT_NE(refused("rtx5090 laptop").find("no such card"), std::string::npos);
}

TEST(DeviceProfile, ADriversNameFindsItsCard) {
  const auto found = [](const char* name, int64_t mib) -> std::string {
    const DeviceProfile* card = find_card(name, mib << 20);
    return card == nullptr ? "" : card->name;
  };
  EXPECT_EQ(found("NVIDIA GeForce RTX 4060 Ti", 16380), "rtx4060ti-16gb");
  EXPECT_EQ(found("NVIDIA GeForce RTX 3060 Laptop GPU", 6144), "rtx3060-laptop");
  EXPECT_EQ(found("NVIDIA A100-PCIE-40GB", 40536), "a100-40gb");
  EXPECT_EQ(found("NVIDIA H100 80GB HBM3", 81559), "h100");
  EXPECT_EQ(found("NVIDIA RTX A6000", 49140), "a6000");
  EXPECT_EQ(found("NVIDIA GeForce RTX 5090 Laptop GPU", 24463), "");  // its desktop namesake is another chip
  EXPECT_EQ(found("NVIDIA A10G", 23028), "");
}

TEST(DeviceProfile, ACardWithoutHalfPrecisionIsPlannedInFp32) {
  const DeviceProfile k80 = card_profile("k80");
  EXPECT_FALSE(k80.runnable);
  EXPECT_EQ(request(minilm(), Task::score, k80).precision, Precision::fp32);
}

TEST(Plan, AnInputOfFewTokensIsOneBatch) {
  PlanRequest r = request(roberta_base(), Task::score, card_profile("h200"));
  const Plan usual = solve(r);
  for (const int64_t tokens : {600, 3400, 4321, 20000}) {
    r.most_tokens = tokens;
    const Plan few = solve(r);
    EXPECT_EQ(few.token_budget, tokens);
    EXPECT_NE(few.why[0].find(": the whole input is one batch"), std::string::npos) << few.why[0];
    EXPECT_LT(few.peak_bytes, usual.peak_bytes);
  }
  r.most_tokens = 1;  // a text may still be as long as any
  EXPECT_EQ(solve(r).token_budget, r.max_length);
  r.most_tokens = int64_t{1} << 40;
  EXPECT_EQ(solve(r), usual);
  r.fill = true;
  const Plan filled = solve(r);
  r.most_tokens = 3400;
  EXPECT_EQ(solve(r), filled);
}

TEST(Plan, FillSaysWhenABatchHoldsNoMore) {
  PlanRequest r = request(roberta_base(), Task::score, card_profile("h200"));
  r.fill = true;
  EXPECT_NE(solve(r).why.at(0).find("the most a batch may hold"), std::string::npos);
  r.limit_bytes = int64_t{1} << 30;
  EXPECT_NE(solve(r).why.at(0).find("all that is allowed"), std::string::npos);
}

// On the CPU there is no other place for the moments.
TEST(Plan, EightBitOnlyWhenNothingElseFitsAndSaid) {
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

// Between "the moments fit" and "only 8 bits fit" lies a stretch where moving them to the host keeps the numbers.
TEST(Plan, MomentsGoToTheHostBeforeTheyLoseBits) {
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

TEST(Plan, GlobalBatchIsCutIntoMicroBatches) {
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

TEST(Plan, PlacementIsNearItsBoundOnEveryShape) {
  EXPECT_EQ(model::param_count(modernbert()), 149'607'171);  // as transformers counts it, three classes
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
        for (const auto level : {Recompute::none, Recompute::selective, Recompute::full}) {
          const model::TrainPassPlan t =
              plan_train_pass(model, precision, level, kind, device::Isa::generic, 2, limits);
          EXPECT_GE(t.placement.peak_bytes, t.placement.lower_bound_bytes);
          EXPECT_LE(static_cast<double>(t.placement.peak_bytes),
                    1.10 * static_cast<double>(t.placement.lower_bound_bytes))
              << model.layers << "x" << model.hidden << " " << recompute_name(level) << " " << tokens;
        }
      }
}

// Weights come from memory once a batch, so a budget of a few tokens pays for them again and again; and more tokens are
// never predicted to be slower.
TEST(Plan, SmallBudgetsCostMoreOnTheCpu) {
#if defined(__x86_64__)
  constexpr device::Isa kIsa = device::Isa::amx;
#else
  const device::Isa kIsa = device::best_isa();  // a build has its own machine's kernels only
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
      // No batch is read faster than its weights: all matrices of the layers, the tables aside.
      const double matrices = 12.0 * static_cast<double>(model.layers * model.hidden * model.hidden) *
                              (precision == Precision::fp32   ? 4
                               : precision == Precision::bf16 ? 2
                                                              : 1);
      EXPECT_GE(solve(r).step_seconds, matrices / cpu.bandwidth) << precision_name(precision);
      EXPECT_LT(1.5 * speeds.front(), speeds.back()) << precision_name(precision);
    }
}

int64_t resolve_limit(std::string_view text, device::MemoryInfo memory, const std::string& device = "the device") {
  return read_setting("memory_limit", text, MemoryLimit::read).on(memory, device);
}

TEST(MemoryLimit, WhatPeopleWrite) {
  const device::MemoryInfo card{int64_t{5} << 30, int64_t{6} << 30};
  EXPECT_EQ(resolve_limit("4GiB", card), int64_t{4} << 30);
  EXPECT_EQ(resolve_limit("6GiB", card), int64_t{6} << 30);
  EXPECT_EQ(resolve_limit("50%", card), int64_t{3} << 30);
  EXPECT_EQ(resolve_limit("100%", card), int64_t{6} << 30);
  EXPECT_LT(resolve_limit("auto", card), card.free_bytes);
  EXPECT_GT(resolve_limit("auto", card), card.free_bytes * 9 / 10);
  for (const char* bad : {"0", "0GiB", "-1", "-2GiB", "101%", "0%", "-5%", "nan%", "%", "", "lots", "6 apples"})
    message_of([&] { resolve_limit(bad, card); }, ErrorCode::usage);
  EXPECT_NE(message_of([&] { resolve_limit("0.98", card); }, ErrorCode::usage).find("did you mean 98%?"),
            std::string::npos);
  EXPECT_NE(message_of([&] { resolve_limit("4", card); }, ErrorCode::usage).find("did you mean 4GiB?"),
            std::string::npos);
  EXPECT_EQ(resolve_limit("4096B", card), 4096);
  const std::string over = message_of([&] { resolve_limit("8GiB", card, "rtx3050-6gb"); }, ErrorCode::usage);
  EXPECT_NE(over.find("`memory_limit=8GiB`: rtx3050-6gb has 6.00 GiB; write `memory_limit=6135MiB` or less"),
            std::string::npos)
      << over;
  const LimitOrigin file{"run.yaml:7", "max_memory_gb", "12.0"};
  EXPECT_EQ(message_of([&] { MemoryLimit::read("12.0GB").on(card, "rtx3050-6gb", file); }, ErrorCode::usage),
            "run.yaml:7: max_memory_gb: 12.0: rtx3050-6gb has 6.00 GiB; write max_memory_gb: 6.44 or less");
}

TEST(MemoryLimit, AutoLeavesToOthersWhatItIsTold) {
  const device::MemoryInfo card{int64_t{20} << 30, int64_t{24} << 30};
  const auto left = [&](const char* leave, const char* limit = "auto") {
    MemoryLimit both;
    read_setting("leave_free", leave, [&](std::string_view text) {
      both.set_leave_free(text);
      return true;
    });
    both.set_limit(limit);  // said later, and changes nothing of it
    return both.on(card, "rtx3090");
  };
  EXPECT_EQ(left("8GiB"), int64_t{12} << 30) << "of what is free, not of all";
  EXPECT_EQ(left("500MiB"), MemoryLimit().on(card)) << "less than the reserve that auto leaves anyway";
  EXPECT_EQ(left("0"), MemoryLimit().on(card));
  EXPECT_EQ(left("8GiB", "16GiB"), int64_t{16} << 30) << "a limit given by hand wins";
  EXPECT_EQ(left("8GiB", "50%"), int64_t{12} << 30);
  MemoryLimit limit;
  limit.set_limit("16GiB");
  limit.set_leave_free("8GiB");
  EXPECT_EQ(limit.on(card), int64_t{16} << 30);
  const std::string over = message_of([&] { left("32GiB"); }, ErrorCode::usage);
  EXPECT_NE(over.find("`leave_free=32GiB`: rtx3090 has 24.0 GiB"), std::string::npos) << over;
  const std::string all = message_of([&] { left("22GiB"); }, ErrorCode::does_not_fit);
  EXPECT_NE(all.find("`leave_free=22GiB`: 20.0 GiB of rtx3090 are free now"), std::string::npos) << all;
  for (const char* bad : {"", "-1GiB", "some", "10%", "8"}) message_of([&] { left(bad); }, ErrorCode::usage);
}

TEST(MemoryLimit, AFilesLimitIsNamedAndItsKeyIsTheRemedy) {
  PlanRequest r = request(roberta_base(), Task::train, card_profile("rtx3070"));
  r.limit_bytes = int64_t{100} << 20;
  r.limit_origin = {"run.yaml:7", "max_memory_gb", "0.1"};
  const std::string said = message_of([&] { solve(r); }, ErrorCode::does_not_fit);
  EXPECT_EQ(said.find("run.yaml:7: max_memory_gb: 0.1: does not fit in 100 MiB on rtx3070."), 0u) << said;
  const size_t remedy = said.find("(max_memory_gb: ");
  ASSERT_NE(remedy, std::string::npos) << said;
  r.limit_bytes = static_cast<int64_t>(std::stod(said.substr(remedy + 16)) * 1e9);
  solve(r);  // as it says
}

TEST(DeviceProfile, Table) {
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
  EXPECT_NE(p.notes[0].find("cannot run v100"), std::string::npos);
}

TEST(DeviceProfile, CustomAndBroken) {
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
  EXPECT_NE(notes[0].find("speed as of rtx3050-8gb"), std::string::npos) << notes[0];
  message_of([] { profile_from_json("{}"); }, ErrorCode::bad_data);
  message_of([] { plan_from_json("[]"); }, ErrorCode::bad_data);
  message_of([] { plan_from_json("{\"task\": \"dance\"}"); }, ErrorCode::bad_data);
}

// Bytes of this process that RLIMIT_DATA counts.
int64_t data_bytes() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("VmData:")) return std::strtoll(line.c_str() + 7, nullptr, 10) << 10;
  return -1;
}

enum ChildResult { kScored = 0, kRefused = 1, kNotEnforced = 2, kOther = 3 };

// Loads the small model and scores a full batch where the kernel allows `allowed` bytes more than the process has.
int score_in_child(const Plan& plan, const ModelShape& model, int64_t allowed) {
  const pid_t child = ::fork();
  if (child == 0) {
    batch::PackedBatch batch;
    const std::vector<int32_t> ids(static_cast<size_t>(plan.max_length), 5);
    for (int64_t used = 0; used + plan.max_length <= plan.token_budget; used += plan.max_length)
      batch.add({ids.data(), static_cast<int32_t>(plan.max_length), 0}, model.position_offset);
    batch.finish();
    ::mallopt(M_ARENA_MAX, 1);
    // Blocks come from the kernel, not from what earlier tests gave back, which is taken.
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
    } catch (const std::exception&) {  // bad_alloc, or no thread
      result = kRefused;
    }
    ::_exit(result);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : kOther;
}

TEST(Plan, CpuScoringHoldsUnderTheKernelsOwnLimit) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory is beyond any limit";
#endif
  const ModelShape model = model::read_shape(std::string(BRIM_SOURCE_DIR) + "/tests/data/models/bert_sequence");
  PlanRequest r;
  r.shape = model;
  r.device = estimated_cpu(device::best_isa(), 1, int64_t{1} << 30);
  r.max_length = model.max_tokens();
  r.tables_in_slab = false;
  r.limit_bytes = int64_t{6} << 20, r.fill = true;
  const Plan plan = solve(r);
  ASSERT_GT(plan.peak_bytes, r.limit_bytes / 2);
  // Names and JSON of a model of 100 kB. A thread beside the one that was planned would not fit, with its stack.
  const int64_t slack = int64_t{1} << 20;
  const int held = score_in_child(plan, model, plan.peak_bytes + slack);
  if (held == kNotEnforced) GTEST_SKIP() << "this kernel does not hold RLIMIT_DATA";
  EXPECT_EQ(held, kScored);
  EXPECT_EQ(score_in_child(plan, model, plan.peak_bytes / 2),
            kRefused);  // the same run in half the bytes: the limit bites
}

TEST(Plan, Golden) {
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

TEST(Precision, AWishIsReadOnceAndWrittenAsItIsRead) {
  for (const char* text : {"auto", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"})
    EXPECT_EQ(precision_text(read_precision(text)), text);
  EXPECT_EQ(read_precision("BF16").precision, Precision::bf16);
  EXPECT_THROW(read_precision("int3"), BadValue);
}

TEST(Precision, ACardWithoutBf16TrainsInFp16) {
  const auto chosen = [](const char* asked, bool wish, const char* device, Task task) {
    return resolve_precision({read_precision(asked).precision, wish}, card_profile(device), task);
  };
  for (const Task task : {Task::score, Task::train}) {
    EXPECT_EQ(chosen("auto", false, "rtx3060", task).precision, Precision::bf16);
    EXPECT_EQ(chosen("auto", false, "t4", task).precision, Precision::fp16);
  }
  EXPECT_NE(chosen("auto", false, "t4", Task::train).reason.find("no bf16 on t4: a loss scale"), std::string::npos);
  EXPECT_EQ(chosen("auto", false, "cpu", Task::train).precision, Precision::fp32);
  // A file written for another card: a switch is a wish, a name is not.
  EXPECT_EQ(chosen("bf16", true, "t4", Task::train).precision, Precision::fp16);
  EXPECT_EQ(chosen("bf16", true, "t4", Task::train).reason, "t4 has no bf16");
  EXPECT_EQ(chosen("fp16", true, "cpu", Task::train).precision, Precision::fp32);
  EXPECT_THROW(chosen("bf16", false, "t4", Task::train), Error);
  EXPECT_THROW(chosen("int8", false, "cpu", Task::train), Error);
  EXPECT_EQ(chosen("auto", true, "cpu", Task::train).reason, "mixed precision applies on a GPU only");
  EXPECT_EQ(chosen("auto", true, "rtx3060", Task::train).precision, Precision::bf16);
}

TEST(Precision, Fp8TrainsOnCardsThatHaveItAndAsFarAsWidthsLet) {
  const auto chosen = [](const char* device, const ModelShape& model) {
    return train_precision({Precision::fp8}, card_profile(device), model);
  };
  for (const char* device : {"h200", "l4"}) {
    EXPECT_EQ(chosen(device, roberta_base()).precision, Precision::fp8);
    EXPECT_EQ(chosen(device, roberta_base()).reason, "all 48 products of the encoder in fp8, the rest in bf16");
  }
  for (const char* device : {"a100-80gb", "t4", "cpu"}) {
    const std::string said = message_of([&] { chosen(device, roberta_base()); }, ErrorCode::usage);
    EXPECT_NE(said.find("training in fp8 needs a card of sm_89 or newer"), std::string::npos) << said;
  }
  ModelShape odd = minilm();
  odd.ffn = 1000;
  EXPECT_EQ(chosen("h200", odd).precision, Precision::fp8);
  EXPECT_EQ(
      chosen("h200", odd).reason,
      "12 of 24 products of the encoder in fp8; in bf16, because fp8 takes multiples of 16: 6 of 384 x 1000, 6 of "
      "1000 x 384");
  odd.hidden = 376;
  odd.heads = 8;
  EXPECT_EQ(chosen("h200", odd).precision, Precision::bf16);
  EXPECT_NE(chosen("h200", odd).reason.find("hidden size 376 runs in bf16"), std::string::npos);
  EXPECT_EQ(train_precision({}, card_profile("h200"), odd).precision, Precision::bf16) << "never by itself";
}

// The same model and card in both: the copies and scales are in the plan, less is kept, and the table says which
// products there are.
TEST(Plan, Fp8TrainingCountsItsCopiesAndKeepsLess) {
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
  EXPECT_LT(static_cast<double>(narrow.bytes[memory::Tag::activations]),
            0.9 * static_cast<double>(wide.bytes[memory::Tag::activations]));
  EXPECT_GT(narrow.tokens_per_second, wide.tokens_per_second);
  const auto said = [](const Plan& p) {
    return std::count(p.why.begin(), p.why.end(), "all 48 products of the encoder in fp8, the rest in bf16");
  };
  EXPECT_EQ(said(narrow), 1);
  EXPECT_EQ(said(wide), 0);
  RecordProperty("predicted_over_bf16", std::to_string(narrow.tokens_per_second / wide.tokens_per_second));
}

// A CPU's kept speed: files of before have no version, those of a later layout are not used.
TEST(DeviceProfile, TheKeptFileCarriesAVersion) {
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
