// SPDX-License-Identifier: Apache-2.0
// Downloads models from a Hugging Face hub into the local cache, like `brim pull`. Nothing else in the library uses the
// network.
#pragma once
#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>

#include "brim/error.h"

namespace brim {

// Directory of a model given as in ScorerOptions::model. A repository ORG/NAME[@REVISION] that is not on this machine
// is downloaded first. Uses HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE and the variables for proxies.
// `on_progress` is called on the calling thread. Throws usage if the repository is unknown or not accessible, and
// interrupted after a stop request; the next call continues the download.
BRIM_API std::string pull_model(const std::string& model,
                                const std::function<void(int64_t done_bytes, int64_t total_bytes)>& on_progress = {},
                                std::stop_token stop = {});

}  // namespace brim
