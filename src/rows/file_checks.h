// SPDX-License-Identifier: Apache-2.0
// Inputs and outputs that cannot be meant. A file whose first bytes say that it is no UTF-8 text would get labels that
// mean nothing.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace brim::rows {

// Kind of a file that starts with `head` and the fix ("is a zip archive …; unpack it first"); empty if it may be text.
std::string why_not_text(std::string_view head);
// True if more bytes could still turn `head` into the start of such a file, or of a byte order mark.
bool is_start_of_magic(std::string_view head);

// The same for text in another encoding: most of the lines of `head`, a file's first kHeadBytes, are not UTF-8.
constexpr size_t kHeadBytes = size_t{64} << 10;
std::string why_other_encoding(std::string_view head);

// Input of a single line that contains CR characters: a file with the line ends of classic Mac OS, which would be read
// as one text. `line` is that line, or the start of a file. Empty if it is not one.
std::string why_bare_cr(std::string_view line);

// What is wrong with the first ill-formed byte of a row and what to do about it; empty where the row is UTF-8.
std::string why_not_utf8(std::string_view row);

// An output that is one of the inputs would replace the texts: Error(usage).
void refuse_output_over_input(const std::string& output, const std::vector<std::string>& inputs);

// Names that promise a file Brim does not write (.xlsx, .parquet, .bz2, …): Error(usage) with what to write instead.
void refuse_foreign_output(std::string_view path);

}  // namespace brim::rows
