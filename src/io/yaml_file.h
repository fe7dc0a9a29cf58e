// SPDX-License-Identifier: Apache-2.0
// Loads the YAML file given by --config as a mapping. Callers include yaml-cpp to read its keys.
#pragma once
#include <yaml-cpp/yaml.h>

#include <filesystem>

namespace brim::io {

// Throws usage, with file and line, if the file cannot be read or is not a mapping.
YAML::Node load_yaml(const std::filesystem::path& path);

}  // namespace brim::io
