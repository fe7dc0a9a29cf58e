// SPDX-License-Identifier: Apache-2.0
// Options of scorers in tests.
#pragma once
#include <filesystem>

#include "brim/brim.h"

namespace brim::engine {

// fp32 on two CPU threads, on machines with a GPU too.
inline ScorerOptions cpu_options(const std::filesystem::path& model) {
  ScorerOptions o;
  o.model = model.string();
  o.device = "cpu";
  o.precision = "fp32";
  o.threads = 2;
  o.memory_limit = "1GiB";
  return o;
}

}  // namespace brim::engine
