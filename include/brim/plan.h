// SPDX-License-Identifier: Apache-2.0
// Memory plan of a model on a device, which need not be present, without opening the model. Like `brim plan` for one
// model.
#pragma once
#include <cstdint>
#include <string>

#include "brim/load.h"
#include "brim/options.h"

namespace brim {

struct PlanOptions {
  std::string model;  // directory or name; empty: the default model
  bool training = false;
  std::string device = "auto";  // a GPU by name (rtx3070, h200), cpu, cuda, cuda:N or auto
  Precision precision = {};
  MemoryLimit memory_limit = {};
  LeaveFree leave_free = {};
  int64_t max_length = 0;      // tokens per text; 0: the model's maximum
  int64_t typical_length = 0;  // tokens of a usual text, to predict the speed; 0: at most 128
};

struct ModelPlan : MemoryPlan {
  std::string device, precision;
  std::string json;  // all values, as printed by `brim plan --json`
};

// Throws does_not_fit, with the smallest sufficient limit as the remedy; usage for an unknown model or device.
BRIM_API ModelPlan plan_model(const PlanOptions& options);

}  // namespace brim
