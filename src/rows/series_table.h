// SPDX-License-Identifier: Apache-2.0
// Series as they come out of files: values end to end in 32-bit floats, an absent point is NaN, every series on the
// grid of one frequency.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "rows/timestamps.h"

namespace brim::rows {

enum class SeriesLayout : uint8_t {
  automatic,
  long_rows,  // a row per point: unique_id, ds, y
  wide,       // a row per series: its id, then its values (M4)
  columns,    // a column per series, after that of the times where there is one (ETT)
  jsonl,      // an object per series: item_id, start, target (GluonTS)
};
const char* layout_name(SeriesLayout layout);  // "long", "wide", …

struct SeriesTable {
  std::vector<std::string> ids;
  std::vector<float> values;         // first and last of a series are present
  std::vector<int64_t> begin = {0};  // where each series begins in `values`, and the end
  std::vector<int64_t> first;        // time of each series' first value; numbered points count from 1
  Frequency frequency;
  TimeStyle style;
  SeriesLayout layout = SeriesLayout::automatic;
  bool numbered = false;           // points have no times and are counted from 1
  int64_t absent = 0;              // NaN among the values
  int64_t skipped = 0;             // series left out: too few points
  std::vector<std::string> notes;  // what was recognised, for the user
};

}  // namespace brim::rows
