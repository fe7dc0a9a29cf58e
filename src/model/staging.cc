// SPDX-License-Identifier: Apache-2.0
#include "model/staging.h"

#include "memory/placement.h"

namespace brim::model {

// Each array starts aligned, which adds up to one alignment per array.
int64_t staged_batch_bytes(BatchLimits l) {
  return memory::align_up((2 * l.tokens + 2 * l.sequences + 1) * 4 + 4 * memory::kArenaAlignment);
}

int64_t staged_micro_batch_bytes(const ModelShape& shape, BatchLimits l, bool soft_labels) {
  const int64_t hard = shape.number_targets() ? l.sequences * shape.sequence_classes : l.sequences,
                targets = hard + (soft_labels ? l.sequences * shape.sequence_classes : 0);
  return memory::align_up((5 * l.tokens + 2 * l.sequences + 1 + targets) * 4 +
                          (soft_labels ? 11 : 10) * memory::kArenaAlignment);
}

int64_t staged_offsets_bytes(BatchLimits l) { return memory::align_up(l.sequences * 8); }

}  // namespace brim::model
