// SPDX-License-Identifier: Apache-2.0
#include "io/hub_names.h"

#include <algorithm>
#include <cctype>

namespace brim::io {

bool is_hub_name_part(std::string_view part) {
  const auto is_allowed = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.'; };
  return !part.empty() && part[0] != '.' && part.find("..") == std::string_view::npos &&
         std::all_of(part.begin(), part.end(), is_allowed);
}

bool is_hub_name(std::string_view name) {
  const size_t slash = name.find('/');
  if (slash == std::string_view::npos) return is_hub_name_part(name);
  return is_hub_name_part(name.substr(0, slash)) && is_hub_name_part(name.substr(slash + 1));
}

bool is_hub_revision(std::string_view revision) {
  for (size_t slash; (slash = revision.find('/')) != std::string_view::npos; revision.remove_prefix(slash + 1))
    if (!is_hub_name_part(revision.substr(0, slash))) return false;
  return is_hub_name_part(revision);
}

std::string hub_cache_folder(std::string_view name) {
  std::string folder = "models--";
  for (const char c : name) {
    if (c == '/')
      folder += "--";
    else
      folder += c;
  }
  return folder;
}

}  // namespace brim::io
