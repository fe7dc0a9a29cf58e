// SPDX-License-Identifier: Apache-2.0
// Series read from files: values concatenated as 32-bit floats, absent points as NaN, every series on the grid of one
// frequency.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "rows/covariates.h"
#include "rows/timestamps.h"

namespace brim::rows {

enum class SeriesLayout : uint8_t {
  automatic,
  long_rows,  // a row per point: unique_id, ds, y
  wide,       // a row per series: its id, then its values (M4)
  columns,    // a column per series, after the time column if present (ETT)
  jsonl,      // an object per series: item_id, start, target (GluonTS)
};
const char* layout_name(SeriesLayout layout);  // "long", "wide", …

struct SeriesTable {
  std::vector<std::string> ids;
  std::vector<float> values;         // the first and last value of a series are present
  std::vector<int64_t> begin = {0};  // offset of each series in `values`, and the end
  std::vector<int64_t> first;        // time of each series' first value; numbered points start at 1
  Frequency frequency;
  TimeStyle style;
  SeriesLayout layout = SeriesLayout::automatic;
  bool numbered = false;                    // points have no times and are numbered from 1
  int64_t absent = 0;                       // NaN among the values
  int64_t skipped = 0;                      // series dropped because they have too few points
  std::vector<CovariateValues> covariates;  // in the order of the options
  std::vector<std::string> last_row;        // with covariates: file and line of each series' last row
  std::vector<std::string> notes;           // detected properties, for the user
};

}  // namespace brim::rows
