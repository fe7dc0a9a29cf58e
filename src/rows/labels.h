// SPDX-License-Identifier: Apache-2.0
// Labels of the data and the model's; several labels a row, in the two ways files carry them: names in one field,
// separated by |, or a column a label that holds 0 or 1.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace brim::rows {

std::vector<std::string> split_names(std::string_view text, char separator);  // empty parts are left out

// Whether a label's column marks the row: 0 or 1, true or false in any case. Anything else is bad_data naming `where`,
// column and value.
bool read_mark(std::string_view value, const std::string& where, std::string_view column);

// A label that is a number; anything else is bad_data naming `where` and the value.
double read_number(std::string_view value, const std::string& where);

// Where a label of the data stands among the model's: by name, by name in any case, or by number ("2", "LABEL_2").
std::optional<int32_t> find_label(const std::vector<std::string>& labels, std::string_view text);

}  // namespace brim::rows
