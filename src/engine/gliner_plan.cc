// SPDX-License-Identifier: Apache-2.0
#include "engine/gliner_plan.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "engine/entity_task.h"
#include "model/weights.h"

namespace brim::engine {
namespace {

// Tokens scored together: an LSTM takes as many steps for few texts as for many.
constexpr int64_t kMostChunkTokens = 65536, kLeastChunkTokens = 1024;
constexpr int64_t kLimitShare = 16;  // scratch memory takes at most this part of the limit, if that suffices

WordHeadSpec plan_on_device(std::shared_ptr<const GlinerWeights> weights, const hub::GlinerConfig& config,
                            std::optional<size_t> labels, plan::PlanRequest& request) {
  WordHeadSpec spec;
  spec.weights = std::move(weights);
  spec.config = config;
  spec.precision = model::head_precision(request.precision, request.device.kind);
  spec.width = word_width(config, labels.value_or(kMostDeviceLabels));
  for (int64_t tokens = kMostChunkTokens;; tokens /= 2) {
    spec.chunk_tokens = std::max(tokens, request.max_length);
    const WordHead head(spec, request.device.kind);
    request.head_bytes = head.scratch_bytes();
    request.head_weight_bytes = head.weight_bytes();
    if (request.head_bytes <= request.limit_bytes / kLimitShare || tokens <= kLeastChunkTokens) break;
  }
  request.output = model::Output::word_scores;
  request.shape.word_width = spec.width;
  return spec;
}

}  // namespace

PlannedHead load_planned_head(const std::filesystem::path& dir, const hub::GlinerConfig& config,
                              std::optional<size_t> labels, plan::PlanRequest& request) {
  const int64_t labels_size =
      config.labels_encoder.empty() ? 0 : model::read_shape(hub::labels_encoder_dir(dir)).hidden;
  PlannedHead planned;
  if (request.device.kind != device::DeviceKind::cpu) {
    planned.head = GlinerHead::load_for_device(dir, config, request.shape.hidden, labels_size);
    planned.on_device = plan_on_device(planned.head->device_weights(), config, labels, request);
    return planned;
  }
  const bool bf16 = request.precision == ops::Precision::bf16;
  planned.head = GlinerHead::load(dir, config, request.shape.hidden, labels_size,
                                  bf16 ? ops::Precision::bf16 : ops::Precision::fp32);
  const GlinerHead& head = *planned.head;
  const int64_t words = std::max<int64_t>(EntityTask::kWordsPerGroup, config.max_words);
  const int64_t waiting = EntityTask::kWaitingTokens *
                          (request.shape.hidden * static_cast<int64_t>(sizeof(float)) + EntityTask::kBytesPerToken);
  request.head_bytes = head.bytes() + waiting +
                       std::max(1, request.device.threads) *
                           head.scratch_bytes(words, static_cast<int64_t>(labels.value_or(kUsualEntityLabels)));
  return planned;
}

}  // namespace brim::engine
