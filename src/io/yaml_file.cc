// SPDX-License-Identifier: Apache-2.0
#include "io/yaml_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error.h"

namespace brim::io {

YAML::Node load_yaml(const std::filesystem::path& path, const char* setting) {
  YAML::Node root;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    fail(ErrorCode::usage, "`{}={}`: is a directory; give a file", setting, path.string());
  std::ifstream file(path);
  if (!file) fail(ErrorCode::usage, "`{}={}`: cannot be read: {}", setting, path.string(), std::strerror(errno));
  try {
    root = YAML::Load(file);
  } catch (const YAML::Exception& e) {
    const bool colons = e.msg == "illegal map value";
    fail(ErrorCode::usage, "{}:{}: {}", path.string(), e.mark.line + 1,
         colons ? "invalid YAML: more than one ':' on the line; quote the value or use a separate line for its key"
                : e.msg);
  }
  if (!root.IsMap()) fail(ErrorCode::usage, "{}: not a mapping of keys to values", path.string());
  return root;
}

}  // namespace brim::io
