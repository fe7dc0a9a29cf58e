// SPDX-License-Identifier: Apache-2.0
#include "http/key_file.h"

#include <sys/stat.h>

#include "base/error.h"
#include "base/log.h"

namespace brim::http {

void check_key_file(std::string_view setting, const std::string& path, KeyFile kind) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return;  // reading a missing file fails later
  const unsigned mode = info.st_mode & 07777;
  if ((mode & S_IWOTH) != 0)
    fail(ErrorCode::usage, Remedy{fmt::format("run chmod o-w {}", path)},
         "`{}={}`: every user can write to it (mode {:04o})", setting, path, mode);
  if (kind == KeyFile::secret && (mode & (S_IRGRP | S_IROTH)) != 0)
    log_warning("`{}={}`: other users can read this key (mode {:04o}); run chmod 600 {}", setting, path, mode, path);
}

}  // namespace brim::http
