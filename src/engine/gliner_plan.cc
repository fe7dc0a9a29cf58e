// SPDX-License-Identifier: Apache-2.0
#include "engine/gliner_plan.h"

#include <algorithm>
#include <cstdint>

#include "engine/entity_task.h"
#include "model/weights.h"

namespace brim::engine {

std::unique_ptr<const GlinerHead> load_planned_head(const std::filesystem::path& dir, const hub::GlinerConfig& config,
                                                    size_t labels, plan::PlanRequest& request) {
  const int64_t labels_size =
      config.labels_encoder.empty() ? 0 : model::read_shape(hub::labels_encoder_dir(dir)).hidden;
  const bool bf16 = request.device.kind == device::DeviceKind::cpu && request.precision == ops::Precision::bf16;
  auto head = GlinerHead::load(dir, config, request.shape.hidden, labels_size,
                               bf16 ? ops::Precision::bf16 : ops::Precision::fp32);
  const int64_t words = std::max<int64_t>(EntityTask::kWordsPerGroup, config.max_words);
  const int64_t waiting = EntityTask::kWaitingTokens *
                          (request.shape.hidden * static_cast<int64_t>(sizeof(float)) + EntityTask::kBytesPerToken);
  request.head_bytes = head->bytes() + waiting +
                       std::max(1, request.device.threads) * head->scratch_bytes(words, static_cast<int64_t>(labels));
  return head;
}

}  // namespace brim::engine
