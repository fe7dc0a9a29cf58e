// SPDX-License-Identifier: Apache-2.0
// Maps labels in the data to labels of the model. Supports several labels per row in the two common encodings: names in
// one field separated by |, or one 0/1 column per label.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace brim::rows {

std::vector<std::string> split_names(std::string_view text, char separator);  // empty parts are dropped

// Reads a 0/1 label column (0 or 1, true or false in any case). Throws bad_data naming `where`, column and value for
// anything else.
bool read_mark(std::string_view value, const std::string& where, std::string_view column);

// Reads a numeric label; throws bad_data naming `where` and the value for anything else.
double read_number(std::string_view value, const std::string& where);

// Index of a label among the model's labels: by exact name, case-insensitive name, or number ("2", "LABEL_2").
std::optional<int32_t> find_label(const std::vector<std::string>& labels, std::string_view text);

}  // namespace brim::rows
