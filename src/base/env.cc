// SPDX-License-Identifier: Apache-2.0
#include "base/env.h"

#include <unistd.h>

#include <cstdlib>

namespace brim {

std::optional<std::string> env(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

bool env_flag(const char* name) {
  const auto value = env(name);
  return value && *value != "0" && *value != "false" && *value != "no" && *value != "off";
}

std::filesystem::path home_dir() { return env("HOME").value_or("/"); }

std::filesystem::path cache_dir() {
  if (auto dir = env("BRIM_CACHE")) return *dir;
  if (auto dir = env("XDG_CACHE_HOME")) return std::filesystem::path(*dir) / "brim";
  return home_dir() / ".cache" / "brim";
}

std::filesystem::path runtime_dir() {
  if (auto dir = env("XDG_RUNTIME_DIR")) return std::filesystem::path(*dir) / "brim";
  return "/tmp/brim-" + std::to_string(getuid());
}

}  // namespace brim
