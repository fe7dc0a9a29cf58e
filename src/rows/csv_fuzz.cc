// SPDX-License-Identifier: Apache-2.0
// Fuzz entry: parses arbitrary bytes as a csv file (first byte: chunk size and quoting). Rows must not depend on read
// boundaries, seeking to a position must return the same rows, and field values must survive a write/read round trip.
#include <cstdlib>
#include <string>
#include <vector>

#include "rows/file_checks.h"
#include "rows/row_reader.h"

namespace brim::rows::csv_fuzz {

struct Row {
  std::string text, record;
  int64_t line;
  bool bad;
  bool operator==(const Row&) const = default;
};

inline std::vector<Row> read_rows(const std::string& bytes, size_t piece, size_t chunk_bytes, bool quotes) {
  RowReaderOptions options;
  options.format = RowFormat::csv;
  options.quotes = quotes;
  options.chunk_bytes = chunk_bytes;
  options.chunk_rows = 1 + piece % 7;
  std::vector<Row> rows;
  try {
    RowReader reader(io::memory_source("fuzz.csv", bytes, piece), options);
    RowChunk chunk;
    while (reader.next_chunk(chunk)) {
      for (size_t i = 0; i < chunk.size(); ++i)
        rows.push_back(
            {std::string(chunk.texts[i]), std::string(chunk.records[i]), chunk.lines[i], chunk.error(i) != nullptr});
      if (chunk.position_after(chunk.size() - 1).rows != static_cast<int64_t>(rows.size())) std::abort();
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::bad_data && error.code() != ErrorCode::usage) std::abort();
    rows.push_back({error.what(), "", 0, true});
  }
  return rows;
}

inline void check_round_trip(const std::string& bytes) {
  CsvRecord record, again;
  std::string scratch;
  for (size_t at = 0; at < bytes.size();) {
    parse_csv_record(bytes, at, true, {}, record);
    if (record.next <= at) std::abort();
    if (record.status == CsvStatus::record) {
      std::string written;
      std::vector<std::string> values;
      for (const CsvField& field : record.fields) {
        if (!values.empty()) written += ',';
        append_csv_field(written, values.emplace_back(csv_value(field, scratch)), ',');
      }
      written += '\n';
      parse_csv_record(written, 0, true, {}, again);
      const bool lone_empty = values.size() == 1 && values[0].empty();
      if (!lone_empty) {
        if (again.status != CsvStatus::record || again.fields.size() != values.size()) std::abort();
        for (size_t i = 0; i < values.size(); ++i)
          if (csv_value(again.fields[i], scratch) != values[i]) std::abort();
      }
    }
    at = record.next;
  }
}

}  // namespace brim::rows::csv_fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace brim::rows::csv_fuzz;
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const bool quotes = (data[0] & 1) == 0;
  // UTF-16 without a BOM is detected from the first block, and the block size differs below.
  if (brim::rows::why_not_text(bytes).find("UTF-16") != std::string::npos) return 0;
  const std::vector<Row> whole = read_rows(bytes, SIZE_MAX, bytes.size() + 16, quotes);
  if (whole != read_rows(bytes, 1 + (data[0] >> 1), 1 + (data[0] >> 3), quotes)) std::abort();
  check_round_trip(bytes);
  return 0;
}
