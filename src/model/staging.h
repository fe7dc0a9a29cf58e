// SPDX-License-Identifier: Apache-2.0
// What batches' integers take on a device. Runners allocate it and plans count it; both ask here.
#pragma once
#include "model/forward_runner.h"
#include "model/shape.h"

namespace brim::model {

int64_t staged_batch_bytes(BatchLimits limits);  // ids, positions, starts and order
// Of training: targets and sorted rows too; where the token set is resident, the rows' places in it besides.
int64_t staged_micro_batch_bytes(const ModelShape& shape, BatchLimits limits);
int64_t staged_places_bytes(BatchLimits limits);

constexpr int64_t kSmallBatchBytes = int64_t{4} << 20;  // captured graphs of small batches and what they copy

}  // namespace brim::model
