// SPDX-License-Identifier: Apache-2.0
// Parses RFC 4180 records in a buffer without copying: fields point into the buffer. Lines end in LF or CRLF; a lone CR
// is data. A quote inside an unquoted field is an ordinary character, as in other readers; bytes after a closing quote
// and an unclosed quote are errors of the row they began in. Parsing resumes at the next line, so a stray quote costs
// one row and not the rest of the file.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace brim::rows {

struct CsvDialect {
  char delimiter = ',';
  bool quotes = true;  // false: a quote is an ordinary character (raw TSV dumps)
};

struct CsvField {
  std::string_view raw;  // without the enclosing quotes
  bool quoted = false;
  bool escaped = false;  // contains doubled quotes: see csv_value
};

enum class CsvStatus {
  record,      // a complete record
  blank,       // an empty line: no record
  incomplete,  // the buffer ends inside the record and more input may follow
  bad_quote,   // bytes between a closing quote and the delimiter
  open_quote,  // the input ends inside quotes
};

struct CsvRecord {
  CsvStatus status = CsvStatus::incomplete;
  std::string_view raw;  // the record's bytes without its line end; for the two errors, its first line
  size_t next = 0;       // offset of the next record
  int64_t lines = 0;     // line ends consumed
  std::vector<CsvField> fields;
  size_t error_field = 0;  // for the two errors: index of the field, from 0
};

// Parses the record at buffer[at]. `last`: no more input follows the buffer. `out` is reused.
void parse_csv_record(std::string_view buffer, size_t at, bool last, const CsvDialect& dialect, CsvRecord& out);

// Returns the field's text, unescaped into `scratch` if it contains doubled quotes.
std::string_view csv_value(const CsvField& field, std::string& scratch);

// Appends a field, quoted if it contains the delimiter, a quote, CR or LF.
void append_csv_field(std::string& out, std::string_view value, char delimiter);

}  // namespace brim::rows
