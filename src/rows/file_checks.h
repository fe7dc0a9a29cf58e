// SPDX-License-Identifier: Apache-2.0
// Rejects inputs and outputs that are certainly mistakes, such as binary files, other encodings or an output that
// overwrites an input. Does not validate whole files: most checks look at the first bytes only.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace brim::rows {

// Kind of a file that starts with `head` and the fix ("is a zip archive …; unpack it first"); empty if it may be text.
std::string why_not_text(std::string_view head);
// True if more bytes could still turn `head` into the start of such a file, or of a byte order mark.
bool is_start_of_magic(std::string_view head);

// The same for text in other encodings: most lines of `head`, the first kHeadBytes of a file, are not UTF-8.
constexpr size_t kHeadBytes = size_t{64} << 10;
std::string why_other_encoding(std::string_view head);

// Detects input of a single line that contains CR characters: a file with classic Mac OS line ends, which would be read
// as one text. `line` is that line, or the start of a file. Returns an empty string otherwise.
std::string why_bare_cr(std::string_view line);

// The delimiter of Excel's first line, "sep=;", optionally in quotes; empty for any other line.
std::optional<char> excel_separator(std::string_view line);

// Describes the first ill-formed byte of a row and the fix; empty if the row is valid UTF-8.
std::string why_not_utf8(std::string_view row);

// Throws Error(usage) if the output is one of the inputs.
void refuse_output_over_input(const std::string& output, const std::vector<std::string>& inputs);

// Throws Error(usage) with an alternative for names of formats that Brim does not write (.xlsx, .parquet, .bz2, …).
void refuse_foreign_output(std::string_view path);

}  // namespace brim::rows
