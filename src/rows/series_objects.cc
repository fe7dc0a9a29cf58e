// SPDX-License-Identifier: Apache-2.0
// JSON objects: one series each ("target" is a list), or one row each.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "io/quote_text.h"
#include "rows/series_file.h"

namespace brim::rows {
namespace {

std::string_view without_space(std::string_view json) {
  constexpr std::string_view blanks = " \t\r\n";
  const size_t from = json.find_first_not_of(blanks);
  return from == json.npos ? "" : json.substr(from, json.find_last_not_of(blanks) + 1 - from);
}

// Length of the element at the start of a list without its brackets.
size_t element_length(std::string_view list) {
  if (list[0] != '"' && list[0] != '[' && list[0] != '{') return std::min(list.find(','), list.size());
  size_t depth = 0;
  bool in_string = false;
  for (size_t at = 0; at < list.size(); ++at) {
    const char c = list[at];
    if (in_string && c == '\\')
      ++at;
    else if (c == '"')
      in_string = !in_string;
    else if (!in_string && (c == '[' || c == '{'))
      ++depth;
    else if (!in_string && (c == ']' || c == '}'))
      --depth;
    if (!in_string && depth == 0) return at + 1;
  }
  return list.size();
}

// Calls visit(text, whether it is a string) for each element of a list, whose grammar has been validated. Strings have
// no quotes, but are still escaped.
template <class Visit>
void for_elements(std::string_view list, Visit&& visit) {
  list = without_space(list.substr(1, list.size() - 2));
  while (!list.empty()) {
    const size_t length = element_length(list);
    const std::string_view text = without_space(list.substr(0, length));
    const bool is_string = text.starts_with('"');
    visit(is_string ? text.substr(1, text.size() - 2) : text, is_string);
    const size_t comma = std::min(list.find(',', length), list.size() - 1);
    list = without_space(list.substr(comma + 1));
  }
}

}  // namespace

const JsonMember* SeriesFileReader::member(std::string_view key) const {
  const JsonMember* found = nullptr;
  for (const JsonMember& m : members_)
    if (json_key_is(m, key)) found = &m;
  return found;
}

bool SeriesFileReader::next_object() {
  if (stream_.block_is_new()) after_block_();
  std::string_view line;
  if (!stream_.next_line(line)) return false;
  if (const JsonProblem problem = scan_json_object(line, members_); problem.what != nullptr)
    refuse(fmt::format("byte {}: {}", problem.at + 1, problem.what), "give one JSON object per line");
  return true;
}

SeriesLayout SeriesFileReader::read_json() {
  if (!next_object()) fail(ErrorCode::bad_data, Remedy{"give a file with series"}, "{}: is empty", source_.name());
  const JsonMember* target = member(options_.target_column.empty() ? "target" : options_.target_column);
  layout_ = target != nullptr && target->kind == JsonKind::array ? SeriesLayout::jsonl : SeriesLayout::long_rows;
  if (options_.layout != SeriesLayout::automatic && options_.layout != layout_)
    refuse(fmt::format("the objects have the {} layout", layout_name(layout_)), "remove `layout`");
  layout_ == SeriesLayout::jsonl ? read_objects() : read_rows_of_json();
  return layout_;
}

std::string SeriesFileReader::text_of(const JsonMember& m) const {
  return m.value_escaped ? json_unescape(m.value) : std::string(m.value);
}

void SeriesFileReader::read_objects() {
  std::vector<float> values;
  do {
    const int64_t line = stream_.line();
    const JsonMember* target = member(options_.target_column.empty() ? "target" : options_.target_column);
    const JsonMember* id = member(options_.id_column.empty() ? "item_id" : options_.id_column);
    const JsonMember* start = member(options_.time_column.empty() ? "start" : options_.time_column);
    if (target == nullptr || target->kind != JsonKind::array)
      refuse("\"target\" is missing or not a list of numbers", "give the values of each series as \"target\"");
    const uint32_t series = builder_.new_series(id != nullptr ? text_of(*id) : fmt::format("{}", line), file_, line);
    read_targets(target->value, series, values);
    declare_frequency();
    const auto time =
        start == nullptr || start->kind == JsonKind::null ? std::nullopt : parse_timestamp(text_of(*start));
    if (start != nullptr && start->kind != JsonKind::null && !time)
      refuse(fmt::format("\"start\": invalid time {}", io::quote_text(start->value)),
             "write it as ISO 8601: 2016-07-01 13:00");
    builder_.add_steps(series, time ? &*time : nullptr, values, file_, line);
    if (!options_.covariates.empty()) read_object_covariates(series, time ? &*time : nullptr, values.size());
  } while (next_object());
}

void SeriesFileReader::read_object_covariates(uint32_t series, const Timestamp* first, size_t points) {
  std::vector<std::vector<float>> all;
  for (size_t c = 0; c < options_.covariates.size(); ++c) {
    const CovariateColumn& column = options_.covariates[c];
    const JsonMember* found = member(column.name);
    const bool is_list = found != nullptr && found->kind == JsonKind::array;
    if (found == nullptr || is_list == (column.kind == CovariateKind::fixed))
      refuse(fmt::format("\"{}\" is missing or not a {}", column.name,
                         column.kind == CovariateKind::fixed ? "single value" : "list"),
             "give a list as long as \"target\", or longer for values of the future");
    if (is_list)
      all.push_back(covariate_list(c, found->value, points));
    else
      all.push_back({static_cast<float>(covariate_value(c, text_of(*found)))});
  }
  covariates_.add_steps(builder_.id(series), first, all, file_, stream_.line());
}

std::vector<float> SeriesFileReader::covariate_list(size_t c, std::string_view list, size_t points) {
  const CovariateColumn& column = options_.covariates[c];
  std::vector<float> values;
  for_elements(list, [&](std::string_view text, bool is_string) {
    if (!is_string && (text.starts_with('[') || text.starts_with('{')))
      refuse(fmt::format("\"{}\": element {}: {} is not a single value", column.name, values.size() + 1,
                         io::quote_text(text)),
             "give a list of numbers or strings; write missing values as null");
    values.push_back(static_cast<float>(is_string && text.find('\\') != text.npos
                                            ? covariate_value(c, json_unescape(text))
                                            : covariate_value(c, text)));
  });
  // Future columns may continue after the target; further values of past ones must be missing.
  const bool fits = column.kind == CovariateKind::future ||
                    std::all_of(values.begin() + static_cast<std::ptrdiff_t>(std::min(points, values.size())),
                                values.end(), [](float v) { return std::isnan(v); });
  if (values.size() < points || !fits)
    refuse(fmt::format("\"{}\" has {}, but \"target\" has {}", column.name,
                       format_count(static_cast<int64_t>(values.size()), "value"), points),
           "give one value per point; write missing values as null");
  return values;
}

void SeriesFileReader::declare_frequency() {
  const JsonMember* declared = member("freq");
  if (declared == nullptr || declared->kind != JsonKind::string) return;
  const auto frequency = parse_frequency(declared->value);
  if (!frequency)
    refuse(fmt::format("invalid frequency {}", io::quote_text(declared->value)), "use H, D, B, W, M, Q, Y, 15min");
  if (builder_.declared_frequency() && *builder_.declared_frequency() != *frequency)
    refuse(fmt::format("\"freq\" is {}, but {} in earlier objects", frequency_name(*frequency),
                       frequency_name(*builder_.declared_frequency())),
           "give all series the same frequency");
  builder_.declare_frequency(*frequency);
}

void SeriesFileReader::read_targets(std::string_view list, uint32_t series, std::vector<float>& values) {
  values.clear();
  for_elements(list, [&](std::string_view text, bool) {
    const auto value = parse_series_value(text);
    if (!value || std::isinf(static_cast<float>(*value)))
      refuse(fmt::format("\"target\": element {}: {} is not a finite number", values.size() + 1, io::quote_text(text)),
             "write missing values as null or \"NaN\"");
    if (std::isnan(*value) && options_.gaps == GapRule::error)
      refuse(fmt::format("\"target\": element {}: missing value", values.size() + 1),
             "set `gaps=mask` to ignore missing points, or `gaps=fill` to repeat the previous value");
    builder_.note_value(series, *value);
    values.push_back(static_cast<float>(*value));
  });
}

void SeriesFileReader::read_rows_of_json() {
  names_.clear();
  for (const JsonMember& m : members_) names_.push_back(m.key_escaped ? json_unescape(m.key) : std::string(m.key));
  header_line_ = stream_.line();
  find_columns();
  find_covariates();
  choose_target();
  const std::string own = stem();
  do {
    const int64_t line = stream_.line();
    const JsonMember* id = id_ ? member(names_[*id_]) : nullptr;
    const JsonMember* target = target_ ? member(names_[*target_]) : nullptr;
    const JsonMember* time = time_ ? member(names_[*time_]) : nullptr;
    for (const auto& [column, found] : {std::pair(id_, id), std::pair(target_, target), std::pair(time_, time)})
      if (column && found == nullptr)
        refuse(fmt::format("missing key \"{}\"", names_[*column]), "give every object the same keys");
    const uint32_t series = builder_.series(id != nullptr ? text_of(*id) : own, file_, line);
    const double value = target_ ? present_value_of(target->value, *target_) : std::numeric_limits<double>::quiet_NaN();
    const auto moment = time == nullptr ? std::nullopt : std::optional(time_of(text_of(*time)));
    builder_.add(series, moment ? &*moment : nullptr, value, file_, line);
    if (covariate_at_.empty()) continue;
    for (size_t c = 0; c < covariate_at_.size(); ++c) {
      if (covariate_at_[c] == kAbsent) continue;
      const JsonMember* found = member(names_[covariate_at_[c]]);
      covariate_row_[c] = covariate_value(c, found == nullptr ? "" : text_of(*found));
    }
    covariates_.add(builder_.id(series), moment ? &*moment : nullptr, covariate_row_, file_, line);
  } while (next_object());
}

}  // namespace brim::rows
