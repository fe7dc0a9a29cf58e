// SPDX-License-Identifier: Apache-2.0
// Test helper: shapes of well-known models and plan requests for them.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "base/error.h"
#include "plan/plan.h"
#include "plan/resolve.h"

namespace brim::plan {

inline model::ModelShape shape(hub::Family family, int64_t layers, int64_t hidden, int64_t heads, int64_t vocab,
                               int64_t positions, int64_t classes = 3) {
  model::ModelShape s;
  s.family = family;
  s.layers = layers;
  s.hidden = hidden;
  s.heads = heads;
  s.ffn = 4 * hidden;
  s.vocab = vocab;
  s.positions = positions;
  s.types = family == hub::Family::distilbert ? 0 : family == hub::Family::roberta ? 1 : 2;
  s.position_offset = family == hub::Family::roberta ? 2 : 0;
  s.sequence_classes = classes;
  return s;
}
inline model::ModelShape roberta_base() { return shape(hub::Family::roberta, 12, 768, 12, 50265, 514); }
inline model::ModelShape roberta_large() { return shape(hub::Family::roberta, 24, 1024, 16, 50265, 514); }
inline model::ModelShape minilm() { return shape(hub::Family::bert, 6, 384, 12, 30522, 512); }
inline model::ModelShape bert_tiny() { return shape(hub::Family::bert, 2, 128, 2, 30522, 512); }
inline model::ModelShape distilbert() { return shape(hub::Family::distilbert, 6, 768, 12, 30522, 512); }
inline model::ModelShape xlm_roberta() { return shape(hub::Family::roberta, 12, 768, 12, 250002, 514); }
inline model::ModelShape modernbert() {
  model::ModelShape s = shape(hub::Family::modernbert, 22, 768, 12, 50368, 8192);
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

inline PlanRequest request(const model::ModelShape& model, Task task, const DeviceProfile& device) {
  PlanRequest r;
  r.shape = model;
  r.task = task;
  r.device = device;
  r.precision = resolve_precision({}, device, task).precision;
  r.max_length = std::min<int64_t>(model.max_tokens(), task == Task::train ? 128 : 512);
  r.limit_bytes = MemoryLimit().on({device.total_bytes, device.total_bytes});
  return r;
}

inline DeviceProfile two_cores() { return estimated_cpu(device::Isa::generic, 2, int64_t{8} << 30); }

inline std::string message_of(const std::function<void()>& f, ErrorCode code) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.code()), static_cast<int>(code)) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

inline void expect_whole(const Plan& p, const PlanRequest& r) {
  EXPECT_EQ(p.bytes.total(), p.peak_bytes);
  EXPECT_LE(p.peak_bytes, r.limit_bytes);
  EXPECT_GE(p.token_budget, r.max_length);
  EXPECT_GT(p.tokens_per_second, 0);
  EXPECT_GT(p.step_seconds, 0);
  EXPECT_FALSE(p.why.empty());
  for (const int64_t b : p.bytes.bytes) EXPECT_GE(b, 0);
}

}  // namespace brim::plan
