// SPDX-License-Identifier: Apache-2.0
#include "serve/key_file.h"

#include <sys/stat.h>

#include "base/error.h"
#include "base/log.h"

namespace brim::serve {

void check_key_file(std::string_view setting, const std::string& path, KeyFile kind) {
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0 || !S_ISREG(facts.st_mode)) return;  // a missing file fails when it is read
  const unsigned mode = facts.st_mode & 07777;
  if ((mode & S_IWOTH) != 0)
    fail(ErrorCode::usage, Remedy{fmt::format("run chmod o-w {}", path)},
         "`{}={}`: every user can write it (mode {:04o})", setting, path, mode);
  if (kind == KeyFile::secret && (mode & (S_IRGRP | S_IROTH)) != 0)
    log_warning("`{}={}`: other users can read this key (mode {:04o}); run chmod 600 {}", setting, path, mode, path);
}

}  // namespace brim::serve
