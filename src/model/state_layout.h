// SPDX-License-Identifier: Apache-2.0
// Layout of a TrainState: a single block that holds all of its parts.
#pragma once
#include <cstdint>
#include <vector>

#include "model/train_state.h"

namespace brim::model {

// Addresses of a state's parts; null if missing.
struct StateBases {
  char *master, *grad, *copy, *packed, *codes, *table;
};
Params make_params(const SlabLayout& layout, ops::Precision asked, device::DeviceKind target, device::Isa isa,
                   const StateBases& at);

// Indices of the matrices that train in fp8; empty in other precisions.
std::vector<size_t> fp8_params_of(const SlabLayout& layout, ops::Precision precision);
Fp8Table fp8_table(int64_t matrices, char* base);

int64_t moment_blocks(const SlabLayout& layout);
// Size of one moment slab: with 8-bit AdamW, matrices take one byte per element; the rest stays f32.
int64_t moment_bytes(const SlabLayout& layout, Optimizer optimizer);

// Windows through which moments on the host are streamed.
inline constexpr int kWindows = 3;
int64_t window_elements(const SlabLayout& layout);

// Small buffers of a step: gradient norm and clipping factor, constants, class weights, and scratch for sums.
struct SmallLayout {
  int64_t constants, factor, class_weights, norm_scratch, bytes;  // the norm is at 0
};
SmallLayout small_layout(const ModelShape& shape, const SlabLayout& slab);

// A state is a single block, because the driver rounds up each allocation separately; every byte has a tag.
struct StateLayout {
  struct Piece {
    int64_t at = 0, bytes = 0;
  };
  Piece master, frozen, grad, copy, packed, codes, m, v, moment_scales, windows, small, table;
  memory::TagBytes bytes;
};
StateLayout state_layout(const ModelShape& shape, const SlabLayout& slab, ops::Precision asked, Optimizer optimizer,
                         Moments moments, device::DeviceKind target, device::Isa isa);

}  // namespace brim::model
