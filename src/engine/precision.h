// SPDX-License-Identifier: Apache-2.0
// Chooses the precision of a model on a device, with the reason. Does not convert weights.
#pragma once
#include <filesystem>
#include <string>

#include "device/device.h"
#include "hub/hf_config.h"
#include "plan/resolve.h"

namespace brim::engine {

// Like resolve_precision for scoring; in addition, "auto" on a CPU is int8 if the directory records enough agreement
// with fp32, and on a GPU, fp8 and int8 fall back to half precision if their products do not support the model's hidden
// size. On a GPU, "auto" never selects fp8 or int8. `shares_base`: "auto" ignores such records, which differ between
// adapters, so that all of them use one copy of the weights.
plan::PrecisionChoice choose_precision(const plan::PrecisionRequest& asked, const plan::DeviceProfile& device,
                                       const hub::HfConfig& config, const std::filesystem::path& dir,
                                       bool shares_base = false);

// Agreement of int8 labels with fp32, as written by `brim eval --record-agreement`; negative if never measured.
double recorded_int8_agreement(const std::filesystem::path& dir);
void record_int8_agreement(const std::filesystem::path& dir, double agreement, int64_t rows);

}  // namespace brim::engine
