// SPDX-License-Identifier: Apache-2.0
// Which precision a model runs in on a device, and why.
#pragma once
#include <filesystem>
#include <string>

#include "device/device.h"
#include "hub/hf_config.h"
#include "plan/resolve.h"

namespace brim::engine {

// As resolve_precision for scoring; and on a CPU "auto" is int8 when the directory records enough agreement with fp32,
// and fp8 is bf16 where the model's hidden size is none that fp8 products take.
plan::PrecisionChoice choose_precision(const plan::PrecisionWish& asked, const plan::DeviceProfile& device,
                                       const hub::HfConfig& config, const std::filesystem::path& dir);

// Agreement of int8 labels with fp32's, as `brim eval --record-agreement` wrote it; negative if never measured.
double recorded_int8_agreement(const std::filesystem::path& dir);
void record_int8_agreement(const std::filesystem::path& dir, double agreement, int64_t rows);

}  // namespace brim::engine
