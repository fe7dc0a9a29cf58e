// SPDX-License-Identifier: Apache-2.0
// Token placement only changes memory use: every placement gives the same batches and the same run, bit for bit, and
// leaves the plan's other choices unchanged.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "device/testing.h"
#include "model/staging.h"
#include "train/job.h"
#include "train/micro_batch.h"
#include "train/tiny_job.h"

namespace brim::train {

using plan::Plan;

namespace {

namespace fs = std::filesystem;

TrainJob opened(const TrainSettings& s) {
  return open_train_job(s, {[](const std::string&) {}});
}

void expect_same_choices(const Plan& a, const Plan& b) {
  EXPECT_EQ(a.token_budget, b.token_budget);
  EXPECT_EQ(a.max_sequences, b.max_sequences);
  EXPECT_EQ(a.recompute, b.recompute);
  EXPECT_EQ(a.optimizer, b.optimizer);
  EXPECT_EQ(a.limit_bytes, b.limit_bytes);
  EXPECT_EQ(b.bytes.total(), b.peak_bytes);
}

TEST(TokenPlacement, GpuHoldsTheSetIfThePlanLeavesMemory) {
  TinyJob t;
  TrainJob job = opened(t.settings);
  job.device = std::make_unique<device::StandInCard>();  // place_token_set only uses its kind
  const Plan before = job.plan;
  const int64_t ids = memory::align_up(job.train_set.tokens() * 4),
                places = before.staging_depth * memory::align_up(before.max_sequences * 8);
  job.plan.limit_bytes = before.peak_bytes + ids + places;  // an exact fit
  place_token_set(job);
  EXPECT_EQ(job.token_placement, TokenPlacement::resident);
  EXPECT_EQ(job.plan.bytes[memory::Tag::token_set], ids + places);
  EXPECT_EQ(job.plan.peak_bytes, job.plan.limit_bytes);
  Plan limited = before;
  limited.limit_bytes = job.plan.limit_bytes;
  expect_same_choices(limited, job.plan);
  const auto bytes = nlohmann::json::parse(to_json(job.plan))["bytes"];
  EXPECT_EQ(bytes["token set"], ids + places);
  EXPECT_EQ(plan::plan_from_json(to_json(job.plan)), job.plan);
  EXPECT_FALSE(
      nlohmann::json::parse(to_json(before))["bytes"].contains("token set"));  // not in a plan made without data

  job.plan = before;
  job.plan.limit_bytes = before.peak_bytes + ids + places - 1;
  place_token_set(job);
  EXPECT_EQ(job.token_placement, TokenPlacement::staged);
  EXPECT_TRUE(job.train_set.memory);
  EXPECT_EQ(job.plan.bytes.bytes, before.bytes.bytes);
  job.settings.token_set = TokenPlacement::resident;
  EXPECT_HAS(error_of(ErrorCode::does_not_fit, [&] { place_token_set(job); }), "`token_set=resident`");
}

TEST(TokenPlacement, CpuReadsTheMappedFile) {
  TinyJob t;
  TrainJob job = opened(t.settings);
  const Plan before = job.plan;
  place_token_set(job);
  EXPECT_EQ(job.token_placement, TokenPlacement::streamed);
  EXPECT_TRUE(job.train_set.mapped);
  EXPECT_EQ(job.plan.bytes.bytes, before.bytes.bytes);
  job.settings.token_set = TokenPlacement::staged;
  place_token_set(job);
  EXPECT_EQ(job.token_placement, TokenPlacement::staged);
  EXPECT_FALSE(job.train_set.mapped);
}

TEST(TokenPlacement, SetStaysInMemoryWithoutACache) {
  TinyJob t;
  put_file(t.dir / "file", "");
  ::setenv("BRIM_CACHE", (t.dir / "file/cache").c_str(), 1);
  int warnings = 0;
  const auto sink = set_log_sink([&](LogLevel level, std::string_view) { warnings += level == LogLevel::warning; });
  TrainJob job = opened(t.settings);
  set_log_sink(sink);
  EXPECT_EQ(warnings, 2);  // training and validation set
  place_token_set(job);
  EXPECT_EQ(job.token_placement, TokenPlacement::staged);
  job.settings.token_set = TokenPlacement::streamed;
  EXPECT_HAS(error_of(ErrorCode::cannot_write, [&] { place_token_set(job); }), "`token_set=streamed`");
}

void expect_same_bytes(const tensor::TensorView& a, const tensor::TensorView& b, const char* what) {
  ASSERT_EQ(a.shape_text(), b.shape_text()) << what;
  if (a.bytes() > 0) {
    EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())), 0) << what;
  }
}

