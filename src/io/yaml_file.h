// SPDX-License-Identifier: Apache-2.0
// A YAML file that --config names, as a mapping; whoever reads its keys includes yaml-cpp.
#pragma once
#include <yaml-cpp/yaml.h>

#include <filesystem>

namespace brim::io {

// Throws usage, with file and line, for what cannot be read or is no mapping of keys to values.
YAML::Node load_yaml(const std::filesystem::path& path);

}  // namespace brim::io
