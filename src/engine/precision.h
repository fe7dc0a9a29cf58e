// SPDX-License-Identifier: Apache-2.0
// Which precision a model runs in on a device, and why.
#pragma once
#include <filesystem>
#include <string>

#include "device/device.h"
#include "io/hf_config.h"
#include "plan/plan.h"

namespace brim {

struct PrecisionChoice {
  Precision precision;
  std::string reason;  // one line for the summary
};
// "auto": bf16 where the CPU multiplies it natively, else fp32; int8 when the directory records enough agreement with
// fp32; on CUDA bf16 where the card has it, else fp16. A precision the device lacks is a usage error.
PrecisionChoice choose_precision(const std::string& asked, const DeviceProfile& device, const HfConfig& config,
                                 const std::filesystem::path& dir);

// Agreement of int8 labels with fp32's, as `brim eval --record-agreement` wrote it; negative if never measured.
double recorded_int8_agreement(const std::filesystem::path& dir);
void record_int8_agreement(const std::filesystem::path& dir, double agreement, int64_t rows);

}  // namespace brim
