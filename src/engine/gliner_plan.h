// SPDX-License-Identifier: Apache-2.0
// The head of a GLiNER model in plans of memory. Does not plan the encoders.
#pragma once
#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>

#include "engine/gliner_head.h"
#include "engine/word_head.h"
#include "hub/gliner_config.h"
#include "plan/plan.h"

namespace brim::engine {

// Labels per text that memory is planned for if they are given with the texts; more need more memory on a CPU, and are
// rejected by word models on a GPU above the second number.
inline constexpr size_t kUsualEntityLabels = 32, kMostDeviceLabels = 256;

struct PlannedHead {
  std::unique_ptr<const GlinerHead> head;
  std::optional<WordHeadSpec> on_device;  // set if it runs on a GPU
};

// Loads the head and adds its memory to the encoder's request, which has its device, precision, limit and longest text.
// On a GPU, the request's output becomes that of the head. `labels`: labels per text; none: not known.
PlannedHead load_planned_head(const std::filesystem::path& dir, const hub::GlinerConfig& config,
                              std::optional<size_t> labels, plan::PlanRequest& request);

}  // namespace brim::engine
