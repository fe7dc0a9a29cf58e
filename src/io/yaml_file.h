// SPDX-License-Identifier: Apache-2.0
// Loads the YAML file given by --config as a mapping. Callers include yaml-cpp to read its keys.
#pragma once
#include <yaml-cpp/yaml.h>

#include <filesystem>

namespace brim::io {

// Throws usage, with file and line, if the file cannot be read or is not a mapping.
// `setting` names the file in messages.
YAML::Node load_yaml(const std::filesystem::path& path, const char* setting = "config");

}  // namespace brim::io
