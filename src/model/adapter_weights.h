// SPDX-License-Identifier: Apache-2.0
// Weights of an adapter that are kept beside those of its base model: low-rank products of matrices, and a head. The
// base model's weights are not changed, so that several adapters can use them.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "device/device.h"
#include "hub/weights.h"
#include "model/params.h"
#include "model/shape.h"

namespace brim::model {

// Ranks of the products by parameter, in the order of model_params(); the products of stacked matrices are stacked.
// 0: not adapted. Empty: no adapter, only a head.
using AdapterRanks = std::vector<int64_t>;

// `adapted`: weights with an adapter or without. nullopt if the adapter changes other tensors than matrices and the
// head, such as biases, so that it must be merged.
std::optional<AdapterRanks> adapter_ranks(const hub::WeightSource& adapted, const ModelShape& shape);
int64_t adapter_width(const AdapterRanks& ranks);  // for ModelShape::adapter_width

struct AdapterLayout {
  Params params;  // views relative to `base`; those of the encoder are empty
  int64_t bytes = 0;
};
AdapterLayout layout_adapter(const ModelShape& shape, ops::Precision precision, device::DeviceKind target,
                             device::Isa isa, const AdapterRanks& ranks, void* base);

// Adds products of rank shape.adapter_width with fake addresses to all matrices of the encoder, for planning.
void describe_adapter(const ModelShape& shape, ops::Precision precision, device::DeviceKind target, device::Isa isa,
                      Params& params);

}  // namespace brim::model
