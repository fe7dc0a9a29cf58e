// SPDX-License-Identifier: Apache-2.0
// Covariates of series: further columns of their files, read beside the target and aligned with it. Numbers only;
// scaling is left to the models.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace brim::rows {

enum class CovariateKind : uint8_t {
  future,  // known for the points to forecast too
  past,    // known up to the last value of the series
  fixed,   // one value per series
};

struct CovariateColumn {
  std::string name;
  CovariateKind kind = CovariateKind::future;
  bool categorical = false;
  bool operator==(const CovariateColumn&) const = default;
};

struct CovariateValues {
  CovariateColumn column;
  std::vector<std::string> categories;  // if categorical, values are indices into this
  // Per series: from its first step on, possibly beyond its last one (future) or up to it (past); one value if fixed.
  // NaN if missing.
  std::vector<float> values;
  std::vector<int64_t> begin = {0};
};

}  // namespace brim::rows
