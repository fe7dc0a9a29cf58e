// SPDX-License-Identifier: Apache-2.0
// What else a serve.yaml may hold beside models, ladders and queues; for those that read it without serving.
#pragma once
#include <string>
#include <vector>

namespace brim::cli {

std::vector<std::string> serve_setting_names();

}  // namespace brim::cli
