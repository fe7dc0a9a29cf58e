// SPDX-License-Identifier: Apache-2.0
// Names of models in a Hugging Face hub, and in the cache on disk that its tools share. Reads no files.
#pragma once
#include <string>
#include <string_view>

namespace brim::io {

// One part of a name or revision: letters, digits, '-', '_' and '.'; neither hidden nor with "..". Safe to append to a
// directory, like the names below.
bool is_hub_name_part(std::string_view part);
bool is_hub_name(std::string_view name);          // NAME or ORG/NAME
bool is_hub_revision(std::string_view revision);  // branch, tag or commit; may contain slashes

// models--ORG--NAME
std::string hub_cache_folder(std::string_view name);

// A directory with one of these files is a model.
inline constexpr const char* kModelConfigs[] = {"config.json", "adapter_config.json", "gliner_config.json",
                                                "modules.json"};

}  // namespace brim::io
