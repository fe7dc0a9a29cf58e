// SPDX-License-Identifier: Apache-2.0
#include "rows/file_checks.h"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "base/error.h"
#include "base/utf8.h"
#include "rows/row_reader.h"

namespace brim::rows {
namespace {

struct Magic {
  std::string_view bytes;
  std::string_view what;
};

using namespace std::string_view_literals;

constexpr std::string_view kParquet =
    "is a Parquet file, which only the Python package reads; install it with pip or convert the file first: python3 "
    "-c \"import pandas; "
    "pandas.read_parquet('IN.parquet').to_csv('OUT.csv', index=False)\"";

// gzip and zstd are not listed: the reader decompresses them.
constexpr Magic kMagics[] = {
    {"\xFF\xFE\0\0"sv, "is UTF-32, not UTF-8; convert it first: iconv -f UTF-32 -t UTF-8"},
    {"\xFF\xFE"sv, "is UTF-16, not UTF-8; convert it first: iconv -f UTF-16 -t UTF-8"},
    {"\xFE\xFF"sv, "is UTF-16, not UTF-8; convert it first: iconv -f UTF-16 -t UTF-8"},
    {"PK\x03\x04"sv, "is a zip archive (or an .xlsx file); unpack it or export the sheet as CSV"},
    {"\xFD"
     "7zXZ\0"sv,
     "is compressed with xz; decompress it first (xz -dc) or use .gz or .zst"},
    {"7z\xBC\xAF\x27\x1C"sv, "is a 7-Zip archive; unpack it first or use .gz or .zst"},
    {"\x04\x22\x4D\x18"sv, "is compressed with lz4; decompress it first (lz4 -dc) or use .gz or .zst"},
    {"\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1"sv, "is a legacy Excel or Word file; export the sheet as CSV"},
    {"PAR1\x15"sv, kParquet},
    {"ARROW1\0\0"sv,
     "is an Arrow file; convert it first: python3 -c \"import pandas; pandas.read_feather('IN.arrow')"
     ".to_csv('OUT.csv', index=False)\""},
    {"SQLite format 3\0"sv, "is an SQLite database; export the table as CSV first"},
    {"%PDF-"sv, "is a PDF; extract its text first (pdftotext)"},
};

bool is_binary(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x80 || (byte < 0x20 && c != '\t' && c != '\n' && c != '\r');
}

bool is_bzip2(std::string_view head) {
  return head.size() >= 10 && head.starts_with("BZh") && head.substr(4, 6) == "\x31\x41\x59\x26\x53\x59"sv;
}

// Detects UTF-16 without a BOM: in Latin text every second byte is zero, and almost none of the others.
std::string_view utf16_kind(std::string_view head) {
  constexpr size_t kFewest = 8;
  const size_t pairs = head.size() / 2;
  if (pairs < kFewest) return {};
  size_t zeros[2] = {0, 0};
  for (size_t i = 0; i < 2 * pairs; ++i) zeros[i % 2] += head[i] == '\0';
  if (zeros[1] * 10 >= pairs * 7 && zeros[0] * 50 <= pairs) return "UTF-16LE";
  if (zeros[0] * 10 >= pairs * 7 && zeros[1] * 50 <= pairs) return "UTF-16BE";
  return {};
}

constexpr std::string_view kConvert = "iconv -f WINDOWS-1252 -t UTF-8";  // most non-UTF-8 text is this or Latin-1

}  // namespace

std::string why_not_utf8(std::string_view row) {
  const size_t at = valid_utf8_prefix(row);
  if (at == row.size()) return {};
  return fmt::format("byte {} (0x{:02X}) is not UTF-8; if the file is Latin-1 or Windows-1252, convert it first: {}",
                     at + 1, static_cast<unsigned char>(row[at]), kConvert);
}

std::string why_not_text(std::string_view head) {
  for (const Magic& magic : kMagics)
    if (head.starts_with(magic.bytes)) return std::string(magic.what);
  // Some writers start with another byte than 0x15; text would go on with a printable one.
  if (head.starts_with("PAR1") && head.size() > 4 && is_binary(head[4])) return std::string(kParquet);
  if (is_bzip2(head)) return "is compressed with bzip2; decompress it first (bzip2 -dc) or use .gz or .zst";
  if (const std::string_view kind = utf16_kind(head.substr(0, 4096)); !kind.empty())
    return fmt::format("is {}, not UTF-8; convert it first: iconv -f {} -t UTF-8", kind, kind);
  return {};
}

bool is_start_of_magic(std::string_view head) {
  if (head.empty()) return false;
  if ("\xEF\xBB\xBF"sv.starts_with(head) && head.size() < 3) return true;
  return std::any_of(std::begin(kMagics), std::end(kMagics), [&](const Magic& magic) {
    return head.size() < magic.bytes.size() && magic.bytes.starts_with(head);
  });
}

std::string why_other_encoding(std::string_view head) {
  constexpr size_t kLongestCut = 3;  // bytes of a truncated code point
  size_t lines = 0, bad = 0, first = 0, control = 0;
  for (size_t at = 0; at < head.size();) {
    const size_t newline = head.find('\n', at);
    if (newline == std::string_view::npos && lines > 0) break;  // truncated
    const std::string_view line = head.substr(at, newline == std::string_view::npos ? newline : newline - at);
    const size_t good = valid_utf8_prefix(line);
    const bool ill = newline == std::string_view::npos ? good + kLongestCut < line.size() : good < line.size();
    if (ill && bad++ == 0) first = at + good;
    lines += !line.empty();
    at += line.size() + 1;
  }
  if (2 * bad <= lines) return {};
  for (const char c : head)
    control +=
        static_cast<unsigned char>(c) < 0x20 && std::string_view("\t\n\r\f\x1b").find(c) == std::string_view::npos;
  const std::string where = fmt::format("{} of the first {} lines are invalid, starting at byte {} (0x{:02X})", bad,
                                        lines, first + 1, static_cast<unsigned char>(head[first]));
  if (control * 50 > head.size()) return fmt::format("is not a UTF-8 text file: {}", where);
  return fmt::format("is not UTF-8: {}; if it is Latin-1 or Windows-1252, convert it first: {}", where, kConvert);
}

std::optional<char> excel_separator(std::string_view line) {
  if (line.size() > 2 && line.starts_with('"') && line.ends_with('"')) line = line.substr(1, line.size() - 2);
  return line.size() == 5 && line.starts_with("sep=") ? parse_delimiter(line.substr(4)) : std::nullopt;
}

std::string why_bare_cr(std::string_view line) {
  while (!line.empty() && (line.back() == '\r' || line.back() == '\n')) line.remove_suffix(1);
  if (line.find('\n') != std::string_view::npos || line.find('\r') == std::string_view::npos) return {};
  return "has CR line endings (classic Mac OS); convert them first: tr '\\r' '\\n'";
}

void refuse_output_over_input(const std::string& output, const std::vector<std::string>& inputs) {
  std::error_code ignored;
  if (output == "-" || !std::filesystem::is_regular_file(output, ignored)) return;
  for (const std::string& input : inputs)
    if (input != "-" && std::filesystem::equivalent(output, input, ignored))
      fail(ErrorCode::usage, "-o {}: is also the input {} and would be overwritten; choose another file", output,
           input);
}

void refuse_foreign_output(std::string_view path) {
  const auto ends = [&](std::string_view suffix) { return path.ends_with(suffix); };
  for (const std::string_view suffix : {".xlsx", ".xls", ".ods", ".parquet", ".feather", ".arrow"})
    if (ends(suffix))
      fail(ErrorCode::usage,
           "{}: writing {} files is not supported; use .csv, .tsv or .jsonl, optionally with .gz or .zst", path,
           suffix);
  for (const std::string_view suffix : {".bz2", ".xz", ".zip", ".7z", ".lz4"})
    if (ends(suffix)) fail(ErrorCode::usage, "{}: compression as {} is not supported; use .gz or .zst", path, suffix);
}

}  // namespace brim::rows
