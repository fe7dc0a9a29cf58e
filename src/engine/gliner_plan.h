// SPDX-License-Identifier: Apache-2.0
// The head of a GLiNER model in plans of memory. Does not plan the encoders.
#pragma once
#include <cstddef>
#include <filesystem>
#include <memory>

#include "engine/gliner_head.h"
#include "hub/gliner_config.h"
#include "plan/plan.h"

namespace brim::engine {

// Labels per text that memory is planned for if they are given with the texts.
inline constexpr size_t kUsualEntityLabels = 32;

// Loads the head and adds its memory on the host to the encoder's request, which has its device and precision.
// `labels`: labels per text.
std::unique_ptr<const GlinerHead> load_planned_head(const std::filesystem::path& dir, const hub::GlinerConfig& config,
                                                    size_t labels, plan::PlanRequest& request);

}  // namespace brim::engine
