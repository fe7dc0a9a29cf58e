// SPDX-License-Identifier: Apache-2.0
// Hook to download a model that is not on this machine. This folder does not use the network itself.
#pragma once
#include <filesystem>
#include <functional>
#include <string>

#include "hub/model_dir.h"

namespace brim::hub {

// Downloads ORG/NAME[@REVISION] and returns its directory.
using ModelDownload = std::function<std::filesystem::path(const std::string& repository)>;

// Like resolve_model(), but calls `download` for a missing model if it is set.
std::filesystem::path resolve_or_download(const std::string& name_or_dir, const ModelSearchPath& search_path,
                                          const ModelDownload& download);

// Sets the function that resolve_model() calls for a missing model; null: resolve_model() fails. Call it before models
// are opened.
void set_model_download(ModelDownload download);

}  // namespace brim::hub
