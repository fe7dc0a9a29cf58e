// SPDX-License-Identifier: Apache-2.0
#include "rows/csv.h"

#include <cstring>

#include "io/scan.h"

namespace brim::rows {
namespace {

const char* find(const char* p, const char* end, char c) {
  const void* hit = std::memchr(p, c, static_cast<size_t>(end - p));
  return hit == nullptr ? end : static_cast<const char*>(hit);
}

// Ends the row after its first line; parsing resumes at the next line.
void end_at_first_line(std::string_view buffer, size_t at, CsvStatus status, CsvRecord& out) {
  const char* begin = buffer.data() + at;
  const char* end = buffer.data() + buffer.size();
  const char* newline = find(begin, end, '\n');
  out.status = status;
  out.error_field = out.fields.size();
  out.lines = newline < end ? 1 : 0;
  out.next = static_cast<size_t>(newline - buffer.data()) + static_cast<size_t>(out.lines);
  if (newline > begin && newline[-1] == '\r') --newline;
  out.raw = {begin, static_cast<size_t>(newline - begin)};
}

}  // namespace

void parse_csv_record(std::string_view buffer, size_t at, bool last, const CsvDialect& dialect, CsvRecord& out) {
  const char* const base = buffer.data();
  const char* const begin = base + at;
  const char* const end = base + buffer.size();
  const char* p = begin;
  out.fields.clear();
  out.lines = 0;
  out.status = CsvStatus::incomplete;

  for (;;) {
    CsvField& field = out.fields.emplace_back();
    const char* stop;  // the delimiter or line end after the field
    if (dialect.quotes && p < end && *p == '"') {
      const char* text = ++p;
      for (;;) {
        p = find(p, end, '"');
        if (p == end) {
          if (!last) return;
          out.fields.pop_back();
          return end_at_first_line(buffer, at, CsvStatus::open_quote, out);
        }
        if (p + 1 == end && !last) return;  // may be the first half of a doubled quote
        if (p + 1 == end || p[1] != '"') break;
        field.escaped = true;
        p += 2;
      }
      field.raw = {text, static_cast<size_t>(p - text)};
      field.quoted = true;
      out.lines += io::scan::count_newlines(text, p);
      stop = p + 1;
      if (stop < end && *stop == '\r') {
        if (stop + 1 == end && !last) return;
        if (stop + 1 == end || stop[1] == '\n') ++stop;
      }
      if (stop < end && *stop != dialect.delimiter && *stop != '\n') {
        if (!last && find(begin, end, '\n') == end) return;  // the row's first line must be complete
        out.fields.pop_back();
        return end_at_first_line(buffer, at, CsvStatus::bad_quote, out);
      }
    } else {
      stop = io::scan::find_either(p, end, dialect.delimiter, '\n');
      const char* text_end = stop;
      // A CR belongs to the line end after it; at the end of the input, to a truncated line end.
      if (text_end > p && text_end[-1] == '\r' && (stop == end || *stop == '\n')) --text_end;
      field.raw = {p, static_cast<size_t>(text_end - p)};
    }
    if (stop == end) {
      if (!last) return;
    } else if (*stop == dialect.delimiter) {
      p = stop + 1;
      continue;
    }
    const CsvField& tail = out.fields.back();
    const char* raw_end = tail.raw.data() + tail.raw.size() + (tail.quoted ? 1 : 0);
    out.raw = {begin, static_cast<size_t>(raw_end - begin)};
    out.lines += stop < end ? 1 : 0;
    out.next = static_cast<size_t>(stop - base) + (stop < end ? 1 : 0);
    out.status = out.raw.empty() ? CsvStatus::blank : CsvStatus::record;
    return;
  }
}

std::string_view csv_value(const CsvField& field, std::string& scratch) {
  if (!field.escaped) return field.raw;
  scratch.clear();
  const char* p = field.raw.data();
  const char* end = p + field.raw.size();
  while (p < end) {
    const char* quote = find(p, end, '"');
    if (quote == end) {
      scratch.append(p, end);
      break;
    }
    scratch.append(p, quote + 1);
    p = quote + 2;
  }
  return scratch;
}

void append_csv_field(std::string& out, std::string_view value, char delimiter) {
  const char* end = value.data() + value.size();
  if (io::scan::find_csv_special(value.data(), end, delimiter) == end) {
    out.append(value);
    return;
  }
  out += '"';
  for (;;) {
    const size_t quote = value.find('"');
    out.append(value.substr(0, quote));
    if (quote == std::string_view::npos) break;
    out += "\"\"";
    value.remove_prefix(quote + 1);
  }
  out += '"';
}

}  // namespace brim::rows
