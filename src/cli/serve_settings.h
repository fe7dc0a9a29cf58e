// SPDX-License-Identifier: Apache-2.0
// Settings of serve.yaml besides models, ladders and queues, for commands that read it without serving.
#pragma once
#include <string>
#include <vector>

namespace brim::cli {

std::vector<std::string> serve_setting_names();

}  // namespace brim::cli
