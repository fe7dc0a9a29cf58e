// SPDX-License-Identifier: Apache-2.0
// Runs that train only a part of the model. Gradients are tested in src/model.
#include <gtest/gtest.h>

#include "model/weights.h"
#include "train/job.h"
#include "train/tiny_job.h"

namespace brim::train {
namespace {

TEST(TrainedParts, FrozenTensorsKeepTheirBits) {
  TinyJob t;
  const int64_t all = open_train_job(t.settings, {[](const std::string&) {}}).plan.peak_bytes;
  const auto want = hub::WeightSource::open(t.settings.model);
  t.settings.save_strategy = Strategy::epoch;
  for (const char* part : {"embeddings", "layers:1", "all-but-head"}) {
    TrainSettings s = t.to(part);
    s.freeze = read_freeze(part);
    const TrainOutcome o = train(s, {});
    EXPECT_LT(o.planned_bytes, all) << part;
    const auto made = hub::WeightSource::open(s.output_dir);
    model::ModelShape shape = model::read_shape(t.settings.model);
    shape.freeze = s.freeze;
    for (const model::ParamSpec& spec : model_params(shape))
      for (const std::string& name : spec.names) {
        if (spec.rows == 0) continue;
        const auto a = made->get(name), b = want->get(name);
        const bool same = std::equal(a.as<float>(), a.as<float>() + a.elements(), b.as<float>());
        EXPECT_EQ(same, spec.frozen) << part << " " << name;
      }
  }
  TrainSettings s = t.to("layers:1");
  s.resume_from_checkpoint = "last";
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { train(s, {}); }), "freeze");
  const auto refused = [&](const char* part) {
    TrainSettings other = t.to("refused");
    other.freeze = read_freeze(part);
    return error_of(ErrorCode::usage, [&] { train(other, {}); });
  };
  EXPECT_HAS(refused("layers:9"), "`freeze=layers:9`: the model has 2 layers");
  t.settings.precision = {ops::Precision::fp8};
  EXPECT_HAS(refused("embeddings"), "not supported with `precision=fp8`");
  t.settings.precision = {};
  model::put_golden_model(t.dir / "model", "albert_sequence");
  EXPECT_HAS(refused("layers:1"), "share their parameters");
}

}  // namespace
}  // namespace brim::train
