// SPDX-License-Identifier: Apache-2.0
#include "io/file_checks.h"

#include <filesystem>

#include "base/error.h"

namespace brim {
namespace {

struct Magic {
  std::string_view bytes;
  std::string_view what;
};

using namespace std::string_view_literals;

// gzip and zstd are not here: the reader unpacks them.
constexpr Magic kMagics[] = {
    {"\xFF\xFE\0\0"sv, "is UTF-32, not UTF-8; convert it first: iconv -f UTF-32 -t UTF-8"},
    {"\xFF\xFE"sv, "is UTF-16, not UTF-8; convert it first: iconv -f UTF-16 -t UTF-8"},
    {"\xFE\xFF"sv, "is UTF-16, not UTF-8; convert it first: iconv -f UTF-16 -t UTF-8"},
    {"PK\x03\x04"sv, "is a zip archive (as .xlsx files are); unpack it, or save the sheet as CSV"},
    {"\xFD"
     "7zXZ\0"sv,
     "is compressed by xz; unpack it first (xz -dc); Brim reads .gz and .zst itself"},
    {"7z\xBC\xAF\x27\x1C"sv, "is a 7-Zip archive; unpack it first; Brim reads .gz and .zst itself"},
    {"\x04\x22\x4D\x18"sv, "is compressed by lz4; unpack it first (lz4 -dc); Brim reads .gz and .zst itself"},
    {"\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1"sv, "is an old Excel or Word file; save the sheet as CSV"},
    {"PAR1\x15"sv, "is a Parquet file; write it as CSV or JSONL first"},
    {"ARROW1\0\0"sv, "is an Arrow file; write it as CSV or JSONL first"},
    {"SQLite format 3\0"sv, "is an SQLite database; export the table as CSV first"},
    {"%PDF-"sv, "is a PDF; take its text out first (pdftotext)"},
};

bool is_bzip2(std::string_view head) {
  return head.size() >= 10 && head.starts_with("BZh") && head.substr(4, 6) == "\x31\x41\x59\x26\x53\x59"sv;
}

// UTF-16 without its mark: in Latin text every second byte is zero, and nearly none of the others is.
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

}  // namespace

std::string why_not_text(std::string_view head) {
  for (const Magic& magic : kMagics)
    if (head.starts_with(magic.bytes)) return std::string(magic.what);
  if (is_bzip2(head)) return "is compressed by bzip2; unpack it first (bzip2 -dc); Brim reads .gz and .zst itself";
  if (const std::string_view kind = utf16_kind(head.substr(0, 4096)); !kind.empty())
    return fmt::format("is {}, not UTF-8; convert it first: iconv -f {} -t UTF-8", kind, kind);
  return {};
}

void refuse_output_over_input(const std::string& output, const std::vector<std::string>& inputs) {
  std::error_code ignored;
  if (output == "-" || !std::filesystem::is_regular_file(output, ignored)) return;
  for (const std::string& input : inputs)
    if (input != "-" && std::filesystem::equivalent(output, input, ignored))
      fail(ErrorCode::usage, "-o {}: is the input {} too, which would be replaced; name another file", output, input);
}

void refuse_foreign_output(std::string_view path) {
  const auto ends = [&](std::string_view suffix) { return path.ends_with(suffix); };
  for (const std::string_view suffix : {".xlsx", ".xls", ".ods", ".parquet", ".feather", ".arrow"})
    if (ends(suffix))
      fail(ErrorCode::usage, "{}: Brim does not write {} files; name a .csv, .tsv or .jsonl (.gz and .zst may follow)",
           path, suffix);
  for (const std::string_view suffix : {".bz2", ".xz", ".zip", ".7z", ".lz4"})
    if (ends(suffix)) fail(ErrorCode::usage, "{}: Brim compresses as .gz and .zst, not {}", path, suffix);
}

}  // namespace brim
