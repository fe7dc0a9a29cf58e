// SPDX-License-Identifier: Apache-2.0
// Device memory for the integers of a batch, shared by runners (which allocate it) and plans (which count it). Does not
// allocate.
#pragma once
#include "model/forward_runner.h"
#include "model/shape.h"

namespace brim::model {

int64_t staged_batch_bytes(BatchLimits limits);  // ids, positions, starts and order
// Training: includes targets and sorted rows and, if the token set is resident, the offsets of rows in it.
// `soft_labels`: also a soft label per class.
int64_t staged_micro_batch_bytes(const ModelShape& shape, BatchLimits limits, bool soft_labels = false);
int64_t staged_offsets_bytes(BatchLimits limits);

constexpr int64_t kSmallBatchBytes = int64_t{4} << 20;  // captured graphs of small batches and their copies

}  // namespace brim::model