TEST(TokenPlacement, ResidentBatchMatchesTheStagedOne) {
  for (const char* model : {"roberta_sequence", "bert_multilabel"}) {  // positions from 2; float targets
    TinyJob t(model);
    t.settings.multi_label = std::string(model) == "bert_multilabel";
    // Rows 48 and 49 contain RoBERTa's padding id, which is [UNK] in this vocabulary.
    put_file(t.dir / "train.csv", TinyJob::csv(48, 1) + "w5 unknown w6,negative\nunknown w7 unknown,neutral\n");
    const TrainJob job = opened(t.settings);
    const model::BatchLimits limits{400, 48, 40};
    auto stream = job.device->make_stream();
    const tensor::TensorView set(const_cast<int32_t*>(job.train_set.ids.data()), tensor::DType::i32,
                                 {job.train_set.tokens()});
    const memory::Ledger& ledger = memory::Ledger::of(*job.device);
    const int64_t before = ledger.reserved_bytes();
    BatchStager direct(*job.device, job.shape, limits, 2);
    EXPECT_EQ(ledger.reserved_bytes(), before);
    BatchStager resident(*job.device, job.shape, limits, 2, false, set);
    EXPECT_EQ(ledger.reserved_bytes() - before,
              2 * (staged_micro_batch_bytes(job.shape, limits) + staged_offsets_bytes(limits)));
    for (const std::vector<int64_t>& rows :
         {std::vector<int64_t>{3}, {47, 0, 12, 5}, {0, 48, 1, 49, 2}, {0, 1, 2, 3, 4, 5, 6, 7}}) {
      MicroBatch m;
      build_micro_batch(job.train_set, job.soft, rows, job.shape, m);
      EXPECT_EQ(m.packed.padding_tokens, job.shape.position_offset > 0 && rows.size() == 5 ? 3 : 0);
      const StagedBatch a = direct.stage(m, *stream), b = resident.stage(m, *stream);
      EXPECT_NE(a.batch.ids.data, b.batch.ids.data);
      expect_same_bytes(a.batch.ids, b.batch.ids, "ids");
      expect_same_bytes(a.batch.positions, b.batch.positions, "positions");
      expect_same_bytes(a.batch.starts, b.batch.starts, "starts");
      expect_same_bytes(a.batch.order, b.batch.order, "order");
      expect_same_bytes(a.sorted, b.sorted, "sorted");
      expect_same_bytes(a.sorted_positions, b.sorted_positions, "sorted_positions");
      expect_same_bytes(a.targets.sequence, b.targets.sequence, "targets");
      resident.mark_used(*stream);
    }
  }
}

TEST(TokenPlacement, EveryPlacementGivesTheSameRun) {
  for (const bool tags : {false, true}) {
    TinyJob t(tags ? "bert_token" : "bert_sequence");
    if (tags) {
      put_file(t.dir / "train.conll", TinyJob::conll(48, 1));
      put_file(t.dir / "val.conll", TinyJob::conll(12, 2));
      t.settings.train_files = {(t.dir / "train.conll").string()};
      t.settings.validation_files = {(t.dir / "val.conll").string()};
    }
    t.settings.dropout = 0.1;
    for (const char* way : {"staged", "resident", "streamed"}) {
      TrainSettings s = t.to(way);
      apply_setting(s, "token_set", way);
      std::string lines;
      nlohmann::json record;
      TrainCallbacks callbacks;
      callbacks.say = [&](const std::string& line) { lines += line + "\n"; };
      callbacks.record = [&](const std::string& json) { record = nlohmann::json::parse(json); };
      train(s, callbacks);
      EXPECT_EQ(record["data"]["token_set"], way);
      EXPECT_EQ(record["plan"]["bytes"].contains("token set"), std::string(way) == "resident");
      EXPECT_HAS(lines, std::string(way) == "staged"     ? "tokens in host memory"
                        : std::string(way) == "resident" ? "tokens resident"
                                                         : "tokens streamed from the cache in ");
      EXPECT_HAS(get_file(fs::path(s.output_dir) / "README.md"), "token set " + std::string(way));
      EXPECT_TRUE(t.weights("staged") == t.weights(way)) << way;
    }
  }
}

TEST(TokenPlacement, ResumedRunMayUseAnotherPlacement) {
  TinyJob t;
  t.settings.dropout = 0.1;
  t.settings.token_set = TokenPlacement::resident;
  t.settings.save_strategy = Strategy::steps;
  t.settings.save_steps = 5;
  t.run();
  TrainSettings parts = t.to("parts");
  std::atomic<bool> stop{true};
  TrainCallbacks callbacks;
  callbacks.stop = &stop;
  for (const char* way : {"resident", "streamed", "staged"}) {  // one step each, then the rest
    apply_setting(parts, "token_set", way);
    EXPECT_TRUE(train(parts, callbacks).interrupted);
    parts.resume_from_checkpoint = "last";
  }
  train(parts, {});
  EXPECT_TRUE(t.weights() == t.weights("parts"));
}

}  // namespace
}  // namespace brim::train
