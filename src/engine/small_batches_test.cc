// SPDX-License-Identifier: Apache-2.0
#include "engine/small_batches.h"

#include <gtest/gtest.h>

#include "base/test_files.h"
#include "engine/engine.h"
#include "model/golden_models.h"

namespace brim::engine {
namespace {

// A CPU stream cannot capture, like a GPU without free memory. Uses a tagger, because pooling on a CPU finds no first
// token in the empty sequences used for loading kernels.
TEST(SmallBatches, RunsOpByOpWithoutAGraph) {
  TempDir dir;
  model::put_golden_model(dir / "model", "bert_token");
  EngineOptions options;
  options.model_dir = dir / "model";
  options.device = device::read_device("cpu");
  options.precision = plan::read_precision("fp32");
  options.threads = 1;
  const auto engine = Engine::open(options);
  batch::PackedBatch batch;
  const std::vector<int32_t> ids(5, 7);
  batch.add({ids.data(), 5, 0}, engine->shape().position_offset);
  batch.finish();
  for (const bool loaded : {false, true}) {  // all graphs at once, or each with its first batch
    engine->scheduler().call([&] {
      engine->host().load();
      int captures = 0;
      SmallBatches small(engine->device(), engine->scheduler().queue().stream(), engine->host().forward(0),
                         engine->plan().limits(), engine->output(), engine->width(), nullptr, loaded,
                         [&] { ++captures; });
      EXPECT_EQ(captures > 0, !loaded);
      EXPECT_FALSE(small.takes(batch));
      EXPECT_FALSE(small.takes(batch)) << "nor the next";
    });
  }
  EXPECT_FALSE(engine->scheduler().lost());
}

}  // namespace
}  // namespace brim::engine
