// SPDX-License-Identifier: Apache-2.0
// Fuzz target: serve.yaml. Accepted configurations must be consistent; rejected ones must not be internal errors.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "serve/serve_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace brim;
  static const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("brim-serve-fuzz-" + std::to_string(::getpid()) + ".yaml");
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  try {
    const serve::ServeConfig config = serve::read_serve_config(path, {"listen", "memory_limit"});
    serve::check_names(config);
    for (const serve::ModelEntry& model : config.models)
      if (model.name.empty() || model.path.empty()) std::abort();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::internal || error.what()[0] == '\0') std::abort();
  }
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  return 0;
}
