// SPDX-License-Identifier: Apache-2.0
// Fingerprint of a training run: the settings and data that must match for a resumed run to give the same result.
#pragma once
#include <string>

namespace brim::train {

struct TrainJob;

std::string run_fingerprint(const TrainJob& job);  // JSON

// Lists the values that differ, one per line; empty if a checkpoint with the fingerprint `then` can be resumed.
std::string fingerprint_difference(const std::string& then, const std::string& now);

}  // namespace brim::train
