// SPDX-License-Identifier: Apache-2.0
// Parses and formats human-readable numbers: "6GiB", "90%", "1.5 GB", 12,345.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace brim {

// "6GiB", "512MiB", "6GB" (powers of ten), "8g" (GiB), "1048576". nullopt if invalid.
std::optional<int64_t> parse_bytes(std::string_view text);
// Suggestion for a number of bytes without a unit: 0.98 is 98%, 6 is 6GiB. Empty if it has a unit.
std::string with_unit(std::string_view text);
std::string format_bytes(int64_t bytes);                         // "5.25 GiB"
std::string format_count(int64_t value);                         // "12,345"
std::string format_count(int64_t value, std::string_view noun);  // "1 row", "12,345 rows"
std::string format_duration(double seconds);                     // "1h 02m", "4m 10s", "3.2 s"
std::string format_si(double value);                             // "3.4 M"
std::string format_rate(double per_second);                      // "–" if unknown, "1.62", "12.3", "12,345"

// The known name closest to `typed` (edit distance, case ignored), for "did you mean". Empty if none is within
// `most_edits` and a third of the word, for more than 4,096 known names, or if `typed` exceeds 160 bytes.
std::string nearest_name(std::string_view typed, const std::vector<std::string>& known, size_t most_edits = SIZE_MAX);
std::string some_names(const std::vector<std::string>& names);  // at most ten: "a, b, c", "a, …, j, … (961 in total)"
std::string lower_case(std::string_view text);                  // ASCII only
bool same_word(std::string_view a, std::string_view b);         // ignores the case of ASCII letters

}  // namespace brim
